//! How the forward pass divides the keys of a sequence.

use std::fmt;
use std::str::FromStr;

/// How the keys of a sequence are divided among blocks of threads, in the forward pass on a GPU: see
/// [`ProblemBuilder::split_kv`](super::ProblemBuilder::split_kv).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SplitKv {
    /// The planner chooses what it predicts to be fastest for the batch, the longest lengths and the device.
    #[default]
    Auto,
    /// The keys are not divided.
    Never,
    /// Splits of this many keys, rounded up to whole blocks of the kernel; at least 1. The splits of a sequence then depend only on its own length,
    /// so its results have the same bits in any batch.
    Keys(usize),
}

impl SplitKv {
    /// Keys of a split, if given.
    pub fn keys(self) -> Option<usize> {
        match self {
            SplitKv::Keys(keys) => Some(keys),
            SplitKv::Auto | SplitKv::Never => None,
        }
    }
}

/// Splits of this many keys.
impl From<usize> for SplitKv {
    fn from(keys: usize) -> Self {
        SplitKv::Keys(keys)
    }
}

/// The inverse of `Display`; a number that does not fit `usize` is refused.
impl FromStr for SplitKv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(SplitKv::Auto),
            "never" => Ok(SplitKv::Never),
            keys => keys
                .parse()
                .map(SplitKv::Keys)
                .map_err(|_| format!("{keys}: it must be auto, never, or a number of keys")),
        }
    }
}

/// `auto`, `never`, or the keys.
impl fmt::Display for SplitKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SplitKv::Auto => f.write_str("auto"),
            SplitKv::Never => f.write_str("never"),
            SplitKv::Keys(keys) => write!(f, "{keys}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_it_writes() {
        for split_kv in [SplitKv::Auto, SplitKv::Never, SplitKv::Keys(512)] {
            assert_eq!(split_kv.to_string().parse(), Ok(split_kv));
        }
        for text in ["", "Auto", "-1", "1.5"] {
            assert!(text.parse::<SplitKv>().is_err(), "{text}");
        }
    }
}
