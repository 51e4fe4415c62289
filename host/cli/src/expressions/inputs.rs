//! Parameters and tensors that named expressions read, on the host or in the memory of a GPU.

use std::sync::Arc;

use ferroflash::backend::cuda::{CudaDevice, DeviceBuffer};
use ferroflash::expression::ParamValue;
use ferroflash::{Inputs, Problem, Queue, ReadTensor, Scalar, Vector};
use half::bf16;
use rand::rngs::SmallRng;

use super::{Named, NamedMask, NamedScore};
use crate::bench::normal;
use crate::failure::Failure;

/// The cap of scores.
const CAP: f32 = 50.0;

/// Keys that a query sees before its own place.
const WINDOW: i32 = 1024;

/// Documents of a sequence.
const N_DOCUMENTS: usize = 32;

/// Blocks of 64 that see each other: 512 queries and keys.
const RUN: usize = 8;

/// What calls give the expressions.
#[derive(Default)]
pub struct Given {
    params: Vec<(&'static str, ParamValue)>,
    tensors: Vec<Tensor>,
}

/// A tensor with its name.
struct Tensor {
    name: &'static str,
    data: Data,
    shape: Vec<usize>,
    /// None: contiguous.
    strides: Option<Vec<i64>>,
}

/// Elements of a tensor.
enum Data {
    F32(Memory<f32>),
    Bf16(Memory<bf16>),
    I32(Memory<i32>),
}

/// Where they lie.
enum Memory<T: Scalar> {
    Host(Vec<T>),
    Device(DeviceBuffer<T>),
}

impl Given {
    /// What the expressions of a problem read, on the host.
    pub fn new(named: Named, problem: &Problem, random: &mut SmallRng) -> Result<Given, Failure> {
        let mut given = Given::default();
        let (batch, heads) = (problem.batch(), problem.heads_q());
        let slopes = || slopes(heads);
        match named.score {
            None | Some(NamedScore::Identity) => {}
            Some(NamedScore::Alibi) => given.slopes(slopes(), vec![heads]),
            Some(NamedScore::AlibiBatch) => {
                // Each batch entry has a little less of a penalty than the one before it.
                let of_entry = |entry: usize| {
                    let factor = 1.0 / (1.0 + entry as f32 / batch as f32);
                    slopes().into_iter().map(move |slope| slope * factor)
                };
                let all = (0..batch).flat_map(of_entry).collect();
                given.slopes(all, vec![batch, heads]);
            }
            Some(NamedScore::SoftCap) => given.params.push(("cap", CAP.into())),
            Some(NamedScore::SoftCapAlibi) => {
                given.params.push(("cap", CAP.into()));
                given.slopes(slopes(), vec![heads]);
            }
            Some(NamedScore::Bias) => given.tensors.push(bias(problem, random)?),
        }
        match named.mask {
            None | Some(NamedMask::Causal) => {}
            Some(NamedMask::Window) => given.params.push(("window", WINDOW.into())),
            Some(NamedMask::Document) => {
                let len = problem.seqlen_q().max(problem.seqlen_k());
                let of_sequence = (0..len).map(|place| (place * N_DOCUMENTS / len) as i32);
                given.tensors.push(Tensor {
                    name: "document",
                    data: Data::I32(Memory::Host(of_sequence.collect())),
                    shape: vec![batch, len],
                    strides: Some(vec![0, 1]),
                });
            }
            Some(NamedMask::Blocks) => {
                let [rows, columns] =
                    [problem.seqlen_q(), problem.seqlen_k()].map(|rows| rows.div_ceil(64));
                let of_row =
                    |row| (0..columns).map(move |column| (row / RUN == column / RUN).into());
                given.tensors.push(Tensor {
                    name: "blocks",
                    data: Data::I32(Memory::Host((0..rows).flat_map(of_row).collect())),
                    shape: vec![rows, columns],
                    strides: None,
                });
            }
        }
        Ok(given)
    }

    fn slopes(&mut self, slopes: Vec<f32>, shape: Vec<usize>) {
        self.tensors.push(Tensor {
            name: "slopes",
            data: Data::F32(Memory::Host(slopes)),
            shape,
            strides: None,
        });
    }

    /// A copy whose tensors lie in the memory of a GPU.
    pub fn on_device(&self, device: &Arc<CudaDevice>, queue: &Queue) -> Result<Given, Failure> {
        let mut tensors = Vec::new();
        for tensor in &self.tensors {
            tensors.push(Tensor {
                name: tensor.name,
                data: match &tensor.data {
                    Data::F32(memory) => Data::F32(memory.on_device(device, queue)?),
                    Data::Bf16(memory) => Data::Bf16(memory.on_device(device, queue)?),
                    Data::I32(memory) => Data::I32(memory.on_device(device, queue)?),
                },
                shape: tensor.shape.clone(),
                strides: tensor.strides.clone(),
            });
        }
        Ok(Given {
            params: self.params.clone(),
            tensors,
        })
    }

    /// The inputs with what the expressions read.
    pub fn put<'a>(&'a self, inputs: Inputs<'a>) -> Inputs<'a> {
        let params = self.params.iter();
        let inputs = params.fold(inputs, |inputs, &(name, value)| {
            inputs.score_param(name, value)
        });
        self.tensors.iter().fold(inputs, |inputs, tensor| {
            inputs.score_tensor(tensor.name, tensor.read())
        })
    }
}

impl Tensor {
    fn read(&self) -> ReadTensor<'_> {
        let data = match &self.data {
            Data::F32(memory) => memory.vector(),
            Data::Bf16(memory) => memory.vector(),
            Data::I32(memory) => memory.vector(),
        };
        let tensor = ReadTensor::new(data, &self.shape);
        match &self.strides {
            Some(strides) => tensor.strides(strides),
            None => tensor,
        }
    }
}

impl<T: Scalar> Memory<T> {
    fn on_device(&self, device: &Arc<CudaDevice>, queue: &Queue) -> Result<Memory<T>, Failure> {
        let buffer = match self {
            Memory::Host(data) => DeviceBuffer::from_slice(device, data, queue)?,
            Memory::Device(buffer) => {
                DeviceBuffer::from_slice(device, &buffer.to_vec(queue)?, queue)?
            }
        };
        Ok(Memory::Device(buffer))
    }

    fn vector(&self) -> Vector<'_> {
        match self {
            Memory::Host(data) => data.into(),
            Memory::Device(buffer) => buffer.slice().into(),
        }
    }
}

/// ALiBi's slopes: 2^(−8 (h + 1) / heads).
pub fn slopes(heads: usize) -> Vec<f32> {
    let exponent = |head: usize| -8.0 * (head + 1) as f32 / heads as f32;
    (0..heads).map(|head| exponent(head).exp2()).collect()
}

/// A bias that all batch entries share.
fn bias(problem: &Problem, random: &mut SmallRng) -> Result<Tensor, Failure> {
    let (heads, len_q, len_k) = (problem.heads_q(), problem.seqlen_q(), problem.seqlen_k());
    let of_head = len_q.checked_mul(len_k);
    let n_elems = of_head.and_then(|of_head| of_head.checked_mul(heads));
    let Some(numbers) = n_elems.and_then(|n_elems| normal(n_elems, random).ok()) else {
        return Err(Failure::Option(format!(
            "--score bias: no memory for {heads} heads of {len_q} times {len_k} elements"
        )));
    };
    let strides = [0, len_q * len_k, len_k, 1].map(|stride| stride as i64);
    Ok(Tensor {
        name: "bias",
        data: Data::Bf16(Memory::Host(numbers)),
        shape: vec![problem.batch(), heads, len_q, len_k],
        strides: Some(strides.to_vec()),
    })
}
