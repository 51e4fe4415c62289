//! Functions of loaded code: attributes, occupancy, launches.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use super::raw;
use crate::error::DriverError;
use crate::sys::{CUfunction, CUstream};

/// What the driver tells of a compiled function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionAttribute {
    /// The most threads that a block may have.
    MaxThreadsPerBlock,
    /// Bytes of static shared memory of a block.
    StaticSharedBytes,
    /// Bytes of local memory of a thread: stack and spilled registers.
    LocalBytes,
    /// Registers of a thread.
    Registers,
    /// The version of the PTX it was compiled from, 10 · major + minor of the architecture.
    PtxVersion,
    /// The architecture of its machine code, 10 · major + minor.
    BinaryVersion,
    /// The most bytes of dynamic shared memory that a launch may ask for.
    MaxDynamicSharedBytes,
}

impl FunctionAttribute {
    /// The number of the attribute in cuda.h.
    const fn number(self) -> c_int {
        match self {
            FunctionAttribute::MaxThreadsPerBlock => 0,
            FunctionAttribute::StaticSharedBytes => 1,
            FunctionAttribute::LocalBytes => 3,
            FunctionAttribute::Registers => 4,
            FunctionAttribute::PtxVersion => 5,
            FunctionAttribute::BinaryVersion => 6,
            FunctionAttribute::MaxDynamicSharedBytes => 8,
        }
    }
}

/// An attribute of a function.
///
/// # Safety
/// `function` belongs to a module that is loaded.
pub unsafe fn attribute(
    function: CUfunction,
    attribute: FunctionAttribute,
) -> Result<i32, DriverError> {
    let mut value = 0;
    // SAFETY: as the caller promises; `value` is there to be written.
    unsafe { raw::cuFuncGetAttribute(&mut value, attribute.number(), function)? };
    Ok(value)
}

/// Allows launches of a function to ask for up to `n_bytes` of dynamic shared memory; above 48 KB they must be allowed.
///
/// # Safety
/// `function` belongs to a module that is loaded.
pub unsafe fn allow_dynamic_shared(function: CUfunction, n_bytes: u32) -> Result<(), DriverError> {
    let attribute = FunctionAttribute::MaxDynamicSharedBytes.number();
    let n_bytes = c_int::try_from(n_bytes).unwrap_or(c_int::MAX);
    // SAFETY: as the caller promises.
    unsafe { raw::cuFuncSetAttribute(function, attribute, n_bytes) }
}

/// How many blocks of a function fit on one multiprocessor at once.
///
/// # Safety
/// `function` belongs to a module that is loaded.
pub unsafe fn blocks_per_multiprocessor(
    function: CUfunction,
    threads: u32,
    dynamic_shared_bytes: u32,
) -> Result<u32, DriverError> {
    let mut n_blocks = 0;
    let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
    // SAFETY: as the caller promises; `n_blocks` is there to be written.
    unsafe {
        raw::cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut n_blocks,
            function,
            threads,
            dynamic_shared_bytes as usize,
        )?
    };
    Ok(n_blocks.max(0) as u32)
}

/// The size of one launch: a grid along x of blocks along x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSize {
    /// Number of blocks; not 0.
    pub grid: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Enqueues a kernel whose only parameter is the struct at `params`, which the driver copies before it returns.
///
/// # Safety
/// `function` takes one parameter with the layout of `T` by value; what the kernel does with the addresses in it is
/// right; `function` and `stream` belong to the current context.
#[inline]
pub unsafe fn launch<T: Copy>(
    function: CUfunction,
    size: LaunchSize,
    stream: CUstream,
    params: &T,
) -> Result<(), DriverError> {
    // SAFETY: as the caller promises; there is one parameter, of this type.
    unsafe { launch_with(function, size, stream, [std::ptr::from_ref(params).cast()]) }
}

/// The same for blocks that wait for each other: none of them begins before the device has room for all. A grid that it can
/// never hold at once is refused.
///
/// # Safety
/// As for [`launch`].
#[inline]
pub unsafe fn launch_together<T: Copy>(
    function: CUfunction,
    size: LaunchSize,
    stream: CUstream,
    params: &T,
) -> Result<(), DriverError> {
    let LaunchSize {
        grid,
        threads,
        shared_bytes,
    } = size;
    let params = [std::ptr::from_ref(params).cast()];
    // SAFETY: as the caller promises; there is one parameter, of this type, and its list outlives the call.
    unsafe {
        raw::cuLaunchCooperativeKernel(
            function,
            grid,
            1,
            1,
            threads,
            1,
            1,
            shared_bytes,
            stream,
            params.as_ptr(),
        )
    }
}

/// Enqueues a kernel with a parameter behind each pointer, which the driver copies before it returns.
///
/// # Safety
/// As for [`launch`]; each pointer is valid, and behind it lies what the kernel's parameter of this place is.
#[inline]
pub unsafe fn launch_with<const N_PARAMS: usize>(
    function: CUfunction,
    size: LaunchSize,
    stream: CUstream,
    params: [*const c_void; N_PARAMS],
) -> Result<(), DriverError> {
    let LaunchSize {
        grid,
        threads,
        shared_bytes,
    } = size;
    let params = params.as_ptr();
    // SAFETY: as the caller promises; the list of parameters is as long as the kernel's, and outlives the call.
    unsafe {
        raw::cuLaunchKernel(
            function,
            grid,
            1,
            1,
            threads,
            1,
            1,
            shared_bytes,
            stream,
            params,
            null(),
        )
    }
}
