//! What can go wrong, by phase: the problem and its tensors, the plan, the driver; of a rotary embedding, and of quantising. Data, so that a program can act on it.
//!
//! The book lists every error with its words: `docs/src/errors.md`.
//!
//! ```
//! use ferroflash::error::ProblemError;
//! use ferroflash::{Attention, Device, Dtype, Error, Problem};
//!
//! let problem = Problem::builder(Dtype::F32).seqlen(8).heads(1).head_dim(600).build()?;
//! match Attention::new(&Device::cpu(), problem) {
//!     Err(Error::Problem(ProblemError::HeadDimOutOfRange { given, max, .. })) => assert_eq!((given, max), (600, 576)),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Error>(())
//! ```

mod cache;
mod driver;
mod plan;
mod problem;
mod ptxas;
mod quantize;
mod rotary;
mod score;
#[cfg(test)]
mod words;

pub use ferroflash_kernels::params::Argument;

pub use cache::CacheError;
pub use driver::DriverError;
pub use ferroflash_expression::ExpressionError;
pub use plan::PlanError;
pub use problem::ProblemError;
pub use ptxas::PtxasError;
pub use quantize::QuantizeError;
pub use rotary::RotaryError;
pub use score::ScoreError;

/// Any error of this crate.
///
/// The [module](crate::error) has an example.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem or a tensor is not what attention takes; nothing was touched.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A rotary position embedding, or what it is to turn, makes no sense; nothing was touched.
    #[error(transparent)]
    Rotary(#[from] RotaryError),
    /// A tensor cannot be quantised as asked; nothing was touched.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// A closure of a score or a mask says nothing that kernels can compute; nothing was touched.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// A cache of keys and values has no room, or no such sequence; nothing was changed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Nothing here can serve the problem as asked; nothing was touched.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The driver, or the lack of one.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The emulator found a fault in a kernel: a data race, an access out of bounds, a deadlock.
    #[error("kernel {kernel} on the emulator: {report}")]
    Emulator {
        /// Name of the variant.
        kernel: &'static str,
        /// What the emulator says.
        report: String,
    },
}

impl From<PtxasError> for Error {
    fn from(error: PtxasError) -> Error {
        DriverError::from(error).into()
    }
}

impl From<ScoreError> for Error {
    fn from(error: ScoreError) -> Error {
        ProblemError::from(error).into()
    }
}
