//! The reference against the evaluator.

use super::harness::Launch;
use super::reference::{self, Data, Value};
use super::tree::params;
use crate::{Evaluator, Expression, Index, MAX_RANK, ParamValue, ScoreIndices, Tensors, Type};

impl Tensors for Vec<Data> {
    fn shape(&self, tensor: usize) -> [usize; MAX_RANK] {
        let mut shape = [1; MAX_RANK];
        for (extent, &len) in shape.iter_mut().zip(&self[tensor].len) {
            *extent = len as usize;
        }
        shape
    }

    fn f32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> f32 {
        f32::from_bits(self.i32(tensor, indices) as u32)
    }

    fn i32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> i32 {
        let data = &self[tensor];
        let indices = indices.map(|index| index as i32);
        data.read(&indices[..data.len.len()]) as i32
    }
}

/// The value that the evaluator has for an element, where the reference knows it; both have to be the same.
pub fn agree(expression: &Expression, launch: &Launch, element: usize) -> Option<Value> {
    let at = launch.place(element);
    let found = reference::evaluate(expression, &at).pop()?;
    let values = params().into_iter().zip(&launch.params);
    let values: Vec<ParamValue> = values
        .map(|(param, &bits)| match param.ty {
            Type::F32 => ParamValue::F32(f32::from_bits(bits)),
            _ => ParamValue::I32(bits as i32),
        })
        .collect();
    let mut place = ScoreIndices::default();
    for index in Index::ALL {
        place.set(index, at.indices[reference::index_place(index)]);
    }
    let mut evaluator = Evaluator::<f64>::new(expression, &values, &launch.tensors).unwrap();
    let score = f64::from(at.x) * f64::from(at.scale);
    match (evaluator.evaluate(&place, score), found) {
        (crate::Value::Num(value), Value::F32(number)) if number.known() => {
            let near = (value - number.value).abs() <= number.error || value == number.value;
            assert!(near, "{value} instead of {number:?}: {expression:#?}");
        }
        (crate::Value::Int(value), Value::I32(Some((wanted, _)))) => {
            assert_eq!(value, wanted, "{expression:#?}");
        }
        (crate::Value::Cond(value), Value::Bool(Some(wanted))) => {
            assert_eq!(value, wanted, "{expression:#?}");
        }
        _ => {}
    }
    Some(found)
}
