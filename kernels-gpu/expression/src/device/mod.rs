//! The part of expressions that kernels use: the form of an expression's inputs, a mask as a program, and the rules for its bounds.
//!
//! For a GPU this file is the crate's root (`xtask/ptx-builder`), so nothing here uses anything outside this folder.
#![cfg_attr(target_arch = "nvptx64", no_std)]

pub mod interval;
mod mask_program;
mod score;

pub use mask_program::{
    MASK_BINARY, MASK_COMPARE, MASK_INDEX, MASK_UNARY, MAX_MASK_BOUNDS, MAX_MASK_INSTRUCTIONS,
    MAX_MASK_VALUES, MaskInstruction, MaskOp, MaskProgram,
};
pub use score::{MAX_INDEX, MAX_PARAMS, MAX_RANK, MAX_TENSORS, RowTerms, ScoreRows, ScoreTensor};
