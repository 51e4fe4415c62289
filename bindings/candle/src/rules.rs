//! The rules for one tensor, each a function.

use candle_core::{DType, Device, Tensor};
use ferroflash::Dtype;

use crate::error::{Error, elsewhere};

/// The dimensions of a tensor of this rank.
pub(crate) fn dims<const RANK: usize>(tensor: &Tensor) -> [usize; RANK] {
    std::array::from_fn(|dim| tensor.dims().get(dim).copied().unwrap_or(0))
}

/// Checks that this build supports the kind of device.
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

/// Checks that the tensor is on the device of the first one.
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

/// Checks that the last dimension has stride 1; with one entry, or in an empty tensor, the stride is ignored.
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

/// Checks that the tensor has this shape, part of which comes from earlier tensors.
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

/// ferroflash's type of a tensor of numbers.
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

/// Checks another tensor of numbers: it is on the device of the first, has this rank and this type, and its last dimension is contiguous.
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

/// The number of sequences of a vector of cumulative lengths.
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

/// Checks the number of elements of a vector, for this reason.
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
