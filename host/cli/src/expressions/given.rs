//! What calls give the expressions of a problem: by options and a file, or made here for expressions that have names.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use ferroflash::backend::cuda::StreamRef;
use ferroflash::expression::{Expression, ParamValue, Type};
use ferroflash::{Inputs, Problem, ReadTensor};
use half::{bf16, f16};
use rand::rngs::SmallRng;
use safetensors::tensor::TensorView;

use super::{Named, NamedMask, NamedScore};
use crate::failure::Failure;
use crate::input::elements;
use crate::tensors::{Memory, Place, normal};

/// The cap of scores.
const CAP: f32 = 50.0;

/// Keys that a query sees before its own place.
const WINDOW: i32 = 1024;

/// Documents of a sequence.
const N_DOCUMENTS: usize = 32;

/// Blocks of 64 that see each other: 512 queries and keys.
const RUN: usize = 8;

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
        let [name, value] = [name, value].map(|part| part.trim().to_owned());
        Ok(ParamWord { name, value })
    }
}

/// Parameters and tensors by name. What is missing, or unknown, the library says.
#[derive(Clone, Debug, Default)]
pub struct Given {
    params: Vec<(String, ParamValue)>,
    tensors: Vec<(String, Arc<ScoreTensor>)>,
}

/// A tensor that expressions read.
#[derive(Debug)]
pub struct ScoreTensor {
    elements: Elements,
    shape: Vec<usize>,
    /// None: contiguous.
    strides: Option<Vec<i64>>,
}

#[derive(Debug)]
enum Elements {
    Bf16(Memory<bf16>),
    F16(Memory<f16>),
    F32(Memory<f32>),
    I32(Memory<i32>),
}

impl ScoreTensor {
    /// One of a file; `None`: expressions read no such elements.
    pub fn read(tensor: &TensorView) -> Option<ScoreTensor> {
        let bytes = tensor.data();
        Some(ScoreTensor {
            elements: match tensor.dtype() {
                safetensors::Dtype::BF16 => Elements::Bf16(Memory::Host(elements(bytes))),
                safetensors::Dtype::F16 => Elements::F16(Memory::Host(elements(bytes))),
                safetensors::Dtype::F32 => Elements::F32(Memory::Host(elements(bytes))),
                safetensors::Dtype::I32 => Elements::I32(Memory::Host(elements(bytes))),
                _ => return None,
            },
            shape: tensor.shape().to_vec(),
            strides: None,
        })
    }

    fn view(&self) -> ReadTensor<'_> {
        let elements = match &self.elements {
            Elements::Bf16(memory) => memory.vector(),
            Elements::F16(memory) => memory.vector(),
            Elements::F32(memory) => memory.vector(),
            Elements::I32(memory) => memory.vector(),
        };
        let tensor = ReadTensor::new(elements, &self.shape);
        match &self.strides {
            Some(strides) => tensor.strides(strides),
            None => tensor,
        }
    }

    fn copy(&self, from: StreamRef, to: Place) -> Result<ScoreTensor, Failure> {
        Ok(ScoreTensor {
            elements: match &self.elements {
                Elements::Bf16(memory) => Elements::Bf16(memory.copy(from, to)?),
                Elements::F16(memory) => Elements::F16(memory.copy(from, to)?),
                Elements::F32(memory) => Elements::F32(memory.copy(from, to)?),
                Elements::I32(memory) => Elements::I32(memory.copy(from, to)?),
            },
            shape: self.shape.clone(),
            strides: self.strides.clone(),
        })
    }
}

impl Given {
    /// What options and a file give these expressions.
    pub fn new(
        expressions: &[&Expression],
        words: &[ParamWord],
        others: &HashMap<String, Arc<ScoreTensor>>,
    ) -> Result<Given, Failure> {
        let params = words.iter().map(|ParamWord { name, value }| {
            let mut taken = expressions.iter().flat_map(|of| of.params());
            let param = taken.find(|param| param.name == *name);
            let value = match param.map(|param| param.ty) {
                Some(Type::I32) => value.parse().map(ParamValue::I32).ok(),
                _ => value.parse().map(ParamValue::F32).ok(),
            };
            let refusal = || Failure::Option(format!("--param {name}: the value is not a number of the type that the expression takes"));
            Ok((name.clone(), value.ok_or_else(refusal)?))
        });
        let params = params.collect::<Result<_, Failure>>()?;
        let mut names: Vec<_> = expressions
            .iter()
            .flat_map(|of| of.tensors())
            .map(|tensor| &tensor.name)
            .collect();
        names.sort();
        names.dedup();
        let there = |name: &String| Some((name.clone(), Arc::clone(others.get(name)?)));
        let tensors = names.into_iter().filter_map(there).collect();
        Ok(Given { params, tensors })
    }

    /// What expressions that have names read, on the host.
    pub fn random(
        named: Named,
        problem: &Problem,
        random: &mut SmallRng,
    ) -> Result<Given, Failure> {
        let mut given = Given::default();
        let (batch, heads) = (problem.batch(), problem.heads_q());
        let slopes = |entries: usize| {
            // Each batch entry has a little less of a penalty than the one before it.
            let factor = |entry: usize| 1.0 / (1.0 + entry as f32 / batch as f32);
            let of_entry = |entry| {
                slopes(heads)
                    .into_iter()
                    .map(move |slope| slope * factor(entry))
            };
            Elements::F32(Memory::Host((0..entries).flat_map(of_entry).collect()))
        };
        let cap = ("cap".to_owned(), CAP.into());
        match named.score {
            None | Some(NamedScore::Identity) => {}
            Some(NamedScore::Alibi) => given.tensor("slopes", slopes(1), &[heads], None),
            Some(NamedScore::AlibiBatch) => {
                given.tensor("slopes", slopes(batch), &[batch, heads], None);
            }
            Some(NamedScore::SoftCap) => given.params.push(cap),
            Some(NamedScore::SoftCapAlibi) => {
                given.params.push(cap);
                given.tensor("slopes", slopes(1), &[heads], None);
            }
            Some(NamedScore::Bias) => given.bias(problem, random)?,
        }
        let (len_q, len_k) = (problem.seqlen_q(), problem.seqlen_k());
        match named.mask {
            None | Some(NamedMask::Causal) => {}
            Some(NamedMask::Window) => given.params.push(("window".to_owned(), WINDOW.into())),
            Some(NamedMask::Document) => {
                let len = len_q.max(len_k);
                let of_sequence = (0..len).map(|place| (place * N_DOCUMENTS / len) as i32);
                let of_sequence = Elements::I32(Memory::Host(of_sequence.collect()));
                given.tensor("document", of_sequence, &[batch, len], Some(vec![0, 1]));
            }
            Some(NamedMask::Blocks) => {
                let [rows, columns] = [len_q, len_k].map(|rows| rows.div_ceil(64));
                let of_row =
                    |row| (0..columns).map(move |column| (row / RUN == column / RUN).into());
                let blocks = Elements::I32(Memory::Host((0..rows).flat_map(of_row).collect()));
                given.tensor("blocks", blocks, &[rows, columns], None);
            }
        }
        Ok(given)
    }

    fn tensor(
        &mut self,
        name: &str,
        elements: Elements,
        shape: &[usize],
        strides: Option<Vec<i64>>,
    ) {
        let shape = shape.to_vec();
        let tensor = Arc::new(ScoreTensor {
            elements,
            shape,
            strides,
        });
        self.tensors.push((name.to_owned(), tensor));
    }

    /// A bias that all batch entries share.
    fn bias(&mut self, problem: &Problem, random: &mut SmallRng) -> Result<(), Failure> {
        let (heads, len_q, len_k) = (problem.heads_q(), problem.seqlen_q(), problem.seqlen_k());
        let of_head = len_q.checked_mul(len_k);
        let n_elems = of_head.and_then(|of_head| of_head.checked_mul(heads));
        let Some(numbers) = n_elems.and_then(|n_elems| normal(n_elems, random).ok()) else {
            return Err(Failure::Option(format!(
                "--score bias: no memory for {heads} heads of {len_q} times {len_k} elements"
            )));
        };
        let strides = [0, len_q * len_k, len_k, 1].map(|stride| stride as i64);
        let shape = [problem.batch(), heads, len_q, len_k];
        self.tensor(
            "bias",
            Elements::Bf16(Memory::Host(numbers)),
            &shape,
            Some(strides.to_vec()),
        );
        Ok(())
    }

    /// A copy.
    pub fn copy(&self, from: StreamRef, to: Place) -> Result<Given, Failure> {
        let tensors = self.tensors.iter();
        let tensors =
            tensors.map(|(name, tensor)| Ok((name.clone(), Arc::new(tensor.copy(from, to)?))));
        Ok(Given {
            params: self.params.clone(),
            tensors: tensors.collect::<Result<_, Failure>>()?,
        })
    }

    /// The inputs with it.
    pub fn put<'a>(&'a self, inputs: Inputs<'a>) -> Inputs<'a> {
        let inputs = self.params.iter().fold(inputs, |inputs, (name, value)| {
            inputs.score_param(name, *value)
        });
        self.tensors.iter().fold(inputs, |inputs, (name, tensor)| {
            inputs.score_tensor(name, tensor.view())
        })
    }
}

/// ALiBi's slopes: 2^(−8 (h + 1) / heads).
pub fn slopes(heads: usize) -> Vec<f32> {
    let exponent = |head: usize| -8.0 * (head + 1) as f32 / heads as f32;
    (0..heads).map(|head| exponent(head).exp2()).collect()
}
