//! Functions of loaded code: attributes, occupancy, launches.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null;

use crate::entry::entry;
use crate::error::DriverError;
use crate::sys::{CUfunction, CUstream};

/// An attribute of a compiled function, numbered as in cuda.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum FunctionAttribute {
    /// Bytes of local memory of a thread: stack and spilled registers.
    LocalBytes = 3,
    /// Registers of a thread.
    Registers = 4,
    /// The most bytes of dynamic shared memory that a launch may ask for.
    MaxDynamicSharedBytes = 8,
}

calls! {
    unsafe fn get_attribute(function: CUfunction, attribute: c_int) -> c_int =
        cuFuncGetAttribute(&mut, attribute: c_int, function: CUfunction);
    unsafe fn set_attribute(function: CUfunction, attribute: c_int, value: c_int) =
        cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int);
}

/// An attribute of a function.
///
/// # Safety
/// `function` belongs to a module that is loaded.
pub unsafe fn attribute(
    function: CUfunction,
    attribute: FunctionAttribute,
) -> Result<i32, DriverError> {
    // SAFETY: as the caller promises.
    unsafe { get_attribute(function, attribute as c_int) }
}

/// Allows launches of a function to ask for up to `n_bytes` of dynamic shared memory; above 48 KB they must be allowed.
///
/// # Safety
/// `function` belongs to a module that is loaded.
pub unsafe fn allow_dynamic_shared(function: CUfunction, n_bytes: u32) -> Result<(), DriverError> {
    let attribute = FunctionAttribute::MaxDynamicSharedBytes as c_int;
    // SAFETY: as the caller promises.
    unsafe {
        set_attribute(
            function,
            attribute,
            n_bytes.try_into().unwrap_or(c_int::MAX),
        )
    }
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
    let mut n_blocks: c_int = 0;
    let to = &raw mut n_blocks;
    let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
    let shared = dynamic_shared_bytes as usize;
    entry!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        to: *mut c_int, function: CUfunction, threads: c_int, shared: usize
    ))?;
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
/// `function` takes one parameter by value, and such a value is at `params`; the kernel may use the addresses in it as it does; `function` and
/// `stream` belong to the current context.
#[inline]
pub unsafe fn launch<T: ?Sized>(
    function: CUfunction,
    size: LaunchSize,
    stream: CUstream,
    params: *const T,
) -> Result<(), DriverError> {
    // SAFETY: as the caller promises; there is one parameter.
    unsafe { launch_with(function, size, stream, [params.cast()]) }
}

/// The same for blocks that wait for each other: none of them begins before the device has room for all. A grid that can never be resident at once is refused.
///
/// # Safety
/// As for [`launch`].
#[inline]
pub unsafe fn launch_together<T: ?Sized>(
    function: CUfunction,
    size: LaunchSize,
    stream: CUstream,
    params: *const T,
) -> Result<(), DriverError> {
    let params: [*const c_void; 1] = [params.cast()];
    let params = params.as_ptr();
    let LaunchSize {
        grid,
        threads,
        shared_bytes,
    } = size;
    let one: c_uint = 1;
    entry!(cuLaunchCooperativeKernel(
        function: CUfunction, grid: c_uint, one: c_uint, one: c_uint, threads: c_uint, one: c_uint, one: c_uint,
        shared_bytes: c_uint, stream: CUstream, params: *const *const c_void
    ))?;
    Ok(())
}

/// Enqueues a kernel with one parameter at each pointer, which the driver copies before it returns.
///
/// # Safety
/// As for [`launch`]; each pointer is valid, and points to a value of the kernel's parameter of this index.
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
    let (one, params, extra): (c_uint, _, _) = (1, params.as_ptr(), null());
    entry!(cuLaunchKernel(
        function: CUfunction, grid: c_uint, one: c_uint, one: c_uint, threads: c_uint, one: c_uint, one: c_uint,
        shared_bytes: c_uint, stream: CUstream, params: *const *const c_void, extra: *const *const c_void
    ))?;
    Ok(())
}
