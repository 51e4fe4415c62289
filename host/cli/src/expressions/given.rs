//! What the expressions of a file's problem are given: parameters by options, tensors by the file.

use std::collections::HashMap;
use std::str::FromStr;

use ferroflash::expression::{Expression, ParamValue, Type};
use ferroflash::{Inputs, ReadTensor, Vector};
use half::{bf16, f16};
use safetensors::tensor::TensorView;

use crate::failure::Failure;
use crate::input::elements;

/// `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamWord {
    name: String,
    value: String,
}

impl FromStr for ParamWord {
    type Err = String;

    fn from_str(word: &str) -> Result<ParamWord, String> {
        let (name, value) = word.split_once('=').ok_or("allowed: NAME=VALUE")?;
        Ok(ParamWord {
            name: name.trim().to_owned(),
            value: value.trim().to_owned(),
        })
    }
}

/// A tensor of a file that is none of attention's own.
#[derive(Clone, Debug)]
pub struct Other {
    shape: Vec<usize>,
    elements: Elements,
}

#[derive(Clone, Debug)]
enum Elements {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Other {
    /// `None`: expressions read no such elements.
    pub fn read(tensor: &TensorView) -> Option<Other> {
        let bytes = tensor.data();
        let elements = match tensor.dtype() {
            safetensors::Dtype::BF16 => Elements::Bf16(elements(bytes)),
            safetensors::Dtype::F16 => Elements::F16(elements(bytes)),
            safetensors::Dtype::F32 => Elements::F32(elements(bytes)),
            safetensors::Dtype::I32 => {
                let (numbers, _) = bytes.as_chunks();
                Elements::I32(numbers.iter().copied().map(i32::from_le_bytes).collect())
            }
            _ => return None,
        };
        Some(Other {
            shape: tensor.shape().to_vec(),
            elements,
        })
    }

    fn view(&self) -> ReadTensor<'_> {
        let elements: Vector = match &self.elements {
            Elements::Bf16(elements) => elements.into(),
            Elements::F16(elements) => elements.into(),
            Elements::F32(elements) => elements.into(),
            Elements::I32(elements) => elements.into(),
        };
        ReadTensor::new(elements, &self.shape)
    }
}

/// What a call gives the expressions of its problem. What is missing, or unknown, the library says.
#[derive(Debug)]
pub struct FileGiven<'a> {
    params: Vec<(&'a str, ParamValue)>,
    tensors: Vec<(&'a str, &'a Other)>,
}

impl<'a> FileGiven<'a> {
    /// For these expressions.
    pub fn new(
        expressions: &[&'a Expression],
        words: &'a [ParamWord],
        others: &'a HashMap<String, Other>,
    ) -> Result<FileGiven<'a>, Failure> {
        let params = words.iter().map(|ParamWord { name, value }| {
            let mut taken = expressions.iter().flat_map(|of| of.params());
            let param = taken.find(|param| param.name == *name);
            let value = match param.map(|param| param.ty) {
                Some(Type::I32) => value.parse().map(ParamValue::I32).ok(),
                _ => value.parse().map(ParamValue::F32).ok(),
            };
            let refusal = || Failure::Option(format!("--param {name}: the value is not a number of the type that the expression takes"));
            Ok((name.as_str(), value.ok_or_else(refusal)?))
        });
        let mut tensors = Vec::new();
        for tensor in expressions.iter().flat_map(|of| of.tensors()) {
            let name = tensor.name.as_str();
            let is_new = tensors.iter().all(|&(other, _)| other != name);
            if let Some(other) = others.get(name).filter(|_| is_new) {
                tensors.push((name, other));
            }
        }
        Ok(FileGiven {
            params: params.collect::<Result<_, Failure>>()?,
            tensors,
        })
    }

    /// The inputs with it.
    pub fn put(&self, inputs: Inputs<'a>) -> Inputs<'a> {
        let params = self.params.iter();
        let inputs = params.fold(inputs, |inputs, &(name, value)| {
            inputs.score_param(name, value)
        });
        self.tensors.iter().fold(inputs, |inputs, &(name, other)| {
            inputs.score_tensor(name, other.view())
        })
    }
}
