//! Why there is no estimate: which argument is bad, what was given, what is allowed.

use ferroflash::Dtype;
use ferroflash::error::ProblemError;

/// There is no estimate of this problem on this GPU.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// No GPU of the table has this name.
    #[error(
        "gpu is {given:?}; allowed: {allowed}, or a peak, a bandwidth, an SRAM and a number of SMs"
    )]
    UnknownGpu {
        /// The name given.
        given: String,
        /// The names of the table.
        allowed: String,
    },
    /// The present device is not in the table, or differs from its row in SMs or memory.
    #[error(
        "device is {name:?} with {n_sms} SMs and {memory_bytes} bytes of memory; allowed: a GPU of the table ({allowed}), or its peak and bandwidth beside it"
    )]
    UnknownDevice {
        /// Its name.
        name: String,
        /// Its number of SMs.
        n_sms: u32,
        /// Bytes of its memory.
        memory_bytes: u64,
        /// The names of the table.
        allowed: String,
    },
    /// A limit of a GPU is zero, negative, infinite or NaN.
    #[error("{argument} is {given}; allowed: finite numbers greater than 0")]
    NotPositive {
        /// The limit.
        argument: &'static str,
        /// The given value.
        given: f64,
    },
    /// The GPU's tensor cores do not multiply this type.
    #[error("dtype is {given}; the tensor cores of {gpu} multiply {allowed}")]
    Dtype {
        /// The GPU's name.
        gpu: String,
        /// The type of the problem.
        given: Dtype,
        /// The types that they multiply.
        allowed: &'static str,
    },
    /// A part of the problem whose work is not known in advance, or not modelled.
    #[error("the problem has {given}; allowed: sequences of one length, a mask, sinks")]
    NotCounted {
        /// The part.
        given: &'static str,
    },
    /// No kernel multiplies q, k and v in 8 bits on this GPU.
    #[error(
        "no kernel multiplies q, k and v in 8 bits on {gpu}; allowed: compute capability 9.0, with head_dims that are multiples of 16 up to 256"
    )]
    Fp8 {
        /// The GPU's name.
        gpu: String,
    },
    /// The problem is one that no call takes.
    #[error(transparent)]
    Problem(Box<ProblemError>),
    /// A size beyond the model's limit.
    #[error("{argument} is {given}; allowed: at most {most}")]
    TooLarge {
        /// The size.
        argument: &'static str,
        /// The given value.
        given: u128,
        /// The limit.
        most: u128,
    },
}

impl From<ProblemError> for EstimateError {
    fn from(error: ProblemError) -> EstimateError {
        EstimateError::Problem(Box::new(error))
    }
}
