//! The book under `docs/`: its pictures, its links, its numbers.
//!
//! | module | what it is |
//! |---|---|
//! | [`record`] | the runs under `tests/benches/record` |
//! | [`speed`] | TFLOP/s by length beside the peers, and ratios |
//! | [`mod@schedule`] | which block of threads does which tile when, by the library's planner |
//! | [`links`] | links of the book and of the other texts, to files and to items of the code |
//! | [`quotes`] | code that texts quote: renewed, or compared with where it is from |
//! | [`pictures`] | all pictures: written, or compared with what is there |
#![forbid(unsafe_code)]

pub mod links;
pub mod pictures;
pub mod quotes;
pub mod record;
pub mod schedule;
pub mod speed;

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
