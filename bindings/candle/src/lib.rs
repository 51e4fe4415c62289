//! FlashAttention for [candle](https://github.com/huggingface/candle) tensors, forward and backward, by
//! [ferroflash]: the functions of `candle-flash-attn`, with the same names and arguments.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//!
//! // Two sequences of 128 tokens, eight query heads over two key and value heads.
//! let device = Device::Cpu;
//! let q = Var::randn(0f32, 1f32, (2, 128, 8, 64), &device)?;
//! let k = Var::randn(0f32, 1f32, (2, 128, 2, 64), &device)?;
//! let v = Var::randn(0f32, 1f32, (2, 128, 2, 64), &device)?;
//!
//! let o = candle_ferroflash::flash_attn(&q, &k, &v, 0.125, true)?;
//! assert_eq!(o.dims(), [2, 128, 8, 64]);
//!
//! let gradients = o.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&k).map(Tensor::dims), Some([2, 128, 2, 64].as_slice()));
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # Guarantees of every function
//!
//! - o = softmax(q·kᵀ · softmax_scale, masked) · v, exactly, in memory that grows with the length and not with its square.
//! - q, k and v are bf16, f16 or f32, of one type; a cache may be f8e4m3, and [`flash_attn_fp8`] multiplies in 8 bits. Sums are f32. On a GPU products of f32 are computed in tf32.
//! - Query head `h` reads key and value head `h / (heads_q / heads_k)`: one KV head is MQA, fewer than query heads GQA.
//! - Any strides are accepted, as long as the last dimension is contiguous: `transpose(1, 2)` costs no copy.
//! - Masks are aligned to the bottom right: query `i` has the position `i + seqlen_k − seqlen_q` among the keys. A
//!   row that sees no key gives o = 0.
//! - Equal inputs give bit-equal results, forward and backward. Every function is differentiable in q, k and v, and in sinks and biases
//!   ([`Options`]), except those over a cache ([`KvCache`]): a gradient through them is an error.
//! - What is not supported is an error that names the argument ([`Error`]); nothing is silently ignored.
//!
//! Attention on CPU tensors runs on all cores of the processor. With the feature `cuda`, on tensors of a CUDA device it runs ferroflash's kernels,
//! on candle's own stream.
// Only `cuda::raw`, which hands out addresses of candle's memory, allows what is denied here.
#![deny(unsafe_code)]

mod dense;
mod expressed;
mod fp8;
mod mla;
mod varlen;
mod with_lse;
mod with_options;

mod append;
mod kv_cache;
mod with_kvcache;

mod alibi;

mod request;

mod expressions;
mod options;

mod refuse;

mod rules;

mod given;

mod scales;

mod call;
mod carried;

mod lse;
mod operation;

mod cached;

mod append_call;
mod in_place;

mod layout;

mod memory;
mod passes;

mod error;

pub use append::{Appended, NewRows, Rotary, append_kvcache};
pub use dense::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed,
};
pub use error::Error;
pub use expressed::{flash_attn_varlen_with_expressions, flash_attn_with_expressions};
pub use expressions::Expressions;
pub use ferroflash::arguments::Argument;
/// Types of the closures of [`Score::new`] and [`Mask::new`].
pub use ferroflash::expression;
pub use ferroflash::{Fp8Sums, Mask, MaskExpression, Score};
pub use fp8::{flash_attn_fp8, flash_attn_varlen_fp8, quantize, quantize_with_descale};
pub use kv_cache::KvCache;
pub use mla::flash_mla_with_kvcache;
pub use options::Options;
pub use varlen::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_windowed,
};
pub use with_kvcache::{
    flash_attn_varlen_paged_windowed, flash_attn_varlen_with_kvcache, flash_attn_with_kvcache,
};
pub use with_lse::{flash_attn_varlen_with_lse, flash_attn_with_lse};
pub use with_options::{flash_attn_varlen_with_options, flash_attn_with_options};

/// README.md's example, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
