//! Whose memory is meant.

use std::fmt;

/// In whose memory a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Ordinary memory.
    Host,
    /// Memory of the CUDA device with this ordinal.
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Host => f.write_str("host memory"),
            Place::Cuda(ordinal) => write!(f, "memory of CUDA device {ordinal}"),
        }
    }
}
