//! Algorithms as their papers have them, beside the kernels that are fast today.

pub mod flash1;
