//! What the kernel is given that merges attention over two parts of the keys.

use super::TensorView;
use super::argument::{Argument, KernelParams, Slot};

/// Parameters of the kernel that merges o and lse of two parts of the keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MergeParams {
    /// O of the first part.
    pub o_1: TensorView,
    /// O of the second part.
    pub o_2: TensorView,
    /// Output: O over the keys of both.
    pub o: TensorView,
    /// `f32 [batch, heads, seqlen]`: L of the first part.
    pub lse_1: u64,
    /// `f32 [batch, heads, seqlen]`: L of the second part.
    pub lse_2: u64,
    /// Output, `f32 [batch, heads, seqlen]`: L over the keys of both; 0 where nobody wants it.
    pub lse: u64,
    /// Rows of all heads and batch entries: `batch · heads · seqlen`.
    pub n_rows: u32,
    /// Rows of a head.
    pub seqlen: u32,
    /// Heads of a batch entry.
    pub heads: u32,
    /// Columns; a multiple of 8.
    pub head_dim: u32,
}

impl KernelParams for MergeParams {
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
        f(Slot::Tensor(Argument::O1, &mut self.o_1));
        f(Slot::Tensor(Argument::O2, &mut self.o_2));
        f(Slot::Tensor(Argument::O, &mut self.o));
        f(Slot::Vector(Argument::Lse1, &mut self.lse_1));
        f(Slot::Vector(Argument::Lse2, &mut self.lse_2));
        f(Slot::Vector(Argument::Lse, &mut self.lse));
    }
}

const _: () = assert!(size_of::<MergeParams>() == 3 * 32 + 3 * 8 + 4 * 4);
