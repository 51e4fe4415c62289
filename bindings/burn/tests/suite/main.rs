//! Attention on Burn's CPU backends: against Burn's own operations, its errors, its gradients, its strides, a training.
//!
//! Without the feature `ndarray` NdArray's tensors are there and refused; with it they are computed.
#![cfg(all(feature = "autodiff", feature = "flex"))]
#![allow(deprecated)]

mod against_burn;
mod errors;
mod layouts;
mod lse;
mod problem;
mod repeated;
#[path = "../../examples/train.rs"]
mod train;
mod training;
