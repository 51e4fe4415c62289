//! Why a problem cannot be planned as asked.

use crate::terms::{Algorithm, Backend, Candidate, Reason};

/// Nothing here can serve the problem as asked.
///
/// The [module](crate::error) has an example.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No candidate is eligible: each with its reason. What was asked for by name is never replaced.
    #[error("{}", no_candidate(*.backend, *.asked, .candidates))]
    NoCandidate {
        /// The backend that was to serve.
        backend: Backend,
        /// The algorithm asked for by name, if any.
        asked: Option<Algorithm>,
        /// Every candidate with the reason it cannot serve.
        candidates: Vec<Candidate>,
    },
    /// The kernel of an operation beside attention cannot work on these tensors on this device.
    #[error("{backend} cannot {verb}: {reason}")]
    Operation {
        /// The backend that was to do it.
        backend: Backend,
        /// What was to be done: "merge", "append", "rotate", "quantize".
        verb: &'static str,
        /// Why it cannot.
        reason: Reason,
    },
    /// A call that is enqueued was given no queue.
    #[error("this call is enqueued: it needs a queue of its device")]
    NeedsQueue,
    /// The backend has no streams to enqueue work on.
    #[error(
        "{backend} has no streams to enqueue on: make the call without preparing it, or take a CUDA device"
    )]
    NotAsynchronous {
        /// The backend.
        backend: Backend,
    },
}

/// One line that says what was asked, then one line per candidate.
fn no_candidate(backend: Backend, asked: Option<Algorithm>, candidates: &[Candidate]) -> String {
    let mut text = match asked {
        Some(algorithm) => format!("{backend} cannot serve this problem with {algorithm}:"),
        None => format!("{backend} cannot serve this problem:"),
    };
    for candidate in candidates {
        text.push_str(&format!("\n  {candidate}"));
    }
    text
}
