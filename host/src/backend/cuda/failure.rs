//! From an error of `cust` back to what the driver said.

use cust::error::CudaError;
use ferroflash_driver::last_failure;

use crate::error::DriverError;

/// The error behind one of `cust`, with the call that failed and the driver's own name and text.
///
/// `cust` keeps neither the call nor a code that it does not know; the forwarders beneath it keep both, for the last
/// call that failed in this thread. An error that `cust` made up itself has no such call.
pub(super) fn of_cust(error: CudaError) -> DriverError {
    let behind = last_failure()
        .filter(|failure| error == CudaError::UnknownError || failure.code == error as u32);
    DriverError::from(match behind {
        Some(failure) => failure.into(),
        None => ferroflash_driver::DriverError::of_code("cust", error as u32),
    })
}
