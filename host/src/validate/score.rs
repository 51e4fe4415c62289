//! A call's inputs of score expressions → kernel arguments: every name resolved, every type, size and stride checked.

use ferroflash_expression::{
    ExpressionError, Index, MAX_TENSORS, Param, ParamValue, ScoreTensor, Tensor, Use,
};
use ferroflash_kernels::params::ScoreParams;

use crate::arguments::{Named, Operands, ScoreInputs};
use crate::dtype::ScalarType;
use crate::error::ScoreError;
use crate::problem::{DimUse, EditParts, Problem, ReadOf};
use crate::tensor::{ReadTensor, Vector};
use crate::terms::Pass;

/// The most elements of a dimension: kernels count to it.
const MAX_EXTENT: usize = 1 << 30;

/// Whether the expressions of a problem can be combined.
pub(super) fn expressions(problem: &Problem) -> Result<(), ScoreError> {
    let fault = problem.edit_parts().and_then(|parts| parts.fault());
    refuse(fault, |error| ScoreError::Together { error })
}

/// The backward pass needs the derivative of the score.
pub(super) fn derivative(problem: &Problem, pass: Pass) -> Result<(), ScoreError> {
    let parts = problem.edit_parts().filter(|_| pass == Pass::Backward);
    let fault = parts.and_then(|parts| parts.no_derivative());
    refuse(fault, |error| ScoreError::NoDerivative { error })
}

fn refuse(
    fault: Option<&ExpressionError>,
    refusal: fn(ExpressionError) -> ScoreError,
) -> Result<(), ScoreError> {
    match fault {
        Some(error) => Err(refusal(error.clone())),
        None => Ok(()),
    }
}

/// Checks the inputs that the call gives the expressions of a problem with valid sizes, and adds them to the arguments where expressions expect them.
pub(super) fn bind(problem: &Problem, operands: &mut Operands) -> Result<(), ScoreError> {
    let parts = problem.edit_parts();
    if parts.is_none() && operands.names_nothing() {
        return Ok(());
    }
    let inputs = *operands.score_inputs();
    no_more(&inputs.params, "parameters")?;
    no_more(&inputs.tensors, "tensors")?;
    let (params, tensors) = match parts {
        Some(parts) => (parts.params(), parts.tensors()),
        None => (&[][..], &[][..]),
    };
    known(&inputs.params, "parameter", params, |param| &param.name)?;
    known(&inputs.tensors, "tensor", tensors, |read| &read.tensor.name)?;
    let gradients = operands.take_score_gradients().tensors;
    no_more(&gradients, "gradients of tensors")?;
    let of_gradient = "gradient of tensor";
    known(&gradients, of_gradient, tensors, |read| &read.tensor.name)?;
    let Some(parts) = parts else {
        return Ok(());
    };
    let mut given = ScoreParams::default();
    for (place, param) in given.values.iter_mut().zip(params) {
        *place = value(param, &inputs)?;
    }
    given.unit = parts.unit().of_launch(problem.scale(), &mut given.values);
    given.inverse_unit = 1.0 / given.unit;
    // No list of them: a prepared call allocates nothing.
    let mut vectors = [None; MAX_TENSORS];
    let places = given.tensors.iter_mut().zip(&mut vectors);
    for ((place, vector), read) in places.zip(tensors) {
        let (of_kernels, memory) = tensor(read, &inputs, problem)?;
        *place = of_kernels;
        *vector = Some(memory);
    }
    operands.put_score(given, vectors.into_iter().flatten());
    for (name, gradient) in gradients.into_values() {
        // It is one of them: see above.
        let place = tensors.iter().position(|read| read.tensor.name == name);
        if let Some(place) = place {
            has_gradient(problem, parts, place, &given.tensors[place])?;
            operands.put_score_gradient(place, gradient);
        }
    }
    Ok(())
}

/// Whether the tensor of this index has a gradient: every score reads an element at its own position.
fn has_gradient(
    problem: &Problem,
    parts: &EditParts,
    place: usize,
    tensor: &ScoreTensor,
) -> Result<(), ScoreError> {
    let name = || parts.tensors()[place].tensor.name.clone();
    let gradient = parts.gradient_of(place);
    let (read, _) = gradient.map_err(|why| ScoreError::NoTensorGradient { name: name(), why })?;
    for (dim, &index) in read.dims().iter().enumerate() {
        let (given, min) = (tensor.len[dim] as usize, problem.extent_of(index));
        // Behind the last element the last one would be read.
        if given < min {
            return Err(ScoreError::TensorExtent {
                name: name(),
                dim,
                given,
                min,
                max: MAX_EXTENT,
            });
        }
    }
    Ok(())
}

fn no_more<T, const N: usize>(given: &Named<T, N>, what: &'static str) -> Result<(), ScoreError> {
    match given.n_given() {
        given if given > N => Err(ScoreError::TooMany {
            what,
            given,
            allowed: N,
        }),
        _ => Ok(()),
    }
}

/// Checks that the expressions take every name, and that no name is given twice.
fn known<T, E, const N: usize>(
    given: &Named<T, N>,
    what: &'static str,
    taken: &[E],
    name_of: fn(&E) -> &String,
) -> Result<(), ScoreError> {
    for (at, &(name, _)) in given.iter().enumerate() {
        if !taken.iter().any(|taken| name_of(taken) == name) {
            return Err(ScoreError::Unknown {
                what,
                name: name.to_owned(),
                taken: taken.iter().map(name_of).cloned().collect(),
            });
        }
        if given.iter().take(at).any(|(other, _)| *other == name) {
            let name = name.to_owned();
            return Err(ScoreError::Twice { name });
        }
    }
    Ok(())
}

/// The bits of a parameter.
fn value(param: &Param, inputs: &ScoreInputs) -> Result<u32, ScoreError> {
    let name = || param.name.clone();
    let value = inputs
        .params
        .get(&param.name)
        .ok_or_else(|| ScoreError::Missing {
            name: name(),
            needed: Use::Param(param.ty),
        })?;
    if value.ty() != param.ty {
        return Err(ScoreError::ParamType {
            name: name(),
            given: value.ty(),
            needed: param.ty,
        });
    }
    Ok(match *value {
        ParamValue::F32(value) => value.to_bits(),
        ParamValue::I32(value) => value as u32,
    })
}

/// A tensor as kernels take it, without its address, and the memory that it covers.
fn tensor<'a>(
    read: &ReadOf,
    inputs: &ScoreInputs<'a>,
    problem: &Problem,
) -> Result<(ScoreTensor, Vector<'a>), ScoreError> {
    let Tensor {
        name,
        element,
        rank,
    } = &read.tensor;
    let (name, rank) = (|| name.clone(), usize::from(*rank));
    let given = inputs.tensors.get(&read.tensor.name);
    let given = given.ok_or_else(|| ScoreError::Missing {
        name: name(),
        needed: Use::Tensor {
            element: *element,
            rank,
        },
    })?;
    if given.dtype() != ScalarType::from(*element) {
        return Err(ScoreError::TensorType {
            name: name(),
            given: given.dtype(),
            needed: *element,
        });
    }
    let counts = [
        ("dimensions", Some(given.rank())),
        ("strides", given.n_strides()),
    ];
    for (what, count) in counts {
        if let Some(given) = count.filter(|&count| count != rank) {
            return Err(ScoreError::TensorRank {
                name: name(),
                what,
                given,
                needed: rank,
            });
        }
    }
    let mut bound = ScoreTensor {
        len: [1; _],
        ..ScoreTensor::default()
    };
    for (dim, of_dim) in read.dims.iter().enumerate() {
        (bound.len[dim], bound.stride[dim]) = dimension(read, dim, of_dim, given, problem)?;
    }
    Ok((bound, memory(read, &bound, given)?))
}

/// Elements and stride of a dimension. With one element the stride is ignored.
fn dimension(
    read: &ReadOf,
    dim: usize,
    of_dim: &DimUse,
    tensor: &ReadTensor,
    problem: &Problem,
) -> Result<(u32, i64), ScoreError> {
    let name = || read.tensor.name.clone();
    let given = tensor.shape()[dim];
    let indices = of_dim.unclamped.iter().map(|index| match index {
        Index::Batch => problem.batch(),
        Index::Head => problem.heads_q(),
        Index::KvHead => problem.heads_k(),
        Index::Query | Index::Key | Index::SeqlenQ | Index::SeqlenK => 1,
    });
    let (min, max) = (indices.max().unwrap_or(1).max(1), MAX_EXTENT);
    if given < min || given > max {
        return Err(ScoreError::TensorExtent {
            name: name(),
            dim,
            given,
            min,
            max,
        });
    }
    let stride = match given {
        1 => 0,
        _ => tensor.stride(dim),
    };
    let max = match of_dim.is_clamped {
        true => i64::from(i32::MAX) / i64::from(read.tensor.element.size_bytes()),
        false => i64::MAX,
    };
    if stride < 0 || stride > max {
        return Err(ScoreError::TensorStride {
            name: name(),
            dim,
            given: stride,
            max,
        });
    }
    Ok((given as u32, stride))
}

/// The memory that a tensor covers.
fn memory<'a>(
    read: &ReadOf,
    bound: &ScoreTensor,
    given: &ReadTensor<'a>,
) -> Result<Vector<'a>, ScoreError> {
    let name = || read.tensor.name.clone();
    let steps = bound.len.iter().zip(bound.stride);
    let last: u128 = steps
        .map(|(&len, stride)| u128::from(len - 1) * stride.unsigned_abs() as u128)
        .sum();
    let needed = u64::try_from(last + 1).unwrap_or(u64::MAX);
    let described = given.data().describe();
    if needed > described.n_elems {
        return Err(ScoreError::TensorMemory {
            name: name(),
            needed,
            given: described.n_elems,
        });
    }
    let alignment = u64::from(read.tensor.element.size_bytes());
    if !described.address.is_multiple_of(alignment) {
        return Err(ScoreError::TensorMisaligned {
            name: name(),
            address: described.address,
            alignment,
        });
    }
    Ok(given.first(needed))
}
