//! Why the command failed, and the exit code that says so.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ferroflash::error::{DriverError, ProblemError};
use ferroflash::expression::ExpressionError;
use ferroflash_lab::canvas::NotDrawn;
use ferroflash_lab::estimate::EstimateError;
use ferroflash_lab::timeline::NoTimeline;

use crate::profile::NcuError;

/// All is done.
pub const DONE: u8 = 0;
/// Results lie beyond the tolerance.
pub const DIFFERS: u8 = 1;
/// The input or an option is bad.
pub const BAD_INPUT: u8 = 2;
/// Nothing here could do the work: no such device, no kernel for the problem, a call of the driver that failed.
pub const CANNOT_RUN: u8 = 3;

/// Every exit code, and what it means.
pub const EXIT_CODES: [(u8, &str); 4] = [
    (DONE, "The command has done its work."),
    (
        DIFFERS,
        "Results differ from the reference beyond the tolerance.",
    ),
    (
        BAD_INPUT,
        "An input or an option is bad, or an output cannot be written.",
    ),
    (
        CANNOT_RUN,
        "Nothing here can run it: no such device, no kernel for the problem, or the driver refuses.",
    ),
];

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file that cannot be read or written, or does not hold what it should.
    #[error("{}: {what}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An option that cannot be meant.
    #[error("{0}")]
    Option(String),
    /// Results that are not what they should be.
    #[error("{0}")]
    Differs(String),
    /// An expression that is none, or not the one that is asked for.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// No estimate: a bad GPU, or a problem that is not counted.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// A picture that cannot be drawn.
    #[error(transparent)]
    Picture(#[from] NotDrawn),
    /// A schedule that is not simulated.
    #[error("not simulated: {0}")]
    NoTimeline(#[from] NoTimeline),
    /// There is no GPU to be profiled.
    #[error(
        "profile measures on a GPU, and there is none: {0}; without one, --predict prints what is known beforehand"
    )]
    NoGpu(ferroflash::Error),
    /// No counters of the GPU.
    #[error(transparent)]
    Ncu(#[from] NcuError),
    /// The library refused.
    #[error(transparent)]
    Library(#[from] ferroflash::Error),
}

impl Failure {
    /// What is wrong with a file.
    pub fn of_file<W: ToString>(path: &Path) -> impl Fn(W) -> Failure + Copy {
        move |what| Failure::File {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }

    /// The exit code for it.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Library(
                ferroflash::Error::Problem(_)
                | ferroflash::Error::Driver(DriverError::KernelCache { .. }),
            ) => BAD_INPUT,
            Failure::Library(_) | Failure::NoGpu(_) | Failure::Ncu(_) | Failure::NoTimeline(_) => {
                CANNOT_RUN
            }
            Failure::Differs(_) => DIFFERS,
            _ => BAD_INPUT,
        })
    }
}

impl From<ProblemError> for Failure {
    fn from(error: ProblemError) -> Failure {
        Failure::Library(error.into())
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        Failure::Library(error.into())
    }
}
