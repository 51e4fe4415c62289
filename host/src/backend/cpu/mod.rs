//! The product's path on a machine without a GPU: exact attention, tiled, with the online softmax, on all cores.
//!
//! | file | what it is |
//! |---|---|
//! | `forward.rs` | o and lse |
//! | `backward/` | gradients of q, k and v |
//! | `softmax.rs` | the online softmax |
//! | `exp2.rs` | the exponential |
//! | `mask.rs` | masking panels of scores |
//! | `machine.rs` | the vector unit; the two matrix products |
//! | `buffer.rs` | working memory: tiles and panels |
//! | `rows.rs` | rows of strided tensors, to and from f32 |
//! | `sizes.rs` | sizes; which rows see which keys |
//!
//! Arithmetic is f32 throughout, on inputs of any element type. Work is cut into tasks whose results do not depend on
//! how they are cut, so that results are bit-equal run after run and for any number of threads. Vector instructions are
//! chosen at run time (`pulp`): AVX-512, AVX2 with FMA, Neon; on another processor the same code runs without vectors,
//! correct and slow.

mod backward;
mod buffer;
mod exp2;
mod forward;
mod machine;
mod mask;
mod rows;
mod sizes;
mod softmax;
#[cfg(test)]
mod tests;

use half::{bf16, f16};

use crate::dtype::{Dtype, Element};
use crate::error::{Argument, ProblemError};
use crate::problem::Problem;
use crate::tensor::{Gradients, Lse, OutputGradients, Place, Saved, Tensor, TensorMut};
use crate::validate::Pass;
use machine::Machine;
use rows::{View, rows_mut};
use sizes::Sizes;

/// Computes o and lse. The tensors have passed [`crate::validate`] for this problem and lie on the host; an error
/// says which one has not or does not.
pub(crate) fn forward(
    problem: &Problem,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    o: &mut TensorMut,
    lse: &mut [f32],
) -> Result<(), ProblemError> {
    let machine = Machine::detect();
    match problem.dtype {
        Dtype::Bf16 => typed_forward::<bf16>(machine, problem, q, k, v, o, lse),
        Dtype::F16 => typed_forward::<f16>(machine, problem, q, k, v, o, lse),
        Dtype::F32 => typed_forward::<f32>(machine, problem, q, k, v, o, lse),
    }
}

fn typed_forward<T: Element>(
    machine: Machine,
    problem: &Problem,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    o: &mut TensorMut,
    lse: &mut [f32],
) -> Result<(), ProblemError> {
    let sizes = Sizes::of(problem);
    let inputs = forward::Inputs {
        q: view::<T>(Argument::Q, q, problem.shape_q())?,
        k: view::<T>(Argument::K, k, problem.shape_k())?,
        v: view::<T>(Argument::V, v, problem.shape_k())?,
    };
    let mut o_rows = output_rows::<T>(Argument::O, o, problem.shape_q(), sizes.group_size)?;
    check_rows(problem, Argument::Lse, lse.len())?;
    forward::forward(machine, &sizes, &inputs, &mut o_rows, lse);
    sizes.ungroup(lse);
    Ok(())
}

/// Computes the gradients. The tensors have passed [`crate::validate`] for this problem and lie on the host; an error
/// says which one has not or does not.
pub(crate) fn backward(
    problem: &Problem,
    saved: &Saved,
    of_output: &OutputGradients,
    gradients: &mut Gradients,
) -> Result<(), ProblemError> {
    let machine = Machine::detect();
    match problem.dtype {
        Dtype::Bf16 => typed_backward::<bf16>(machine, problem, saved, of_output, gradients),
        Dtype::F16 => typed_backward::<f16>(machine, problem, saved, of_output, gradients),
        Dtype::F32 => typed_backward::<f32>(machine, problem, saved, of_output, gradients),
    }
}

fn typed_backward<T: Element>(
    machine: Machine,
    problem: &Problem,
    saved: &Saved,
    of_output: &OutputGradients,
    gradients: &mut Gradients,
) -> Result<(), ProblemError> {
    let sizes = Sizes::of(problem);
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let inputs = backward::Inputs {
        q: view::<T>(Argument::Q, &saved.q, shape_q)?,
        k: view::<T>(Argument::K, &saved.k, shape_k)?,
        v: view::<T>(Argument::V, &saved.v, shape_k)?,
        o: view::<T>(Argument::O, &saved.o, shape_q)?,
        d_o: view::<T>(Argument::DO, &of_output.d_o, shape_q)?,
        d_lse: match &of_output.d_lse {
            Some(d_lse) => Some(rows(problem, Argument::DLse, d_lse)?),
            None => None,
        },
    };
    let mut d_q = output_rows::<T>(Argument::DQ, &mut gradients.d_q, shape_q, sizes.group_size)?;
    let mut d_k = output_rows::<T>(Argument::DK, &mut gradients.d_k, shape_k, 1)?;
    let mut d_v = output_rows::<T>(Argument::DV, &mut gradients.d_v, shape_k, 1)?;
    let lse = rows(problem, Argument::Lse, &saved.lse)?;
    let outputs = backward::Outputs {
        d_q: &mut d_q,
        d_k: &mut d_k,
        d_v: &mut d_v,
    };
    backward::backward(machine, &sizes, &inputs, sizes.grouped(lse), outputs);
    Ok(())
}

/// Bytes that a pass takes beside inputs and outputs, with the threads there are: a reference to each row that it
/// writes, statistics of each row, and what each thread works in. Linear in the sequence length.
pub(crate) fn extra_bytes(problem: &Problem, pass: Pass) -> u64 {
    let (machine, sizes) = (Machine::detect(), Sizes::of(problem));
    let (n_threads, reference) = (
        rayon::current_num_threads() as u64,
        size_of::<&mut [f32]>() as u64,
    );
    let n_rows = product(&[problem.batch, problem.heads_q, problem.seqlen_q]);
    let n_keys = product(&[problem.batch, problem.heads_k, problem.seqlen_k]);
    let (rows_bytes, per_thread) = match pass {
        Pass::Forward | Pass::ForwardWithWeights => (
            n_rows.saturating_mul(reference),
            forward::bytes_per_thread(machine, &sizes),
        ),
        Pass::Backward => {
            let statistics = n_rows.saturating_mul(2 * size_of::<f32>() as u64);
            let n_written = n_rows.saturating_add(n_keys.saturating_mul(2));
            (
                statistics.saturating_add(n_written.saturating_mul(reference)),
                backward::bytes_per_thread(machine, &sizes),
            )
        }
    };
    rows_bytes.saturating_add(n_threads * per_thread)
}

/// The product, or the largest number where it is larger.
fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1, |product: u64, &factor| {
        product.saturating_mul(factor as u64)
    })
}

/// The tensor's memory, if it is the kind that the problem asks for.
fn view<'a, T: Element>(
    argument: Argument,
    tensor: &Tensor<'a>,
    shape: [usize; 4],
) -> Result<View<'a, T>, ProblemError> {
    let description = tensor.describe();
    check(
        argument,
        description.layout.shape(),
        shape,
        description.place,
    )?;
    let mismatch = ProblemError::DtypeMismatch {
        argument,
        given: description.dtype,
        needed: T::DTYPE,
    };
    tensor
        .host::<T>()
        .map(|data| View::new(data, tensor.layout()))
        .ok_or(mismatch)
}

/// The rows of an output, if it is the kind that the problem asks for.
fn output_rows<'a, T: Element>(
    argument: Argument,
    tensor: &'a mut TensorMut,
    shape: [usize; 4],
    group_size: usize,
) -> Result<Vec<&'a mut [T]>, ProblemError> {
    let description = tensor.describe();
    let layout = description.layout;
    check(argument, layout.shape(), shape, description.place)?;
    let mismatch = ProblemError::DtypeMismatch {
        argument,
        given: description.dtype,
        needed: T::DTYPE,
    };
    let data = tensor.host::<T>().ok_or(mismatch)?;
    rows_mut(data, layout, group_size).ok_or(ProblemError::OutputAliases { argument, layout })
}

fn check(
    argument: Argument,
    given: [usize; 4],
    needed: [usize; 4],
    place: Place,
) -> Result<(), ProblemError> {
    if place != Place::Host {
        return Err(ProblemError::OtherDevice {
            given: place,
            needed: Place::Host,
        });
    }
    if given != needed {
        return Err(ProblemError::ShapeMismatch {
            argument,
            given,
            needed,
        });
    }
    Ok(())
}

/// Statistics of the problem's rows, or their gradient, as they lie on the host.
fn rows<'a>(
    problem: &Problem,
    argument: Argument,
    given: &Lse<'a>,
) -> Result<&'a [f32], ProblemError> {
    let elsewhere = ProblemError::OtherDevice {
        given: given.describe().place,
        needed: Place::Host,
    };
    let data = given.host().ok_or(elsewhere)?;
    check_rows(problem, argument, data.len())?;
    Ok(data)
}

fn check_rows(problem: &Problem, argument: Argument, given: usize) -> Result<(), ProblemError> {
    let needed = problem.batch * problem.heads_q * problem.seqlen_q;
    if given != needed {
        let (given, needed) = (given as u64, needed as u64);
        return Err(ProblemError::ElementCount {
            argument,
            given,
            needed,
        });
    }
    Ok(())
}
