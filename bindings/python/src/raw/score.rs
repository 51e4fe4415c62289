//! What a call gives the names in expressions: numbers, and addresses of tensors.

use ferroflash::expression::{ElementType, Expression, ParamValue, Type};
use ferroflash::{Error, Inputs, ReadTensor};
use pyo3::prelude::*;

use super::memory::Location;

/// Numbers, and of tensors the address, the shape and the strides in elements: in the order of [`Taken`].
#[derive(Default, FromPyObject)]
pub(crate) struct Values(Vec<f64>, Vec<(u64, Vec<usize>, Vec<i64>)>);

/// What the expressions of a problem take: what the score does, then what the mask does beside it.
#[derive(Clone, Default)]
pub(crate) struct Taken {
    params: Vec<(&'static str, Type)>,
    tensors: Vec<(&'static str, ElementType)>,
}

impl Taken {
    pub(crate) fn of(expressions: [Option<&'static Expression>; 2]) -> Taken {
        let mut taken = Taken::default();
        for expression in expressions.into_iter().flatten() {
            for param in expression.params() {
                let name = param.name.as_str();
                if !taken.params.iter().any(|(other, _)| *other == name) {
                    taken.params.push((name, param.ty));
                }
            }
            for tensor in expression.tensors() {
                let name = tensor.name.as_str();
                if !taken.tensors.iter().any(|(other, _)| *other == name) {
                    taken.tensors.push((name, tensor.element));
                }
            }
        }
        taken
    }

    /// The tensors, with the types of their elements.
    pub(super) fn tensors(&self) -> &[(&'static str, ElementType)] {
        &self.tensors
    }

    /// The inputs with what a call gives.
    ///
    /// # Safety
    /// As for [`Location::tensor`], of the elements that each tensor reaches over, which are of the type that it is taken for.
    pub(super) unsafe fn give<'a>(
        &self,
        mut inputs: Inputs<'a>,
        location: Location<'a>,
        values: &Values,
    ) -> Result<Inputs<'a>, Error> {
        let Values(numbers, tensors) = values;
        for (&(name, ty), &number) in self.params.iter().zip(numbers) {
            let value = match ty {
                Type::I32 => ParamValue::I32(number as i32),
                Type::F32 | Type::Bool => ParamValue::F32(number as f32),
            };
            inputs = inputs.score_param(name, value);
        }
        for (&(name, element), (address, shape, strides)) in self.tensors.iter().zip(tensors) {
            // SAFETY: as the caller promises.
            let memory =
                unsafe { location.elements(name, *address, reach(shape, strides), element)? };
            inputs = inputs.score_tensor(name, ReadTensor::new(memory, shape).strides(strides));
        }
        Ok(inputs)
    }
}

/// Elements from the first to the last. Strides below 0 are refused later.
fn reach(shape: &[usize], strides: &[i64]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    let steps = shape.iter().zip(strides);
    steps.fold(1, |reach: usize, (&n, &stride)| {
        let stride = usize::try_from(stride).unwrap_or(0);
        reach.saturating_add((n - 1).saturating_mul(stride))
    })
}
