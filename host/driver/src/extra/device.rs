//! What the driver tells of a device beyond the attributes that `cust` names.

use std::ffi::c_int;

use cust_raw::CUdevice;

use super::raw;
use crate::error::DriverError;

/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
const MAX_SHARED_BYTES_PER_BLOCK: c_int = 97;

/// The identity of a device: the same in every process; a slice of a partitioned GPU has its own.
pub fn uuid(device: CUdevice) -> Result<[u8; 16], DriverError> {
    let mut uuid = [0; 16];
    // SAFETY: `uuid` is there to be written; a device that does not exist is refused.
    unsafe { raw::cuDeviceGetUuid_v2(&mut uuid, device)? };
    Ok(uuid)
}

/// The most bytes of shared memory that a block may have, where its function is allowed more than 48 KB: see
/// [`super::function::allow_dynamic_shared`].
pub fn max_shared_bytes_per_block(device: CUdevice) -> Result<u32, DriverError> {
    let mut n_bytes = 0;
    // SAFETY: `n_bytes` is there to be written; a device that does not exist is refused.
    unsafe { raw::cuDeviceGetAttribute(&mut n_bytes, MAX_SHARED_BYTES_PER_BLOCK, device)? };
    Ok(n_bytes.max(0) as u32)
}
