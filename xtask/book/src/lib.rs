//! The book under `docs/`: its pictures, drawn from the record of measurements.
//!
//! | module | what it is |
//! |---|---|
//! | [`record`] | the runs under `tests/benches/record` |
//! | [`canvas`] | a page with a title, a legend, panels and notes |
//! | [`speed`] | TFLOP/s by length beside the peers, and ratios |
//! | [`pictures`] | all pictures: written, or compared with what is there |
#![forbid(unsafe_code)]

pub mod canvas;
pub mod pictures;
pub mod record;
pub mod speed;

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
