//! Algorithms as in their papers, for comparison with the fast kernels of today.

pub mod flash1;
