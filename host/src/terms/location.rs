//! Whose memory is meant.

use std::fmt;

/// In whose memory a tensor lies.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Ordinary memory.
    Host,
    /// Memory of the CUDA device with this ordinal.
    Cuda(u32),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Host => f.write_str("host memory"),
            Location::Cuda(ordinal) => write!(f, "memory of CUDA device {ordinal}"),
        }
    }
}
