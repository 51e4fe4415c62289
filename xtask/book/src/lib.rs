//! The book under `docs/`: its pictures, its links, its numbers.
//!
//! | module | what it is |
//! |---|---|
//! | [`record`] | the runs under `tests/benches/record` |
//! | [`speed`] | TFLOP/s of the library and of its peers, and ratios |
//! | [`mod@schedule`] | which block of threads does which tile when, by the library's planner |
//! | [`layout`] | which bytes lie where: tiles of the scores, and the swizzle of shared memory |
//! | [`roofline`] | what each schedule could do, and what the estimate says that it does |
//! | [`sums`] | what 14 bits of a sum of 8-bit products cost |
//! | [`links`] | links of the book and of the other texts, to files and to items of the code |
//! | [`quotes`] | code that texts quote: renewed, or compared with where it is from |
//! | [`programs`] | the algorithms as plain Rust, which chapters quote |
//! | [`pictures`] | all pictures: written, or compared with what is there |
#![forbid(unsafe_code)]

pub mod layout;
pub mod links;
pub mod pictures;
pub mod programs;
pub mod quotes;
pub mod record;
pub mod roofline;
pub mod schedule;
pub mod speed;
pub mod sums;

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
