//! The order of tiles in flash3's backward pass: what it must keep, and how much of the device it leaves idle.
//!
//! Only pure functions run here: those of the kernels' `attention`, and the planner's.

mod head_splits;
mod idle;
mod properties;
