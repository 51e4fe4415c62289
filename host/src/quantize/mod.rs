//! q, k and v in 8 bits: e4m3 with its scales, on the processor. [`fp8`](crate::fp8) has scales and rounding on any device.
//!
//! [`Fp8`](crate::Fp8) problems take q, k and v in e4m3, and scales. This module makes both, and has the three remedies that the literature knows against the error
//! of three bits of mantissa: scales for each head or block of rows, a Hadamard transform of q and k, and smoothing of k. [`Operand`] is a tensor on its way:
//!
//! ```
//! use ferroflash::quantize::{self, Operand};
//! use ferroflash::{Attention, Device, Dtype, Fp8, Outputs, Problem, Tensor, TensorMut, bf16};
//!
//! // 64 queries and keys, 4 query heads over 2 heads of keys, 32 columns.
//! let problem = Problem::builder(Dtype::Bf16).seqlen(64).heads_q(4).heads_k(2).head_dim(32).fp8(Fp8::PerHead).build()?;
//! let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
//! let numbers = |n: usize| (0..n).map(|at| bf16::from_f32((at as f32).sin())).collect::<Vec<_>>();
//! let (q, k, v) = (numbers(of_q.iter().product()), numbers(of_k.iter().product()), numbers(of_k.iter().product()));
//!
//! // Both transforms leave o as it is. Rotated q and k have the same products, and a softmax does not see what is subtracted from all its scores.
//! let q = Operand::q(&Tensor::bshd(&q, of_q)?, problem.heads_k())?.hadamard(Some(1))?;
//! let (k, mean) = Operand::k(&Tensor::bshd(&k, of_k)?)?.hadamard(Some(1))?.smooth()?;
//! let v = Operand::v(&Tensor::bshd(&v, of_k)?)?;
//!
//! let [q_e4m3, k_e4m3, v_e4m3] = [&q, &k, &v].map(|operand| operand.quantize(Fp8::PerHead));
//! let inputs = quantize::inputs(&q_e4m3, &k_e4m3, &v_e4m3)?;
//! let (mut o, mut lse) = (vec![bf16::ZERO; 64 * 4 * 32], vec![0f32; 4 * 64]);
//! let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
//! Attention::new(&Device::cpu(), problem.clone())?.forward(&inputs, &mut outputs)?;
//! mean.correct_lse(&mut lse, &q, problem.scale())?; // lse of k as it was
//! # Ok::<(), ferroflash::Error>(())
//! ```
//!
//! What 8 bits do to attention, and why these remedies help, is a chapter of the book: `docs/src/fp8.md`.

mod delayed;
mod hadamard;
mod operand;
mod quantized;
mod rounding;
mod smooth;
#[cfg(test)]
mod tests;

pub(crate) use hadamard::Rotation;
pub(crate) use rounding::{code_of, descale_of};

pub use delayed::{AmaxAlgorithm, DelayedScaling};
pub use operand::Operand;
pub use quantized::{Quantized, inputs};
pub use smooth::KMean;
