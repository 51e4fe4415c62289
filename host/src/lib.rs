//! FlashAttention in Rust, from the public API down to the tensor-core instruction.
// Only `backend::cuda`, which calls the driver, may allow what is denied here.
#![deny(unsafe_code)]

pub mod problem;

pub mod dtype;

pub mod tensor;

pub mod validate;

pub mod plan;

pub mod error;

pub use dtype::{Dtype, Element};
pub use error::Error;
pub use plan::{Algorithm, Backend};
pub use problem::{Mask, Order, Problem, ProblemBuilder};
pub use tensor::{Gradients, Layout, Lse, LseMut, Saved, Tensor, TensorMut};
pub use validate::Pass;
