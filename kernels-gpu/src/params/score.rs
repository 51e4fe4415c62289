//! Parameters of an expression that edits scores: see [`crate::spec::Constant::Score`].

use ferroflash_expression::{MAX_PARAMS, MAX_TENSORS, ScoreTensor};

use super::{Argument, KernelParams, Slot};

/// The inputs of a launch's expressions. Kernels have no code for them until expressions are inserted into their text, which then uses the offsets
/// of this struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreParams {
    /// Tensors, in the order in which the expressions name them.
    pub tensors: [ScoreTensor; MAX_TENSORS],
    /// Parameters, by their bits, in that order.
    pub values: [u32; MAX_PARAMS],
    /// The unit of edited scores, positive and finite: a kernel's edited score times this is the expression's value.
    pub unit: f32,
    /// 1 / unit.
    pub inverse_unit: f32,
    /// Padding.
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
