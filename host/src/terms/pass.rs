//! The passes of attention.

/// Which pass is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// o and lse.
    Forward,
    /// o, lse and the weights.
    ForwardWithWeights,
    /// d_q, d_k and d_v.
    Backward,
}
