//! What flash1's forward kernel is given. Its backward kernel takes [`super::BackwardParams`].

use super::argument::{Argument, KernelParams, Slot};
use super::{Scale, Shape, TensorView, Window};

/// Parameters of flash1's forward kernel. Rows in the workspace are padded to whole blocks of queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flash1ForwardParams {
    /// Queries.
    pub q: TensorView,
    /// Keys.
    pub k: TensorView,
    /// Values.
    pub v: TensorView,
    /// Output.
    pub o: TensorView,
    /// `f32 [batch, heads_q, seqlen_q]`: natural logarithm of the row's sum of exponentials.
    pub lse: u64,
    /// Workspace, `f32 [batch, heads_q, padded_q, head_dim]`: O over the keys so far, of each warp's rows in the order of the registers
    /// that hold them; `head_dim` is the kernel's.
    pub o_accum: u64,
    /// Workspace, `f32 [batch, heads_q, padded_q]`: l, the sums of exponentials over the keys so far.
    pub l: u64,
    /// Workspace, `f32 [batch, heads_q, padded_q]`: m, the scores that these exponentials are taken from.
    pub m: u64,
    /// As in [`super::ForwardParams`].
    pub sinks: u64,
    /// Sizes.
    pub shape: Shape,
    /// Window.
    pub window: Window,
    /// Scale.
    pub scale: Scale,
    /// Always 0.
    pub reserved: u32,
}

impl KernelParams for Flash1ForwardParams {
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
        f(Slot::Tensor(Argument::Q, &mut self.q));
        f(Slot::Tensor(Argument::K, &mut self.k));
        f(Slot::Tensor(Argument::V, &mut self.v));
        f(Slot::Tensor(Argument::O, &mut self.o));
        f(Slot::Vector(Argument::Lse, &mut self.lse));
        f(Slot::Workspace(&mut self.o_accum));
        f(Slot::Workspace(&mut self.l));
        f(Slot::Workspace(&mut self.m));
        f(Slot::Vector(Argument::Sinks, &mut self.sinks));
    }
}

const _: () = assert!(size_of::<Flash1ForwardParams>() == 4 * 32 + 5 * 8 + 32 + 12 + 8 + 4);
