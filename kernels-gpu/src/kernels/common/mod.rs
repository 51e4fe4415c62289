//! Common parts of the kernels of both passes.

pub mod stamps;

pub(crate) mod dropout;

pub(crate) mod score_mod;

pub(crate) mod sequence;
