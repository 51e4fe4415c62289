//! Errors: a refusal names the argument, what was given and what is allowed.

use burn::tensor::DType;
use ferroflash::error::Argument;

/// Why a call was refused, or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has another number of dimensions than the call takes.
    #[error("{argument} has {given} dimensions; allowed: {needed}")]
    Rank {
        /// Which tensor.
        argument: Argument,
        /// Its number of dimensions.
        given: usize,
        /// The number allowed.
        needed: usize,
    },
    /// The shapes of q, k and v do not fit each other.
    #[error(
        "{argument} has shape {given:?}; allowed: {needed:?} ([batch, heads, seqlen, head_dim])"
    )]
    Shape {
        /// Which tensor.
        argument: Argument,
        /// Its shape, `[batch, heads, seqlen, head_dim]`.
        given: [usize; 4],
        /// The only shape that fits the tensors before it and its own free dimensions.
        needed: [usize; 4],
    },
    /// A tensor's elements have a type that the backend does not compute with.
    #[error("{argument} is {given:?}; allowed: {allowed:?}")]
    Dtype {
        /// Which tensor.
        argument: Argument,
        /// Its type.
        given: DType,
        /// The types allowed.
        allowed: &'static [DType],
    },
    /// Tensors of one call have different types.
    #[error("{argument} is {given:?}; allowed: {needed:?}, as q is")]
    MixedDtypes {
        /// Which tensor.
        argument: Argument,
        /// Its type.
        given: DType,
        /// The type of q.
        needed: DType,
    },
    /// A tensor is on a backend that this build of the crate does not support.
    #[error("{argument} lies on {given}; allowed in this build: {}", allowed.join(", "))]
    Backend {
        /// Which tensor.
        argument: Argument,
        /// Its device, as Burn prints it.
        given: String,
        /// The backends that the crate's features switch on.
        allowed: &'static [&'static str],
    },
    /// Tensors of one call are on different devices.
    #[error("{argument} lies on {given}; allowed: {needed}, where q lies")]
    MixedDevices {
        /// Which tensor.
        argument: Argument,
        /// Its device, as Burn prints it.
        given: String,
        /// The device of q.
        needed: String,
    },
    /// Tensors of one call belong to autodiff devices with different gradient checkpointing.
    #[error(
        "{argument} has gradient checkpointing {given}; allowed: {needed}, as tensors before it"
    )]
    MixedCheckpointing {
        /// Which tensor.
        argument: Argument,
        /// Its strategy, as Burn prints it.
        given: String,
        /// The strategy of the tensors before it.
        needed: String,
    },
    /// Burn gives no address for a tensor's memory, or its device reports a failure.
    #[error("{argument}: Burn gives no memory of the device: {detail}")]
    Memory {
        /// Which tensor.
        argument: Argument,
        /// CubeCL's error.
        detail: String,
    },
    /// Work that computes the inputs failed, or it was not possible to wait for it.
    #[error("the device cannot be waited for: {detail}")]
    Synchronize {
        /// CubeCL's error.
        detail: String,
    },
    /// ferroflash refused the problem, or its device failed.
    #[error(transparent)]
    Ferroflash(#[from] ferroflash::Error),
}

impl From<ferroflash::error::ProblemError> for Error {
    fn from(error: ferroflash::error::ProblemError) -> Error {
        Error::Ferroflash(error.into())
    }
}
