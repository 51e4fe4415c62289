//! What runs a plan, and in which schedule.

use std::fmt;

/// What runs a plan.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The kernels, on a GPU.
    Cuda,
    /// Ordinary Rust on all cores.
    Cpu,
    /// The kernels, on the emulator; for tests.
    Emulated,
}

/// A schedule of the same mathematics.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Holds the scores in memory: the baseline, and the way to get the weights.
    Standard,
    /// FlashAttention, the first paper's: outer loop over keys, a block of threads for each head; compute capability 8.0 and newer. It is here to be compared with the
    /// others, and runs only where it is asked for by name.
    Flash1,
    /// FlashAttention-2: `mma.sync`, `cp.async`; compute capability 8.0 and newer.
    Flash2,
    /// FlashAttention-3: TMA, `wgmma`; compute capability 9.0.
    Flash3,
    /// The CPU's: tiles with an online softmax, on all cores.
    Tiled,
}

impl Algorithm {
    /// All, the most wanted first.
    pub const BY_PREFERENCE: [Algorithm; 5] = [
        Algorithm::Flash3,
        Algorithm::Flash2,
        Algorithm::Flash1,
        Algorithm::Standard,
        Algorithm::Tiled,
    ];

    /// Whether it runs only where it is asked for by name.
    pub const fn is_for_comparison(self) -> bool {
        matches!(self, Algorithm::Flash1)
    }

    /// Its name, as the command takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Standard => "standard",
            Algorithm::Flash1 => "flash1",
            Algorithm::Flash2 => "flash2",
            Algorithm::Flash3 => "flash3",
            Algorithm::Tiled => "tiled",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Backend {
    /// Its name, as the command takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Cuda => "cuda",
            Backend::Cpu => "cpu",
            Backend::Emulated => "emulated",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
