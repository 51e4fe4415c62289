//! FlashAttention for [Burn](https://burn.dev): exact attention on Burn tensors, with gradients, by
//! [ferroflash](https://docs.rs/ferroflash).
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_ferroflash::{Mask, Options, flash_attention};
//!
//! // Two sequences of 100 tokens, eight query heads over two key and value heads.
//! let device = Device::flex().autodiff();
//! let random = |heads| Tensor::<4>::random([2, heads, 100, 64], Distribution::Default, &device);
//! let (q, k, v) = (random(8).require_grad(), random(2), random(2));
//!
//! let o = flash_attention(q.clone(), k, v, Options::new(Mask::Causal))?;
//! assert_eq!(o.dims(), [2, 8, 100, 64]);
//!
//! let gradients = o.sum().backward();
//! assert_eq!(q.grad(&gradients).unwrap().dims(), [2, 8, 100, 64]);
//! # Ok::<(), burn_ferroflash::Error>(())
//! ```
//!
//! # Guarantees
//!
//! - q is `[batch, heads_q, seqlen_q, head_dim]`; k and v are `[batch, heads_k, seqlen_k, head_dim]`. heads_q is a
//!   multiple of heads_k: query head `h` reads key and value head `h / (heads_q / heads_k)`.
//! - o has the shape and the type of q. lse is f32 `[batch, heads_q, seqlen_q]`.
//! - Tensors are read in place if head_dim is contiguous and no stride is negative; others are copied.
//! - Memory grows with the length, not with its square. The backward pass keeps q, k, v, o and lse.
//! - Equal inputs give bit-equal outputs and gradients, unless [`Order::Fastest`] is asked for.
//! - A row that sees no key gives o = 0, lse = −∞ and gradients of 0.
//! - A call that cannot be computed returns an [`Error`] that names the argument. There is no fallback to another implementation.
//!
//! # Files
//!
//! | file | contents |
//! |---|---|
//! | `lib` | the two calls |
//! | `options`, `error` | the options of a call, and errors |
//! | `route` | refuses tensors that Burn's dispatch would panic at |
//! | `check` | shapes and types, as a ferroflash problem |
//! | `backend` | the traits that join Burn's backends to ferroflash |
//! | `autodiff` | the nodes of the backward pass |
//! | `passes` | both passes, for every backend |
//! | `memory` | memory of Burn's CPU backends Flex and NdArray, and of its CUDA devices |
//! | `fusion` | tensors whose operations Burn has queued |
#![deny(unsafe_code)]

#[cfg(feature = "autodiff")]
mod autodiff;
mod backend;
mod check;
mod error;
#[cfg(feature = "cuda")]
mod fusion;
#[cfg(any(feature = "flex", feature = "ndarray", feature = "cuda"))]
mod memory;
mod options;
#[cfg(any(feature = "flex", feature = "ndarray", feature = "cuda"))]
mod passes;
mod route;

pub use backend::{
    AttentionBackend, FlashBackend, Forward, Gradients, Outcome, OutputGradients, Saved,
};
pub use error::Error;
pub use ferroflash::error::Argument;
pub use ferroflash::{Mask, Order};
pub use options::Options;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::Tensor;

/// o = softmax(q·kᵀ · softmax_scale, masked) · v, differentiable in q, k and v.
///
/// q is `[batch, heads_q, seqlen_q, head_dim]`, k and v are `[batch, heads_k, seqlen_k, head_dim]`; o has the shape of q.
///
/// An error says which argument is not accepted and what would be; then nothing was computed. On an autodiff device, this also checks that the
/// gradients can be computed. If the device fails during Burn's `backward`, which returns no errors, that panics with ferroflash's message.
pub fn flash_attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    options: Options,
) -> Result<Tensor<4>, Error> {
    let [q, k, v] = routed([q, k, v], &options)?;
    let (o, _lse) = Dispatch::flash_attention(q, k, v, options).into_result()?;
    Ok(Tensor::from_dispatch(o))
}

/// [`flash_attention`], and the natural logarithm of each row's sum of exponentials: lse, f32
/// `[batch, heads_q, seqlen_q]`. Both are differentiable in q, k and v, and one backward pass serves both.
///
/// Two parts of attention over different keys, (o₁, lse₁) and (o₂, lse₂), merge into the whole by lse: with
/// lse = log(exp lse₁ + exp lse₂), o = exp(lse₁ − lse) · o₁ + exp(lse₂ − lse) · o₂.
pub fn flash_attention_with_lse(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    options: Options,
) -> Result<(Tensor<4>, Tensor<3>), Error> {
    let [q, k, v] = routed([q, k, v], &options)?;
    let (o, lse) = Dispatch::flash_attention_with_lse(q, k, v, options).into_result()?;
    Ok((Tensor::from_dispatch(o), Tensor::from_dispatch(lse)))
}

/// The tensors for Burn's dispatch, which would panic at what is refused here.
fn routed(tensors: [Tensor<4>; 3], options: &Options) -> Result<[DispatchTensor; 3], Error> {
    let tensors = tensors.map(Tensor::into_dispatch);
    let all = tensors.each_ref();
    route::check(all)?;
    check::problem(all, options)?;
    Ok(tensors)
}

/// README.md's example, compiled and run as a test.
#[cfg(all(doctest, feature = "autodiff", feature = "flex"))]
#[doc = include_str!("../README.md")]
struct Readme;
