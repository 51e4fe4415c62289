//! The CPU backend: exact attention, tiled, with the online softmax, on all cores.
//!
//! | file | what it is |
//! |---|---|
//! | `forward.rs` | o and lse |
//! | `backward/` | gradients of q, k and v, of sinks, and of tensors that a score reads |
//! | `weights.rs` | chosen rows of the weights of one head |
//! | `merge.rs` | o and lse over two parts of the keys, merged |
//! | `softmax.rs` | the online softmax; sinks |
//! | `exp2.rs` | the exponential |
//! | `mask.rs` | masking panels of scores |
//! | `blocks.rs` | block masks |
//! | `edit.rs` | scores that an expression edits |
//! | `dropout.rs` | weights that are dropped |
//! | `quantize.rs` | a tensor to 8 bits |
//! | `dequantize.rs` | q, k and v out of 8 bits |
//! | `machine.rs` | the vector unit; the two matrix products |
//! | `pool.rs` | the threads, in forked processes, too |
//! | `buffer.rs` | working memory: tiles and panels |
//! | `rows.rs` | rows of strided tensors, to and from f32 |
//! | `rotary.rs` | rotary position embedding; rows appended to a cache |
//! | `sequences.rs`, `cut.rs` | where each sequence's rows lie |
//! | `sizes.rs` | sizes of a sequence; which rows see which keys |
//!
//! Arithmetic is f32 throughout, on inputs of any element type. Work is cut into tasks whose results do not depend on
//! how they are cut, so that results are bit-equal run after run and for any number of threads. Vector instructions are
//! chosen at run time (`pulp`): AVX-512, AVX2 with FMA, Neon; on another processor the same code runs without vectors,
//! correct and slow.

mod backward;
mod blocks;
mod buffer;
mod cut;
mod dequantize;
mod dropout;
mod edit;
mod exp2;
mod forward;
mod machine;
mod mask;
pub(crate) mod merge;
pub(crate) mod pool;
pub(crate) mod quantize;
pub(crate) mod rotary;
mod rows;
mod sequences;
mod sizes;
mod softmax;
#[cfg(test)]
mod tests;
pub(crate) mod weights;

use std::mem;

use ferroflash_expression::ElementType;
use float8::F8E4M3;
use half::{bf16, f16};

use crate::arguments::{Argument, Operand, Operands};
use crate::dtype::{Dtype, Element, Scalar, Widen};
use crate::error::ProblemError;
use crate::lengths::Paged;
use crate::problem::Problem;
use crate::tensor::{Location, Tensor, TensorMut, VectorMut};
use crate::validate::{self, Pass};
use backward::tensors::{self, Elements, TensorGradient};
use dequantize::Values;
use machine::Machine;
use rows::{Scales, View, rows_mut};
use sequences::Sequences;
use sizes::Sizes;

/// Computes what the pass writes. The arguments have passed [`crate::validate`] for this problem and lie on the host; an error
/// says which one has not or does not.
pub(crate) fn run(
    problem: &Problem,
    pass: Pass,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    let machine = Machine::detect();
    pool::install(|| match problem.dtype() {
        Dtype::Bf16 => typed::<bf16>(machine, problem, pass, operands),
        Dtype::F16 => typed::<f16>(machine, problem, pass, operands),
        Dtype::F32 => typed::<f32>(machine, problem, pass, operands),
    })
}

fn typed<T: Element>(
    machine: Machine,
    problem: &Problem,
    pass: Pass,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    on_host(validate::fit(problem, pass, &operands.describe())?)?;
    match pass {
        Pass::Forward if problem.fp8().is_some() => {
            forward_pass::<F8E4M3, F8E4M3, T>(machine, problem, operands)
        }
        Pass::Forward if problem.fp8_kv().is_some() => {
            forward_pass::<T, F8E4M3, T>(machine, problem, operands)
        }
        Pass::Forward => forward_pass::<T, T, T>(machine, problem, operands),
        Pass::Backward if problem.fp8().is_some() => {
            backward_pass_in_8_bits::<T>(machine, problem, operands)
        }
        Pass::Backward => backward_pass::<T>(machine, problem, operands),
        // Planning has refused: this algorithm does not hold the weights.
        Pass::ForwardWithWeights => {
            let argument = Argument::Weights;
            Err(ProblemError::NotTaken { argument })
        }
    }
}

/// With queries of type `Q`, keys and values of type `K`, and o of type `T`.
fn forward_pass<Q: Scalar + Widen, K: Scalar + Widen, T: Element>(
    machine: Machine,
    problem: &Problem,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    let sequences = Sequences::new(problem, operands)?;
    let pages = Paged::of(problem, |argument| operands.numbers(argument))?;
    let [of_k, of_v] = [Argument::KDescale, Argument::VDescale].map(|argument| {
        let (of, values) = (problem.fp8_kv()?, vector::<f32>(operands, argument)?);
        Some(Scales { values, of })
    });
    let k = view::<K>(operands, Argument::K)?;
    let v = match problem.values_in_keys() {
        true => k.first_columns(problem.head_dim_v()),
        false => view::<K>(operands, Argument::V)?,
    };
    let inputs = forward::Inputs {
        q: view::<Q>(operands, Argument::Q)?.times(query_factors(operands)),
        k: k.in_pages(pages).scaled(of_k),
        v: v.in_pages(pages).scaled(of_v),
        descales: descales(problem, operands),
        sinks: vector(operands, Argument::Sinks),
    };
    let mut o = output(operands, Argument::O)?;
    let mut o_rows = output_rows::<T>(Argument::O, &mut o, problem.group_size())?;
    match operands.take(Argument::Lse) {
        Some(Operand::VectorMut(mut lse)) => {
            let lse = lse.host::<f32>().ok_or(missing(Argument::Lse))?;
            forward::forward(machine, &sequences, &inputs, &mut o_rows, lse);
            sequences.rows_q.ungroup(lse);
        }
        _ => {
            let mut lse = vec![0.0; problem.n_rows() as usize];
            forward::forward(machine, &sequences, &inputs, &mut o_rows, &mut lse);
        }
    }
    Ok(())
}

/// The scales, if q, k and v are in 8 bits.
fn descales<'a>(
    problem: &Problem,
    operands: &mut Operands<'a>,
) -> Option<[forward::Descales<'a>; 3]> {
    let [of_q, of_k] = problem.scale_layouts()?;
    let mut of = |argument, layout| {
        let values = vector(operands, argument)?;
        Some(forward::Descales { values, layout })
    };
    Some([
        of(Argument::QDescale, of_q)?,
        of(Argument::KDescale, of_k)?,
        of(Argument::VDescale, of_k)?,
    ])
}

/// With q, k and v out of 8 bits.
fn backward_pass_in_8_bits<T: Element>(
    machine: Machine,
    problem: &Problem,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    let mut operands = mem::take(operands);
    let q = Values::<T>::take(problem, &mut operands, Argument::Q)?;
    let k = Values::<T>::take(problem, &mut operands, Argument::K)?;
    let v = Values::<T>::take(problem, &mut operands, Argument::V)?;
    for (argument, values) in [(Argument::Q, &q), (Argument::K, &k), (Argument::V, &v)] {
        operands.put(argument, Tensor::bshd(&values.data, values.shape)?);
    }
    backward_pass::<T>(machine, &problem.dequantized(), &mut operands)
}

fn backward_pass<T: Element>(
    machine: Machine,
    problem: &Problem,
    operands: &mut Operands,
) -> Result<(), ProblemError> {
    let sequences = Sequences::new(problem, operands)?;
    let inputs = backward::Inputs {
        q: view::<T>(operands, Argument::Q)?.times(query_factors(operands)),
        k: view::<T>(operands, Argument::K)?,
        v: view::<T>(operands, Argument::V)?,
        o: view::<T>(operands, Argument::O)?,
        d_o: view::<T>(operands, Argument::DO)?,
        d_lse: vector(operands, Argument::DLse),
        sinks: vector(operands, Argument::Sinks),
    };
    let mut d_q = output(operands, Argument::DQ)?;
    let mut d_k = output(operands, Argument::DK)?;
    let mut d_v = output(operands, Argument::DV)?;
    let mut d_sinks = operands.take(Argument::DSinks);
    let d_sinks = match &mut d_sinks {
        Some(Operand::VectorMut(d_sinks)) => Some(d_sinks.host().ok_or(missing(Argument::DSinks))?),
        _ => None,
    };
    let gradients = Argument::SCORE_TENSOR_GRADIENTS.into_iter().enumerate();
    let gradients = gradients.filter_map(|(place, argument)| match operands.take(argument)? {
        Operand::VectorMut(gradient) => Some((place, gradient)),
        _ => None,
    });
    let mut d_tensors: Vec<(usize, VectorMut)> = gradients.collect();
    let outputs = backward::Outputs {
        d_q: &mut output_rows::<T>(Argument::DQ, &mut d_q, problem.group_size())?,
        d_k: &mut output_rows::<T>(Argument::DK, &mut d_k, 1)?,
        d_v: &mut output_rows::<T>(Argument::DV, &mut d_v, 1)?,
        d_sinks,
        d_tensors: d_tensors
            .iter_mut()
            .map(|(place, gradient)| tensor_gradient(problem, *place, gradient))
            .collect::<Result<_, _>>()?,
    };
    let lse = vector::<f32>(operands, Argument::Lse).ok_or(missing(Argument::Lse))?;
    let lse = sequences.rows_q.grouped(lse);
    backward::backward(machine, &sequences, &inputs, lse, outputs);
    Ok(())
}

/// The gradient of a tensor that the score reads.
fn tensor_gradient<'a>(
    problem: &Problem,
    place: usize,
    gradient: &'a mut VectorMut<'_>,
) -> Result<TensorGradient<'a>, ProblemError> {
    let argument = Argument::SCORE_TENSOR_GRADIENTS[place];
    let parts = problem.edit_parts().ok_or(missing(argument))?;
    let (read, _) = parts.gradient_of(place).map_err(|_| missing(argument))?;
    let elements = match parts.tensors()[place].tensor.element {
        ElementType::F32 => gradient.host().map(Elements::F32),
        ElementType::F16 => gradient.host().map(Elements::F16),
        ElementType::Bf16 => gradient.host().map(Elements::Bf16),
        ElementType::I32 => None,
    };
    let extents = read.dims().iter().map(|&index| problem.extent_of(index));
    Ok(TensorGradient {
        place,
        read: *read,
        extents: extents.collect(),
        elements: elements.ok_or(missing(argument))?,
    })
}

/// Bytes that gradients of tensors take in addition to [`extra_bytes`], with the current number of threads: their sums, and each thread's working memory.
pub(crate) fn tensor_gradient_bytes(problem: &Problem) -> u64 {
    let per_thread = tensors::bytes_per_thread(Machine::detect(), &Sizes::of(problem));
    per_thread.saturating_mul(pool::n_threads() as u64)
}

/// Bytes that a pass takes in addition to inputs and outputs, with the current number of threads: a reference to each row that it writes, statistics
/// of each row, and each thread's working memory. Linear in the sequence length.
pub(crate) fn extra_bytes(problem: &Problem, pass: Pass) -> u64 {
    let (machine, sizes) = (Machine::detect(), Sizes::of(problem));
    let (n_threads, reference) = (pool::n_threads() as u64, size_of::<&mut [f32]>() as u64);
    let n_rows = problem.n_rows();
    let [batch, rows, heads, _] = problem.shape_k();
    let n_keys = product(&[batch, rows, heads]);
    let (rows_bytes, per_thread) = match pass {
        Pass::Forward | Pass::ForwardWithWeights => (
            n_rows.saturating_mul(reference),
            forward::bytes_per_thread(machine, &sizes, problem.batch()),
        ),
        Pass::Backward => {
            let statistics = n_rows.saturating_mul(2 * size_of::<f32>() as u64);
            let n_written = n_rows.saturating_add(n_keys.saturating_mul(2));
            (
                statistics.saturating_add(n_written.saturating_mul(reference)),
                backward::bytes_per_thread(machine, &sizes, problem.batch()),
            )
        }
    };
    rows_bytes.saturating_add(n_threads * per_thread)
}

/// The product, which saturates.
fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |product: u64, &factor| {
        product.saturating_mul(factor as u64)
    })
}

/// Refuses memory of a GPU.
fn on_host(given: Location) -> Result<(), ProblemError> {
    let needed = Location::Host;
    match given == needed {
        true => Ok(()),
        false => Err(ProblemError::OtherDevice { given, needed }),
    }
}

fn missing(argument: Argument) -> ProblemError {
    ProblemError::Missing { argument }
}

/// A tensor to read.
fn view<'a, T: Scalar + Widen>(
    operands: &mut Operands<'a>,
    argument: Argument,
) -> Result<View<'a, T>, ProblemError> {
    match operands.take(argument) {
        Some(Operand::Tensor(tensor)) => {
            let data = tensor.host::<T>().ok_or(missing(argument))?;
            Ok(View::new(data, tensor.layout()))
        }
        _ => Err(missing(argument)),
    }
}

/// A vector to read, if there is one.
fn vector<'a, T: Scalar>(operands: &mut Operands<'a>, argument: Argument) -> Option<&'a [T]> {
    match operands.take(argument) {
        Some(Operand::Vector(vector)) => vector.host(),
        _ => None,
    }
}

/// The factor of each head's queries and their gradients: the factor of its scores.
fn query_factors<'a>(operands: &mut Operands<'a>) -> Option<&'a [f32]> {
    vector(operands, Argument::HeadScale)
}

/// A tensor to write.
fn output<'a>(
    operands: &mut Operands<'a>,
    argument: Argument,
) -> Result<TensorMut<'a>, ProblemError> {
    match operands.take(argument) {
        Some(Operand::TensorMut(tensor)) => Ok(tensor),
        _ => Err(missing(argument)),
    }
}

/// Its rows.
fn output_rows<'a, T: Scalar>(
    argument: Argument,
    tensor: &'a mut TensorMut,
    group_size: usize,
) -> Result<Vec<&'a mut [T]>, ProblemError> {
    let layout = tensor.layout();
    let data = tensor.host::<T>().ok_or(missing(argument))?;
    rows_mut(data, layout, group_size).ok_or(ProblemError::OutputAliases { argument, layout })
}
