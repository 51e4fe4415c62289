//! What the kernel that gives the gradient of a tensor is given, which a score reads.

use ferroflash_expression::MAX_TENSORS;

use super::StandardParams;
use super::argument::{Argument, KernelParams, Slot};

/// What the elements of a gradient are: [`TensorGradientParams::element`].
pub const GRADIENT_F32: u32 = 0;
/// 16 bits: IEEE binary16.
pub const GRADIENT_F16: u32 = 1;
/// 16 bits: bfloat16.
pub const GRADIENT_BF16: u32 = 2;

/// Parameters of the kernel that gives the gradient of a tensor which a score reads at its own place: an element for each query and key, and
/// for each of `batches` and `heads`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TensorGradientParams {
    /// The pass: tensors, `lse`, `delta`, and what the score reads. There are no scores and no weights in memory.
    pub pass: StandardParams,
    /// Address of the gradient.
    pub gradient: u64,
    /// Elements from one batch entry of the gradient to the next.
    pub batch_stride: u64,
    /// From one head to the next.
    pub head_stride: u64,
    /// From one query to the next.
    pub q_stride: u64,
    /// From one key to the next.
    pub k_stride: u64,
    /// Batch entries of the gradient: those of q, or 1, which all of these add to.
    pub batches: u32,
    /// Heads of the gradient: those of q, those of k, or 1. As many heads of q as share one add to it.
    pub heads: u32,
    /// Which tensor of the score's it is.
    pub place: u32,
    /// [`GRADIENT_F32`], [`GRADIENT_F16`] or [`GRADIENT_BF16`].
    pub element: u32,
}

impl KernelParams for TensorGradientParams {
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
        self.pass.slots(f);
        let place = self.place as usize % MAX_TENSORS;
        f(Slot::Vector(
            Argument::SCORE_TENSOR_GRADIENTS[place],
            &mut self.gradient,
        ));
    }
}

const _: () =
    assert!(size_of::<TensorGradientParams>() == size_of::<StandardParams>() + 5 * 8 + 4 * 4);
