//! New keys and values written to a cache, with rotary position embedding: [`Append::run`].
//!
//! A model that generates text keeps the keys and values of the tokens that it has seen. Each step appends those of the new tokens, rotates keys and
//! queries by their positions (RoPE; Su et al. 2021, arXiv 2104.09864; tables for longer sequences, such as YaRN's, come from
//! [`rotary`](crate::rotary)), and attends over the cache. An append does the first two in one launch, as
//! `flash_attn_with_kvcache` of flash-attn does for its caches. Lengths stay on the device: [`AppendOutputs::seqused_out`] is the `seqused_k` of the
//! attention call that follows.
//!
//! ```
//! use ferroflash::rotary::{Pairs, Rotary};
//! use ferroflash::{Append, AppendInputs, AppendOutputs, AppendProblem, Device, Dtype, Tensor, TensorMut};
//!
//! // Two sequences with 3 rows and 1 row in a cache of 8. Each gets one more.
//! let problem = AppendProblem::builder(Dtype::F32)
//!     .batch(2)
//!     .seqlen_new(1)
//!     .heads_q(2)
//!     .heads_k(1)
//!     .head_dim(4)
//!     .seqlen_cache(8)
//!     .rotary(Pairs::Halves, 4, 8)
//!     .build()?;
//! let table = Rotary::new(4).table(8)?;
//! let (k_new, v_new, seqused) = ([1f32; 8], [2f32; 8], [3, 1]);
//! let (mut k, mut v, mut seqused_out) = ([0f32; 64], [0f32; 64], [0; 2]);
//! let mut q = [1f32; 16];
//!
//! let append = Append::new(&Device::cpu(), problem)?;
//! append.run(
//!     &AppendInputs::new(
//!         &Tensor::bshd(&k_new, problem.shape_new())?,
//!         &Tensor::bshd(&v_new, problem.shape_new())?,
//!         &seqused,
//!     )
//!     .rotary(table.cos(), table.sin()),
//!     &mut AppendOutputs::new(
//!         TensorMut::bshd(&mut k, problem.shape_cache())?,
//!         TensorMut::bshd(&mut v, problem.shape_cache())?,
//!     )
//!     .q_out(TensorMut::bshd(&mut q, problem.shape_q())?) // in place: no separate q
//!     .seqused_out(&mut seqused_out),
//! )?;
//! assert_eq!(seqused_out, [4, 2]);
//! assert_eq!(v[3 * 4..4 * 4], [2.0; 4]); // row 3 of sequence 0
//! let (sin, cos) = 3f32.sin_cos(); // the fastest pair turns by 1 at each position
//! assert!((k[3 * 4] - (cos - sin)).abs() < 1e-6 && (q[0] - (cos - sin)).abs() < 1e-6);
//! # Ok::<(), ferroflash::Error>(())
//! ```

use crate::arguments::{AppendInputs, AppendOutputs, Operands};
use crate::backend::cpu;
use crate::device::Device;
use crate::error::Error;
use crate::operation::{Call, Done};
use crate::plan::plan_append;
use crate::prepared::{Layouts, PreparedAppend};
use crate::problem::append::AppendProblem;
use crate::validate::rotary::{append_sizes, append_values, check_append};

/// Appends of one shape and type on a device.
///
/// Sequence b has `seqused_k[b]` rows in the cache. Its new row i becomes row `p = seqused_k[b] + i`, which is its position:
///
/// ```text
/// k_cache[b, p] = turn(k_new[b, i], p)        v_cache[b, p] = v_new[b, i]        seqused_out[b] = seqused_k[b] + new rows of b
/// q_out[b, i]   = turn(q[b, i], p), or turn(q[b, i], seqused_k[b]) with QueryPositions::First
/// ```
///
/// - `turn` is that of [`RotaryTable::rotate`](crate::rotary::RotaryTable::rotate): in f32, rounded once; elements from rotary_dim on are copied.
///   Without [`AppendBuilder::rotary`](crate::problem::append::AppendBuilder::rotary) k is copied as well. Copies are bit for bit.
/// - A cache in 8 bits ([`AppendBuilder::fp8_kv`](crate::problem::append::AppendBuilder::fp8_kv)) gets `e4m3(x / descale)` of what it would get
///   otherwise: rotated in f32 and rounded only once, as [`Quantize`](crate::Quantize) rounds with given scales. What is greater than 448 · descale becomes
///   448, with its sign.
/// - No other row of the cache is read or written: it may be NaN.
/// - New rows are padded, or packed with [`AppendInputs::cu_seqlens_new`]. Packed rows outside every sequence are not read, and their q_out is not written.
/// - Every tensor has any strides whose last dimension is contiguous; rows of outputs do not overlap. q_out has either the memory and layout of q,
///   or does not overlap it. seqused_out does not overlap seqused_k. Any other overlap is an error. No other
///   output may share elements with another argument; they may lie in one allocation, as packed q, k, v do.
/// - Equal inputs give equal bits, on every backend, except for the payload of a NaN that was rotated.
///
/// Every call checks lengths, and scales of rows that are written, on the host; contradictions are errors. The host does not look at lengths in a device's memory. There a new row whose
/// `seqused_k[b] + i` is negative, at least seqlen_cache or, with rotary position embedding, at least n_positions is dropped:
/// neither cache is written; the other rows are. A query whose position is negative or at least n_positions is not written. `seqused_out` is limited
/// to the room in the cache, so that attention stays inside it. A packed row belongs to the last sequence that begins at or before it. If
/// `cu_seqlens_new` does not ascend, rows may belong to no sequence. Nothing outside the tensors is ever read or written.
///
/// GPUs append rows of up to 256 columns: a multiple of 8 for bf16 and f16, of 4 for f32, of 16 to a cache in 8 bits, which wants compute capability 8.9. Tensors begin at multiples of 16 bytes, and strides are
/// such multiples. Any even rotary_dim is taken; with [`Pairs::Halves`](crate::rotary::Pairs::Halves) multiples of 16 are faster (f32: multiples of
/// 8), with [`Pairs::Interleaved`](crate::rotary::Pairs::Interleaved) those of 8. The CPU appends any head_dim up to 576.
#[derive(Clone, Debug)]
pub struct Append {
    device: Device,
    problem: AppendProblem,
}

impl Append {
    /// Appends of this shape and type.
    ///
    /// # Errors
    /// A size makes no sense: head_dim is 0 or above 256, rotary_dim is 0, odd or above head_dim, every sequence has more new rows than the
    /// cache or the tables have.
    pub fn new(device: &Device, problem: AppendProblem) -> Result<Append, Error> {
        append_sizes(&problem)?;
        Ok(Append {
            device: device.clone(),
            problem,
        })
    }

    /// The problem.
    pub fn problem(&self) -> &AppendProblem {
        &self.problem
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Appends the new rows and rotates the queries. Returns when they are written. On a GPU it takes tensors in device memory, and tensors on the
    /// host, which it copies there and back.
    ///
    /// # Errors
    /// [`ProblemError`](crate::error::ProblemError), [`PlanError`](crate::error::PlanError): an argument does not fit, or a length on the host
    /// contradicts another. Nothing was written.
    pub fn run(&self, inputs: &AppendInputs, outputs: &mut AppendOutputs) -> Result<Done, Error> {
        self.compute(&mut Operands::append(inputs, outputs))
    }

    /// Prepares an append to caches of these layouts in device memory, to be enqueued on a [`Queue`](crate::Queue) without waiting. Only on a GPU.
    /// Every call gives q and q_out, unless [`Layouts::without`] names [`Q`](crate::error::Argument::Q): then q_out is rotated in
    /// place. Calls give seqused_out if [`Layouts::giving`] names [`SeqUsedOut`](crate::error::Argument::SeqUsedOut).
    pub fn prepare(&self, layouts: &Layouts) -> Result<PreparedAppend, Error> {
        Ok(PreparedAppend::new(self.call().prepare(layouts)?))
    }

    pub(crate) fn compute(&self, operands: &mut Operands) -> Result<Done, Error> {
        self.call().run(operands, cpu::rotary::append)
    }

    fn call(&self) -> Call<'_, AppendProblem> {
        Call {
            device: &self.device,
            problem: &self.problem,
            check: check_append,
            lengths: append_values,
            plan: plan_append,
        }
    }
}
