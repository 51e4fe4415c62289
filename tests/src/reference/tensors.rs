//! Gradients of the tensors that a score reads: what they should be, and the comparison.

use ferroflash::Dtype;
use ferroflash_expression::ElementType;

use super::{Reference, precision};
use crate::beside::rounding;
use crate::cases::Case;
use crate::compare::{Closeness, Comparison};
use crate::edits::gradients::TensorGradient;
use crate::edits::{Edits, Sequence};
use crate::oracle::{self, Inputs};
use crate::tolerance::{Arithmetic, Quantity};
use crate::trial::Results;

impl Reference {
    /// Adds to the gradients of tensors what the sequence gives whose results these are.
    pub(super) fn add_tensors(
        &self,
        case: &Case,
        (inputs, first): (&Inputs, usize),
        edits: Option<&Edits>,
        (d_o, d_lse): (&[f64], Option<&[f64]>),
        tensors: &mut [TensorGradient],
    ) {
        let Some(edits) = edits.filter(|_| !tensors.is_empty()) else {
            return;
        };
        let products_are_rounded = case.dtype == Dtype::F32;
        let pairs = oracle::pair_gradients(inputs, &self.output, d_o, d_lse, products_are_rounded);
        let sizes = inputs.sizes;
        let precision = precision(case, inputs);
        edits.add_gradients(Sequence { first, sizes }, precision, &pairs, tensors);
    }

    /// Compares the gradients of tensors.
    pub(super) fn judge_tensors(
        &self,
        case: &Case,
        results: &Results,
        mut close: Closeness,
    ) -> Result<Closeness, String> {
        if results.tensors.len() != self.tensors.len() {
            let (given, needed) = (results.tensors.len(), self.tensors.len());
            return Err(format!("{given} gradients of tensors, needed: {needed}"));
        }
        for (actual, reference) in results.tensors.iter().zip(&self.tensors) {
            let mut shape = [1; 4];
            shape[..reference.of.shape.len()].copy_from_slice(&reference.of.shape);
            let mut terms = reference.terms.clone();
            if reference.of.element == ElementType::F16 {
                // Half of the smallest number, where the rule has that of another type.
                let smallest = 2f64.powi(-25) / rounding(case.dtype).0;
                terms
                    .relative
                    .iter_mut()
                    .for_each(|terms| *terms += smallest);
            }
            let comparison = self.comparison(
                case,
                Quantity::DScoreTensor,
                shape,
                case.sizes.batch * case.sizes.heads_q,
                actual,
                &reference.values,
                &terms,
            );
            let comparison = Comparison {
                arithmetic: coarser(self.arithmetic, reference.of.element),
                ..comparison
            };
            let checked = comparison.check();
            let checked =
                checked.map_err(|mismatch| format!("{}: {mismatch}", reference.of.name))?;
            close = close.and(checked);
        }
        Ok(close)
    }
}

/// The gradients of a case's tensors before anything is added.
pub(super) fn zero_gradients(case: &Case, edits: Option<&Edits>) -> Vec<TensorGradient> {
    let Some(edits) = edits else {
        return Vec::new();
    };
    let problem = case.problem().and_then(|problem| edits.edit(&problem));
    let all = problem.map(|problem| edits.differentiable(&problem));
    let all = all.unwrap_or_default().into_iter();
    all.map(TensorGradient::zero).collect()
}

/// Of what products are made of, and so o, and a tensor's element type the coarser one.
fn coarser(arithmetic: Arithmetic, element: ElementType) -> Arithmetic {
    match (arithmetic, element) {
        (Arithmetic::Bf16, _) | (_, ElementType::Bf16) => Arithmetic::Bf16,
        (Arithmetic::F16, _) | (_, ElementType::F16) => Arithmetic::F16,
        (exact, _) => exact,
    }
}
