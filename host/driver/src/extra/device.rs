//! The devices that the driver reports, and their properties.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::error::DriverError;
use crate::sys::CUdevice;

calls! {
    unsafe fn start(flags: c_uint) = cuInit(flags: c_uint);
    unsafe fn get_count() -> c_int = cuDeviceGetCount(&mut);
    unsafe fn get_device(ordinal: c_int) -> CUdevice = cuDeviceGet(&mut, ordinal: c_int);
    unsafe fn get_name(device: CUdevice, to: *mut c_char, len: c_int) =
        cuDeviceGetName(to: *mut c_char, len: c_int, device: CUdevice);
    unsafe fn get_attribute(device: CUdevice, which: c_int) -> c_int =
        cuDeviceGetAttribute(&mut, which: c_int, device: CUdevice);
    unsafe fn get_total_memory(device: CUdevice) -> usize = cuDeviceTotalMem_v2(&mut, device: CUdevice);
    unsafe fn get_uuid(device: CUdevice) -> [u8; 16] = cuDeviceGetUuid_v2(&mut, device: CUdevice);
}

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;

/// A numeric property of a device, numbered as in cuda.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Attribute {
    /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
    MultiprocessorCount = 16,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
    ComputeCapabilityMajor = 75,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
    ComputeCapabilityMinor = 76,
    /// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`: the most bytes of shared memory of a block, if its function is allowed more than 48
    /// KB: see [`super::function::allow_dynamic_shared`].
    MaxSharedBytesPerBlock = 97,
}

/// Initialises the driver, if needed, and counts its devices: without any, 0 and no error.
pub fn count() -> Result<u32, DriverError> {
    // SAFETY: the driver may be started any number of times.
    match unsafe { start(0).and_then(|()| get_count()) } {
        Err(error) if error.code() == Some(NO_DEVICE) => Ok(0),
        counted => Ok(counted?.max(0) as u32),
    }
}

/// The device with this index in the driver's list.
pub fn get(ordinal: u32) -> Result<CUdevice, DriverError> {
    // SAFETY: a device that does not exist is refused, here and below.
    unsafe { get_device(c_int::try_from(ordinal).unwrap_or(c_int::MAX)) }
}

/// Its name, such as `NVIDIA H200`.
pub fn name(device: CUdevice) -> Result<String, DriverError> {
    let mut name = [0_u8; 256];
    let len = name.len() as c_int - 1;
    // SAFETY: the driver writes at most `len` bytes; the last one stays 0.
    unsafe { get_name(device, name.as_mut_ptr().cast::<c_char>(), len)? };
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// A property; negative ones, which mean that there is none, are 0.
pub fn attribute(device: CUdevice, which: Attribute) -> Result<u32, DriverError> {
    // SAFETY: as above.
    Ok(unsafe { get_attribute(device, which as c_int)? }.max(0) as u32)
}

/// Bytes of its memory.
pub fn total_memory(device: CUdevice) -> Result<usize, DriverError> {
    // SAFETY: as above.
    unsafe { get_total_memory(device) }
}

/// Its identity: the same in every process; a slice of a partitioned GPU has its own.
pub fn uuid(device: CUdevice) -> Result<[u8; 16], DriverError> {
    // SAFETY: as above.
    unsafe { get_uuid(device) }
}
