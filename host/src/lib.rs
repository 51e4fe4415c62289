//! FlashAttention in Rust, from the public API down to the tensor-core instruction.
#![forbid(unsafe_code)]

pub mod problem;

pub mod dtype;

pub mod tensor;

pub mod validate;

pub mod plan;

pub mod error;

pub use dtype::{Dtype, Element};
pub use error::Error;
pub use problem::{Mask, Order, Problem, ProblemBuilder};
pub use tensor::{Gradients, Layout, Lse, LseMut, Saved, Tensor, TensorMut};
