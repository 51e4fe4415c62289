//! The two traits that join Burn's backends to ferroflash.
//!
//! [`FlashBackend`] is what a backend needs: both passes on its own tensors, with errors as values. [`AttentionBackend`]
//! is Burn's backend extension on top of it. Burn's macro generates its implementation for `Dispatch`, which routes the tensors of Burn's API to
//! their backend; `autodiff` implements it for `Autodiff<B>`.
// Burn 0.22 calls NdArray deprecated and still ships it.
#![cfg_attr(feature = "ndarray", allow(deprecated))]
// Without a backend, what Burn's macro generates uses no argument.
#![cfg_attr(
    not(any(feature = "flex", feature = "ndarray", feature = "cuda")),
    allow(unused_variables)
)]

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, backend_extension};

use crate::error::Error;
use crate::options::Options;

/// A backend whose tensors ferroflash can compute on: Flex, NdArray and CUDA, depending on the crate's features, and fusion over CUDA.
///
/// Tensors are `[batch, heads, seqlen, head_dim]` with any strides; lse is f32 `[batch, heads_q, seqlen_q]`.
pub trait FlashBackend: Backend {
    /// o and lse of q, k and v.
    fn flash_forward(
        q: &FloatTensor<Self>,
        k: &FloatTensor<Self>,
        v: &FloatTensor<Self>,
        options: &Options,
    ) -> Result<Forward<Self>, Error>;

    /// Refuses inputs whose gradients cannot be computed here. Autodiff calls this before the forward pass, because Burn's backward pass cannot return an error.
    fn check_flash_backward(
        q: &FloatTensor<Self>,
        k: &FloatTensor<Self>,
        v: &FloatTensor<Self>,
        options: &Options,
    ) -> Result<(), Error>;

    /// Gradients of q, k and v.
    fn flash_backward(
        saved: &Saved<Self>,
        of_output: &OutputGradients<Self>,
        options: &Options,
    ) -> Result<Gradients<Self>, Error>;
}

/// The results of the forward pass.
#[derive(Clone, Debug)]
pub struct Forward<B: Backend> {
    /// Output, `[batch, heads_q, seqlen_q, head_dim]`, contiguous, of q's type.
    pub o: FloatTensor<B>,
    /// The natural logarithm of each row's sum of exponentials: f32 `[batch, heads_q, seqlen_q]`, contiguous.
    pub lse: FloatTensor<B>,
}

/// The inputs of the backward pass in addition to the gradients of the outputs.
#[derive(Clone, Debug)]
pub struct Saved<B: Backend> {
    /// Queries, `[batch, heads_q, seqlen_q, head_dim]`.
    pub q: FloatTensor<B>,
    /// Keys, `[batch, heads_k, seqlen_k, head_dim]`.
    pub k: FloatTensor<B>,
    /// Values, of the shape of k.
    pub v: FloatTensor<B>,
    /// The results of the forward pass.
    pub forward: Forward<B>,
}

/// Gradients of a loss with respect to the results of the forward pass.
#[derive(Clone, Debug)]
pub struct OutputGradients<B: Backend> {
    /// Gradient of o, in its shape and type.
    pub d_o: FloatTensor<B>,
    /// Gradient of lse, in its shape and type; `None` if the loss does not depend on it.
    pub d_lse: Option<FloatTensor<B>>,
}

/// Gradients of a loss with respect to the inputs, each in the shape and type of its input, contiguous.
#[derive(Clone, Debug)]
pub struct Gradients<B: Backend> {
    /// Gradient of the queries.
    pub d_q: FloatTensor<B>,
    /// Gradient of the keys.
    pub d_k: FloatTensor<B>,
    /// Gradient of the values.
    pub d_v: FloatTensor<B>,
}

/// The result of an operation of [`AttentionBackend`]: Burn's macro can route an enum of tensors, but not a `Result`.
#[derive(ExtensionType)]
pub enum Outcome<B: Backend> {
    /// The operation succeeded.
    Computed {
        /// Output, `[batch, heads_q, seqlen_q, head_dim]`.
        o: FloatTensor<B>,
        /// The natural logarithm of each row's sum of exponentials: f32 `[batch, heads_q, seqlen_q]`.
        lse: FloatTensor<B>,
    },
    /// The operation was refused, or failed.
    Refused {
        /// Why.
        error: Error,
    },
}

impl<B: Backend> Outcome<B> {
    /// o and lse, or why there are none.
    pub fn into_result(self) -> Result<(FloatTensor<B>, FloatTensor<B>), Error> {
        match self {
            Outcome::Computed { o, lse } => Ok((o, lse)),
            Outcome::Refused { error } => Err(error),
        }
    }
}

impl<B: Backend> From<Result<Forward<B>, Error>> for Outcome<B> {
    fn from(result: Result<Forward<B>, Error>) -> Outcome<B> {
        match result {
            Ok(Forward { o, lse }) => Outcome::Computed { o, lse },
            Err(error) => Outcome::Refused { error },
        }
    }
}

/// Attention as an operation of a Burn backend.
///
/// q is `[batch, heads_q, seqlen_q, head_dim]`, k and v are `[batch, heads_k, seqlen_k, head_dim]`.
///
/// Through `Dispatch`, Burn panics if a tensor is on a backend that this build does not support, or if tensors are on different ones.
/// [`flash_attention`](crate::flash_attention) returns an error instead.
#[backend_extension(
    Autodiff: cfg(feature = "autodiff"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(feature = "cuda")
)]
pub trait AttentionBackend: Backend {
    /// o and lse. Under autodiff o depends on q, k and v; lse is a constant.
    fn flash_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        options: Options,
    ) -> Outcome<Self>;

    /// o and lse. Under autodiff both depend on q, k and v.
    fn flash_attention_with_lse(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        options: Options,
    ) -> Outcome<Self>;
}

impl<B: FlashBackend> AttentionBackend for B {
    fn flash_attention(
        q: FloatTensor<B>,
        k: FloatTensor<B>,
        v: FloatTensor<B>,
        options: Options,
    ) -> Outcome<B> {
        B::flash_forward(&q, &k, &v, &options).into()
    }

    fn flash_attention_with_lse(
        q: FloatTensor<B>,
        k: FloatTensor<B>,
        v: FloatTensor<B>,
        options: Options,
    ) -> Outcome<B> {
        B::flash_forward(&q, &k, &v, &options).into()
    }
}
