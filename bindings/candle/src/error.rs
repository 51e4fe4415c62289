//! Errors: [`Error`] names the argument, what was given and what is allowed.

use std::fmt;

use candle_core::{DType, DeviceLocation, Tensor};

/// Why a call is refused, or has failed. Nothing was computed.
///
/// The functions of this crate return candle's error type, as all of candle does. [`Error::of`] extracts this one.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_ferroflash::Error;
///
/// let q = Tensor::zeros((1, 8, 2, 16), DType::F32, &Device::Cpu)?;
/// let flat = q.flatten_all()?;
/// let error = candle_ferroflash::flash_attn(&q, &flat, &q, 0.25, false).unwrap_err();
/// assert!(matches!(Error::of(&error), Some(Error::Rank { argument: "k", given: 1, allowed: 4 })));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// ferroflash has no kernel for this use of a function of candle-flash-attn.
    #[error("{argument} is {given}; allowed: {allowed}")]
    NotOffered {
        /// The argument.
        argument: &'static str,
        /// The given value.
        given: String,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A tensor has another number of dimensions than the function takes.
    #[error("{argument} has {given} dimensions; allowed: {allowed}")]
    Rank {
        /// Which tensor.
        argument: &'static str,
        /// Its number of dimensions.
        given: usize,
        /// The number needed.
        allowed: usize,
    },
    /// A tensor's shape does not fit the tensors before it.
    #[error("{argument} has shape {given:?}; allowed: {allowed:?}")]
    Shape {
        /// Which tensor.
        argument: &'static str,
        /// Its shape.
        given: Vec<usize>,
        /// The shape needed.
        allowed: Vec<usize>,
    },
    /// A tensor has an element type that the function does not take.
    #[error("{argument} is {given:?}; allowed: {allowed:?}")]
    Dtype {
        /// Which tensor.
        argument: &'static str,
        /// Its type.
        given: DType,
        /// The types that it may have.
        allowed: Vec<DType>,
    },
    /// The last dimension of a tensor is not contiguous. The others may have any strides.
    #[error("{argument} has strides {given:?}; allowed: 1 in the last dimension")]
    Strides {
        /// Which tensor.
        argument: &'static str,
        /// Its strides, in elements.
        given: Vec<usize>,
    },
    /// A tensor is on another device than the first.
    #[error("{argument} lies on {given:?}; allowed: {allowed:?}, where the first tensor lies")]
    Device {
        /// Which tensor.
        argument: &'static str,
        /// Its device.
        given: DeviceLocation,
        /// The device of the first tensor.
        allowed: DeviceLocation,
    },
    /// The tensors are on a kind of device that this build does not support.
    #[error("{argument} lies on {given}; allowed: {allowed}")]
    Backend {
        /// Which tensor.
        argument: &'static str,
        /// The kind of device: "CUDA" or "Metal".
        given: &'static str,
        /// What is allowed, and how to enable CUDA.
        allowed: &'static str,
    },
    /// A vector of lengths has too few elements for a batch, or a number that does not fit the sequences.
    #[error("{argument} has {given} elements; allowed: {allowed}")]
    Lengths {
        /// Which vector.
        argument: &'static str,
        /// Its number of elements.
        given: usize,
        /// The allowed number.
        allowed: String,
    },
    /// A length does not fit 31 bits.
    #[error("{argument}[{index}] is {given}; allowed: 0 to {}", i32::MAX)]
    Length {
        /// Which vector.
        argument: &'static str,
        /// Which of its elements.
        index: usize,
        /// The number given.
        given: u32,
    },
    /// `page_block_size` is not that of the pages given.
    #[error("page_block_size is {given}; allowed: {allowed}, the rows of a page of k")]
    PageBlockSize {
        /// The number given.
        given: usize,
        /// Rows of a page.
        allowed: usize,
    },
    /// A cache whose elements share memory cannot be written.
    #[error("{argument} has strides {given:?}, which repeat elements; allowed: a place for each")]
    Repeated {
        /// Which cache.
        argument: &'static str,
        /// Its strides, in elements.
        given: Vec<usize>,
    },
    /// A cache that is written shares memory with another argument: candle lends memory to only one writer.
    #[error("{argument} lies in the memory of {other}; allowed: memory of its own")]
    SharedMemory {
        /// Which cache.
        argument: &'static str,
        /// The other argument.
        other: &'static str,
    },
    /// A tensor would need a gradient through an operation that has none.
    #[error(
        "{argument} asks for a gradient; allowed: tensors without, since {operation} has no backward pass"
    )]
    Gradient {
        /// The argument.
        argument: &'static str,
        /// Which operation.
        operation: &'static str,
    },
    /// A traced function is not an expression.
    #[error(transparent)]
    Expression(#[from] ferroflash::expression::ExpressionError),
    /// An error of ferroflash: of sizes, of the values of lengths, of calls without a kernel, of the driver.
    #[error(transparent)]
    Ferroflash(#[from] ferroflash::Error),
}

impl Error {
    /// This crate's error inside one of candle's, under any of candle's wrappers; `None` if it is another error.
    pub fn of(error: &candle_core::Error) -> Option<&Error> {
        match error {
            candle_core::Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref(),
            candle_core::Error::Context { inner, .. }
            | candle_core::Error::WithPath { inner, .. }
            | candle_core::Error::WithBacktrace { inner, .. } => Error::of(inner),
            _ => None,
        }
    }
}

/// The same as `Display`: candle prints wrapped errors with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> candle_core::Error {
        candle_core::Error::WrappedContext {
            wrapped: Box::new(error),
            context: env!("CARGO_PKG_NAME").to_owned(),
        }
        .bt()
    }
}

impl From<ferroflash::error::ProblemError> for Error {
    fn from(error: ferroflash::error::ProblemError) -> Error {
        Error::Ferroflash(error.into())
    }
}

/// A tensor is on the wrong device.
pub(crate) fn elsewhere(argument: &'static str, given: &Tensor, allowed: DeviceLocation) -> Error {
    Error::Device {
        argument,
        given: given.device().location(),
        allowed,
    }
}

impl From<ferroflash::error::DriverError> for Error {
    fn from(error: ferroflash::error::DriverError) -> Error {
        Error::Ferroflash(error.into())
    }
}
