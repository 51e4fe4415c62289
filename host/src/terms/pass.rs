//! The passes of attention.

/// Which pass is to run.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// o and lse.
    Forward,
    /// o, lse and the weights.
    ForwardWithWeights,
    /// d_q, d_k and d_v.
    Backward,
}

impl Pass {
    /// In which direction it goes: `forward` or `backward`.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Forward | Pass::ForwardWithWeights => "forward",
            Pass::Backward => "backward",
        }
    }
}
