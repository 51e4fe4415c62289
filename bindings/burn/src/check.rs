//! The rules of a call that need no memory: shapes and types of q, k and v, as a ferroflash problem.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use ferroflash::error::Argument;
use ferroflash::{Dtype, Problem};

use crate::error::Error;
use crate::options::Options;

/// The types that a backend can compute with.
pub(crate) const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// The problem of q, k and v; an error says which of them does not fit, and what would.
pub(crate) fn problem(
    [q, k, v]: [&impl TensorMetadata; 3],
    options: &Options,
) -> Result<Problem, Error> {
    let dtype = dtype(Argument::Q, q, DTYPES)?;
    for (argument, tensor) in [(Argument::K, k), (Argument::V, v)] {
        same_dtype(argument, tensor, q.dtype())?;
    }
    let [batch, heads_q, seqlen_q, head_dim] = shape(Argument::Q, q)?;
    let of_k = shape(Argument::K, k)?;
    let [_, heads_k, seqlen_k, _] = of_k;
    let of_v = shape(Argument::V, v)?;
    let needed = [batch, heads_k, seqlen_k, head_dim];
    for (argument, given) in [(Argument::K, of_k), (Argument::V, of_v)] {
        if given != needed {
            return Err(Error::Shape {
                argument,
                given,
                needed,
            });
        }
    }
    let problem = Problem::builder(dtype)
        .batch(batch)
        .heads_q(heads_q)
        .heads_k(heads_k)
        .seqlen_q(seqlen_q)
        .seqlen_k(seqlen_k)
        .head_dim(head_dim)
        .mask(options.mask)
        .order(options.order);
    let problem = match options.softmax_scale {
        Some(scale) => problem.softmax_scale(scale).build()?,
        None => problem.build()?,
    };
    ferroflash::validate::sizes(&problem)?;
    Ok(problem)
}

/// A tensor's type as ferroflash's, if it is allowed.
pub(crate) fn dtype(
    argument: Argument,
    tensor: &impl TensorMetadata,
    allowed: &'static [DType],
) -> Result<Dtype, Error> {
    let given = tensor.dtype();
    let dtype = match given {
        DType::F32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::Bf16),
        _ => None,
    };
    dtype
        .filter(|_| allowed.contains(&given))
        .ok_or(Error::Dtype {
            argument,
            given,
            allowed,
        })
}

/// Refuses a tensor whose type is not that of q.
pub(crate) fn same_dtype(
    argument: Argument,
    tensor: &impl TensorMetadata,
    needed: DType,
) -> Result<(), Error> {
    let given = tensor.dtype();
    if given == needed {
        Ok(())
    } else {
        Err(Error::MixedDtypes {
            argument,
            given,
            needed,
        })
    }
}

/// A tensor's shape, `[batch, heads, seqlen, head_dim]`.
pub(crate) fn shape(argument: Argument, tensor: &impl TensorMetadata) -> Result<[usize; 4], Error> {
    let shape = tensor.shape();
    let dims: Vec<usize> = shape.iter().copied().collect();
    dims.try_into().map_err(|dims: Vec<usize>| Error::Rank {
        argument,
        given: dims.len(),
        needed: 4,
    })
}

/// One of the problem's shapes, `[batch, seqlen, heads, head_dim]`, as Burn's tensors have it.
#[cfg(any(feature = "flex", feature = "ndarray", feature = "cuda"))]
pub(crate) fn bhsd([batch, seqlen, heads, head_dim]: [usize; 4]) -> [usize; 4] {
    [batch, heads, seqlen, head_dim]
}
