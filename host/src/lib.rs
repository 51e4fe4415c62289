//! FlashAttention in Rust, from the public API down to the tensor-core instruction.
//!
//! Exact attention, `o = softmax(q·kᵀ · softmax_scale, masked) · v`, and its gradients, in memory that grows with the
//! length and not with its square: on NVIDIA GPUs of compute capability 8.0 and newer by kernels written in Rust, on
//! other machines by all cores of the processor, with the same results up to rounding.
//!
//! ```
//! use ferroflash::{Device, attend, bf16};
//!
//! // Two sequences of 128 tokens, eight query heads over two heads of keys and values, 64 columns.
//! let (of_q, of_k) = ([2, 128, 8, 64], [2, 128, 2, 64]);
//! let q = vec![bf16::from_f32(0.5); of_q.iter().product()];
//! let k = vec![bf16::from_f32(0.25); of_k.iter().product()];
//! let v = vec![bf16::from_f32(2.0); of_k.iter().product()];
//!
//! let attended = attend((&q, of_q), (&k, of_k), (&v, of_k)).causal().forward(&Device::best())?;
//! assert!(attended.o.iter().all(|&o| o == bf16::from_f32(2.0))); // an average of equal values
//!
//! let gradients = attended.backward(&attended.o)?; // of the loss Σ o²/2
//! assert_eq!(gradients.d_k.len(), k.len());
//! println!("{}", attended.ran); // which backend, algorithm and kernels ran, and why the others did not
//! # Ok::<(), ferroflash::Error>(())
//! ```
//!
//! [`attend()`] allocates what it returns. The calls below it write to memory that the caller owns, and say each step:
//!
//! ```
//! use ferroflash::{Attention, Device, Dtype, Inputs, Mask, Outputs, Problem, Tensor, TensorMut, bf16};
//!
//! let problem = Problem::builder(Dtype::Bf16).batch(2).seqlen(128).heads_q(8).heads_k(2).head_dim(64).mask(Mask::Causal).build()?;
//! let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
//! # let [q, k, v] = [of_q, of_k, of_k].map(|shape| vec![bf16::ONE; shape.iter().product()]);
//! let mut o = vec![bf16::ZERO; q.len()];
//! let mut lse = vec![0f32; problem.shape_lse().iter().product()];
//!
//! let attention = Attention::new(&Device::best(), problem)?;
//! let inputs = Inputs::new(&Tensor::bshd(&q, of_q)?, &Tensor::bshd(&k, of_k)?, &Tensor::bshd(&v, of_k)?);
//! let mut outputs = Outputs::new(TensorMut::bshd(&mut o, of_q)?, &mut lse);
//! let ran = attention.forward(&inputs, &mut outputs)?;
//! # assert_eq!(o, v.repeat(4));
//! # Ok::<(), ferroflash::Error>(())
//! ```
//!
//! # A call, phase by phase
//!
//! | phase | from → to | what it may do |
//! |---|---|---|
//! | describe | [`Problem`], [`Inputs`], [`Outputs`] | nothing but hold what it is given |
//! | [`validate`] | problem × arguments → [`validate::Checked`] | refuse; looks at sizes and strides, never at memory or a device |
//! | [`plan`](mod@plan) | checked × [`plan::DeviceInfo`] → [`plan::Plan`] | choose kernels, grids, workspace; touches no device, allocates no tensor |
//! | launch | plan → [`backend`] | nothing but run what was planned; fails only with what the driver says |
//!
//! [`Attention::forward`] and [`Attention::backward`] take all four steps and return when the result is there. A
//! program that calls often, on a GPU, takes the first three once: [`Attention::prepare_forward`] gives a
//! [`PreparedForward`] that enqueues on a [`Queue`] without waiting or allocating.
//!
//! Operations beside attention take the same steps: [`Merge`] makes o and lse over two parts of the keys those over all of them, [`Append`]
//! writes new keys and values to a cache, [`Rotate`] turns rows by their positions, and [`Quantize`] rounds a tensor to 8 bits.
//!
//! # What every backend keeps
//!
//! - q, k, v, o are `[batch, seqlen, heads, head_dim]` with any strides whose last dimension is contiguous; v and o may have columns of
//!   another number ([`ProblemBuilder::head_dim_v`]). lse is `f32 [batch, heads_q, seqlen_q]`, the natural logarithm of the sum of exponentials.
//! - Scale, then an expression of the scores where there is one ([`ProblemBuilder::score`]), then mask, then softmax. A causal mask is aligned to the bottom right ([`Mask::Causal`]).
//! - A row that sees no key gives o = 0, lse = −∞ (where its head has a sink, the sink) and gradients of 0.
//! - A loss may depend on lse as well as on o: the backward pass takes both gradients ([`OutputGradients`]).
//! - Equal inputs give bit-equal results, run after run, unless [`Order::Fastest`] is asked for.
//! - What was chosen by name is never replaced; results say what ran and why ([`Ran`]).
// Only `backend::cuda`, which calls the driver, and `raw`, whose callers have addresses, allow what is denied here.
#![deny(unsafe_code)]

pub mod place;

pub mod attend;

pub mod kv_cache;

pub mod attention;

pub mod weights;

pub mod merge;

pub mod append;

pub mod rotate;

pub mod fp8;

pub mod operation;

pub mod cache;

pub mod ahead;

pub mod prepared;

pub mod raw;

pub mod rotary;

pub mod problem;

pub mod dropout;

pub mod dtype;

pub mod tensor;

pub mod arguments;

pub mod quantize;

mod lengths;

mod terms;

pub mod device;

pub mod validate;

pub mod plan;

pub mod backend;

pub mod error;

/// Expressions of scores and masks: what [`Score::new`] and [`Mask::new`] trace closures with.
pub mod expression {
    pub use ferroflash_expression::{
        At, Cond, ElementType, Expression, ExpressionError, Int, MAX_NODES, MAX_PARAMS, MAX_RANK,
        MAX_TENSORS, Num, Operand, Param, ParamValue, Precision, Tensor, Type, Use,
    };
}

pub use append::Append;
pub use arguments::{
    AppendInputs, AppendOutputs, DropoutRng, Gradients, Inputs, MergeInputs, OutputGradients,
    Outputs, QuantizeInputs, QuantizeOutputs, RotateInputs, Saved, ScoreInputs,
};
pub use attend::attend;
pub use attention::{Attention, Explanation, Ran};
pub use backend::cuda::{Graph, Queue};
pub use cache::PlanCache;
pub use device::Device;
pub use dropout::dropout_mask;
pub use dtype::{Dtype, Element, Scalar};
pub use error::Error;
pub use fp8::Quantize;
pub use half::{bf16, f16};
pub use kv_cache::KvCache;
pub use merge::Merge;
pub use operation::Done;
pub use plan::{Algorithm, Backend};
pub use prepared::{
    PreparedAppend, PreparedBackward, PreparedForward, PreparedMerge, PreparedQuantize,
    PreparedRotate,
};
pub use problem::append::AppendProblem;
pub use problem::merge::MergeProblem;
pub use problem::quantize::QuantizeProblem;
pub use problem::rotate::RotateProblem;
pub use problem::{
    BlockMask, Dropout, Fp8, Fp8Kv, Fp8Sums, Mask, MaskExpression, Order, Pages, Precision,
    Problem, ProblemBuilder, Score, SplitKv,
};
pub use rotate::Rotate;
pub use tensor::{Layout, ReadTensor, Tensor, TensorMut, Vector, VectorMut};
pub use validate::Pass;
pub use weights::{WeightsOf, WeightsRan};

/// README.md's example, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the book's chapter on scores and masks, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/score.md")]
struct ScoresOfTheBook;

/// The example of the book's chapter on 8 bits, likewise.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/fp8.md")]
struct Fp8OfTheBook;
