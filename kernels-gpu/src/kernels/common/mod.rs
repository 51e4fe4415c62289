//! What kernels of both passes have in common.

pub mod stamps;

pub(crate) mod dropout;

pub(crate) mod score_mod;

pub(crate) mod sequence;
