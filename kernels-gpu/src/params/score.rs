//! What kernels are given for an expression that edits their scores: see [`crate::spec::Constant::Score`].

use ferroflash_expression::{MAX_PARAMS, MAX_TENSORS, ScoreTensor};

use super::{Argument, KernelParams, Slot};

/// What the expressions of a launch read. Kernels have no code for it until expressions are put into their text, which then names the places
/// of this struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreParams {
    /// Tensors, in the order in which the expressions name them.
    pub tensors: [ScoreTensor; MAX_TENSORS],
    /// Parameters, by their bits, in that order.
    pub values: [u32; MAX_PARAMS],
    /// What edited scores are measured in, positive and finite: a kernel's edited score times this is the expression's value.
    pub unit: f32,
    /// 1 / unit.
    pub inverse_unit: f32,
    /// No gap at the end.
    pub padding: [u32; 2],
}

impl KernelParams for ScoreParams {
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
        for (argument, tensor) in Argument::SCORE_TENSORS.into_iter().zip(&mut self.tensors) {
            f(Slot::Vector(argument, &mut tensor.base));
        }
    }
}

const _: () = assert!(size_of::<ScoreParams>() == 4 * 56 + 4 * 16 + 16);
