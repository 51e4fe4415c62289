//! What kernels are compiled for, and which devices run that.

/// The virtual architecture that a kernel is compiled for; [`Arch::runs_on`] says where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Ampere and newer: `mma.sync`, `cp.async`, `ldmatrix`.
    Sm80,
    /// Ada and newer: conversions of `e4m3` besides.
    Sm89,
    /// Hopper alone: `wgmma`, TMA, `setmaxnreg`.
    Sm90a,
}

/// Which devices run what is compiled for an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those of its compute capability and of every greater one.
    Newer,
    /// Those of its compute capability only: what is specific to an architecture ends with it.
    Alone,
}

impl Arch {
    /// As compilers spell it: `sm_80`.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm89 => "sm_89",
            Arch::Sm90a => "sm_90a",
        }
    }

    /// The lowest compute capability that runs it, as `(major, minor)`.
    pub const fn compute_capability(self) -> (u32, u32) {
        match self {
            Arch::Sm80 => (8, 0),
            Arch::Sm89 => (8, 9),
            Arch::Sm90a => (9, 0),
        }
    }

    /// Which devices beside those of [`Arch::compute_capability`] run it.
    pub const fn reach(self) -> Reach {
        match self {
            Arch::Sm80 | Arch::Sm89 => Reach::Newer,
            Arch::Sm90a => Reach::Alone,
        }
    }

    /// Whether a device of this compute capability runs it.
    pub fn runs_on(self, compute_capability: (u32, u32)) -> bool {
        match self.reach() {
            Reach::Newer => self.compute_capability() <= compute_capability,
            Reach::Alone => self.compute_capability() == compute_capability,
        }
    }
}
