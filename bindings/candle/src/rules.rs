//! The rules for one tensor, each a function: what it may be, and where it lies.

use candle_core::{DType, Device, Tensor};
use ferroflash::Dtype;

use crate::error::{Error, elsewhere};

/// The dimensions of a tensor of this rank.
pub(crate) fn dims<const RANK: usize>(tensor: &Tensor) -> [usize; RANK] {
    std::array::from_fn(|dim| tensor.dims().get(dim).copied().unwrap_or(0))
}

/// Whether this build works on the device's kind.
pub(crate) fn backend(argument: &'static str, tensor: &Tensor) -> Result<(), Error> {
    let (given, allowed) = match tensor.device() {
        Device::Cpu => return Ok(()),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => return Ok(()),
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => (
            "CUDA",
            "the CPU; for CUDA build candle-ferroflash with the feature `cuda`",
        ),
        Device::Metal(_) => ("Metal", "the CPU, and CUDA with the feature `cuda`"),
    };
    Err(Error::Backend {
        argument,
        given,
        allowed,
    })
}

/// The tensor lies where the first one does.
pub(crate) fn same_device(
    argument: &'static str,
    tensor: &Tensor,
    first: &Tensor,
) -> Result<(), Error> {
    if tensor.device().same_device(first.device()) {
        return Ok(());
    }
    Err(elsewhere(argument, tensor, first.device().location()))
}

pub(crate) fn has_rank(
    argument: &'static str,
    tensor: &Tensor,
    allowed: usize,
) -> Result<(), Error> {
    match tensor.rank() {
        given if given == allowed => Ok(()),
        given => Err(Error::Rank {
            argument,
            given,
            allowed,
        }),
    }
}

pub(crate) fn has_type(
    argument: &'static str,
    tensor: &Tensor,
    allowed: &[DType],
) -> Result<(), Error> {
    match tensor.dtype() {
        given if allowed.contains(&given) => Ok(()),
        given => Err(Error::Dtype {
            argument,
            given,
            allowed: allowed.to_vec(),
        }),
    }
}

/// The last dimension has stride 1; where it has one entry, or the tensor none, its stride says nothing.
pub(crate) fn has_contiguous_rows(argument: &'static str, tensor: &Tensor) -> Result<(), Error> {
    let last = tensor.dims().last().zip(tensor.stride().last());
    match last {
        Some((&n, &stride)) if n > 1 && stride != 1 && tensor.elem_count() > 0 => {
            Err(Error::Strides {
                argument,
                given: tensor.stride().to_vec(),
            })
        }
        _ => Ok(()),
    }
}

/// The tensor has this shape, which those before it say in part.
pub(crate) fn has_shape(
    argument: &'static str,
    tensor: &Tensor,
    allowed: &[usize],
) -> Result<(), Error> {
    match tensor.dims() {
        given if given == allowed => Ok(()),
        given => Err(Error::Shape {
            argument,
            given: given.to_vec(),
            allowed: allowed.to_vec(),
        }),
    }
}

/// What the type of a tensor of numbers is called in ferroflash.
pub(crate) fn dtype(argument: &'static str, tensor: &Tensor) -> Result<Dtype, Error> {
    match tensor.dtype() {
        DType::BF16 => Ok(Dtype::Bf16),
        DType::F16 => Ok(Dtype::F16),
        DType::F32 => Ok(Dtype::F32),
        given => Err(Error::Dtype {
            argument,
            given,
            allowed: vec![DType::BF16, DType::F16, DType::F32],
        }),
    }
}

/// A tensor of numbers that is given beside the first: it lies there, is of this rank and this type, and its last dimension is
/// contiguous.
pub(crate) fn beside(
    argument: &'static str,
    tensor: &Tensor,
    rank: usize,
    first: &Tensor,
    dtype: DType,
) -> Result<(), Error> {
    same_device(argument, tensor, first)?;
    has_rank(argument, tensor, rank)?;
    has_type(argument, tensor, &[dtype])?;
    has_contiguous_rows(argument, tensor)
}

/// How many sequences a vector of cumulative lengths says that there are.
pub(crate) fn n_sequences(argument: &'static str, seqlens: &Tensor) -> Result<usize, Error> {
    has_rank(argument, seqlens, 1)?;
    let given = seqlens.elem_count();
    match given.checked_sub(1) {
        None | Some(0) => Err(Error::Lengths {
            argument,
            given,
            allowed: "2 or more".to_owned(),
        }),
        Some(batch) => Ok(batch),
    }
}

/// As many elements of a vector as there have to be, and why.
pub(crate) fn has_elements(
    argument: &'static str,
    vector: &Tensor,
    needed: usize,
    why: &str,
) -> Result<(), Error> {
    has_rank(argument, vector, 1)?;
    match vector.elem_count() {
        given if given == needed => Ok(()),
        given => Err(Error::Lengths {
            argument,
            given,
            allowed: format!("{needed}, {why}"),
        }),
    }
}
