//! Attention over two parts of the keys, merged: [`Merge::run`].
//!
//! Attention over all keys follows from attention over parts of them. Each part gives o and lse. With the weights `exp(lse_i − lse)`,
//! where `lse = log(exp(lse_1) + exp(lse_2))`, the output over all keys is the weighted sum of the parts' outputs (Flash-Decoding, Dao
//! et al. 2023). Programs use this
//!
//! - for prefixes that several sequences share: attention to the prefix for all queries at once, then to each sequence's own keys;
//! - for cascades of caches, level by level;
//! - for ring attention (Liu et al. 2023): each device passes its keys on, and merges the partial results.
//!
//! ```
//! use ferroflash::{Attention, Device, Dtype, Inputs, Merge, MergeInputs, MergeProblem, Outputs, Problem, Tensor, TensorMut};
//!
//! // One query of one column over four keys, two at a time.
//! let device = Device::cpu();
//! let (q, k, v) = ([1f32], [0.5f32, -1.0, 2.0, 0.0], [1f32, 2.0, 3.0, 4.0]);
//! let attend = |k: &[f32], v: &[f32]| {
//!     let problem =
//!         Problem::builder(Dtype::F32).seqlen_q(1).seqlen_k(k.len()).heads(1).head_dim(1).softmax_scale(1.0).build()?;
//!     let (mut o, mut lse) = ([0f32], [0f32]);
//!     let inputs = Inputs::new(
//!         &Tensor::bshd(&q, problem.shape_q())?,
//!         &Tensor::bshd(k, problem.shape_k())?,
//!         &Tensor::bshd(v, problem.shape_v())?,
//!     );
//!     let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
//!     Attention::new(&device, problem)?.forward(&inputs, &mut outputs)?;
//!     Ok::<_, ferroflash::Error>((o, lse))
//! };
//! let (o_1, lse_1) = attend(&k[..2], &v[..2])?;
//! let (o_2, lse_2) = attend(&k[2..], &v[2..])?;
//!
//! let shape = [1, 1, 1, 1];
//! let merge = Merge::new(&device, MergeProblem::new(Dtype::F32, shape))?;
//! let (mut o, mut lse) = ([0f32], [0f32]);
//! merge.run(
//!     &MergeInputs::new(&Tensor::bshd(&o_1, shape)?, &lse_1, &Tensor::bshd(&o_2, shape)?, &lse_2),
//!     &mut Outputs::new(TensorMut::bshd(&mut o, shape)?, &mut lse),
//! )?;
//!
//! let (whole, whole_lse) = attend(&k, &v)?;
//! assert!((o[0] - whole[0]).abs() < 1e-6 && (lse[0] - whole_lse[0]).abs() < 1e-6);
//! # Ok::<(), ferroflash::Error>(())
//! ```

use crate::arguments::{MergeInputs, Operands, Outputs};
use crate::backend::cpu;
use crate::device::Device;
use crate::error::Error;
use crate::operation::{Call, Done};
use crate::plan::plan_merge;
use crate::prepared::{Layouts, PreparedMerge};
use crate::problem::merge::MergeProblem;
use crate::validate::merge::{check_merge, merge_sizes};

/// Merges of one shape and type on a device.
///
/// With `m = max(lse_1, lse_2)`, each row of each head is
///
/// ```text
/// lse = m + log(exp(lse_1 − m) + exp(lse_2 − m))
/// o   = exp(lse_1 − lse) · o_1 + exp(lse_2 − lse) · o_2
/// ```
///
/// - Logarithms are natural, as those that [`Attention::forward`](crate::Attention::forward) gives. Sums are f32.
/// - A part whose lse is −∞ saw no key. Its weight is 0, and its o is not read: it may be NaN. If both saw none, o is 0 and lse −∞.
/// - If one part has all the weight, o is that part's, bit for bit.
/// - Equal inputs give equal bits, whichever part comes first.
///
/// GPUs merge rows of up to 256 columns: a multiple of 8 for bf16 and f16, of 4 for f32. Tensors begin at multiples of 16 bytes, and strides are
/// such multiples. The CPU merges any head_dim up to 576.
///
/// A merge has no backward pass.
#[derive(Clone, Debug)]
pub struct Merge {
    device: Device,
    problem: MergeProblem,
}

impl Merge {
    /// Merges of this shape and type. The error names the size that is invalid.
    pub fn new(device: &Device, problem: MergeProblem) -> Result<Merge, Error> {
        merge_sizes(&problem)?;
        Ok(Merge {
            device: device.clone(),
            problem,
        })
    }

    /// The problem.
    pub fn problem(&self) -> &MergeProblem {
        &self.problem
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Computes o and lse over the keys of both parts. Returns when they are written. On a GPU it takes tensors on the host and in device memory, as
    /// [`Attention`](crate::Attention)'s calls do.
    ///
    /// [`Outputs::without_lse`] leaves lse out; [`Outputs::weights`] is refused. An error of
    /// [`ProblemError`](crate::error::ProblemError) or [`PlanError`](crate::error::PlanError) says which argument does not fit; then nothing was written.
    pub fn run(&self, inputs: &MergeInputs, outputs: &mut Outputs) -> Result<Done, Error> {
        self.compute(&mut Operands::merge(inputs, outputs))
    }

    /// Prepares a merge of tensors of these layouts in device memory, to be enqueued on a [`Queue`](crate::Queue) without waiting. Only on a GPU.
    /// Layouts are those of [`O1`](crate::error::Argument::O1), [`O2`](crate::error::Argument::O2) and
    /// [`O`](crate::error::Argument::O).
    pub fn prepare(&self, layouts: &Layouts) -> Result<PreparedMerge, Error> {
        Ok(PreparedMerge::new(self.call().prepare(layouts)?))
    }

    pub(crate) fn compute(&self, operands: &mut Operands) -> Result<Done, Error> {
        self.call().run(operands, |problem, operands| {
            Ok(cpu::merge::run(problem, operands)?)
        })
    }

    fn call(&self) -> Call<'_, MergeProblem> {
        Call {
            device: &self.device,
            problem: &self.problem,
            check: |problem, arguments| Ok(check_merge(problem, arguments)?),
            lengths: |_, _| Ok(()),
            plan: plan_merge,
        }
    }
}
