//! [`Checked`] × [`DeviceInfo`] → [`Plan`]: the kernels that run, their grids and parameters, and the workspace.
//!
//! Planning is pure: it touches no device and no tensor, so plans for any GPU can be made and tested anywhere. A plan leaves only addresses open;
//! [`Plan::params`] fills them in at launch.
//!
//! ```
//! use ferroflash::plan::{Algorithm, Backend, DeviceInfo, plan};
//! use ferroflash::tensor::Location;
//! use ferroflash::validate::without_tensors;
//! use ferroflash::{Dtype, Mask, Pass, Problem};
//!
//! // Of an H200, which this machine need not have.
//! let problem = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16).head_dim(128).mask(Mask::Causal).build()?;
//! let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0))?;
//! let plan = plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None)?;
//! assert_eq!(plan.algorithm, Algorithm::Flash3);
//! println!("{plan}"); // kernels, grids, workspace, and why the other candidates do not run
//! # Ok::<(), ferroflash::Error>(())
//! ```

mod append;
mod backward;
mod block_mask;
mod clear;
mod dequantize;
mod device;
mod display;
mod eligible;
mod flash1;
mod flash2;
mod flash3;
mod lengths;
mod mask_map;
mod merge;
mod operation;
mod planned;
mod quantize;
#[doc(hidden)]
pub mod schedule;
mod select;
mod short;
mod sinks;
mod split_kv;
mod stamps;
mod standard;
mod tensor_gradient;
mod tensor_map;
mod thresholds;
mod time;
mod views;
#[doc(hidden)]
pub mod workspace;

use std::fmt;

use ferroflash_expression::Kept;
use ferroflash_kernels::params::{
    DropoutParams, ForwardParams, KernelParams, Params, SHIFTED, Schedule, Slot, SplitKv,
    TmaForwardParams,
};
pub use ferroflash_kernels::params::{Moment, Stamp};
use ferroflash_kernels::spec::Constant;
pub use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::{TileShape, Variant};

pub use append::{AppendPlan, RotatePlan, plan_append, plan_rotate};
pub use device::DeviceInfo;
pub use eligible::eligible;
pub use merge::{MergePlan, plan_merge};
pub use operation::OperationPlan;
pub(crate) use planned::{Lies, Planned, give};
pub use quantize::{QuantizePlan, plan_quantize};
pub use select::kinds;
pub use stamps::NoStamps;
pub use standard::COLUMN_MULTIPLE;
pub use thresholds::Thresholds;
pub use workspace::WorkspaceLayout;

use crate::arguments::Argument;
use crate::backend::cpu;
use crate::error::PlanError;
use crate::problem::Problem;
pub use crate::terms::{Algorithm, Backend, Candidate, MaskBlocks, Outcome, Reason, Unmapped};
use crate::validate::{Checked, Pass};

/// All decisions before a launch.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The backend.
    pub backend: Backend,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The pass.
    pub pass: Pass,
    /// The problem.
    pub problem: Problem,
    /// The kernels, one after another on one stream. Empty on the CPU, and if there is nothing to compute.
    pub launches: Vec<PlannedLaunch>,
    /// Memory in addition to inputs and outputs.
    pub workspace: WorkspaceLayout,
    /// Bytes that the full matrices of scores and weights would take. Saturates.
    pub standard_bytes: u64,
    /// Whether blocks of scores that a mask expression hides are skipped; `None` without one.
    pub mask_blocks: Option<MaskBlocks>,
    /// For every algorithm, whether it was chosen or why not.
    pub candidates: Vec<Candidate>,
}

/// One kernel launch.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedLaunch {
    /// The kernel; its tile config has threads and shared memory.
    pub variant: &'static Variant,
    /// The constants that it is compiled with.
    pub spec: Spec,
    /// The score expression, if it is compiled into the kernel.
    pub edit: Option<Kept>,
    /// Number of blocks.
    pub grid: u32,
    /// Its parameters. Addresses of tensors are 0, of workspace pieces their offset: see [`Plan::params`].
    pub params: Params,
}

/// A kernel that a plan launches: an entry of the list of kernels, and its constants.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpecialisedKernel {
    /// Name of the entry.
    pub name: &'static str,
    /// The constants that it is compiled with.
    pub spec: Spec,
}

/// `forward_sm90a_bf16_d128 right_bound`.
impl fmt::Display for SpecialisedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.spec)
    }
}

/// Plans a checked problem for a GPU (or the emulator's) or for the CPU. An algorithm asked for by name is never replaced: if it cannot run the
/// problem, the error lists every candidate with its reason.
///
/// The [module](mod@crate::plan) has an example.
pub fn plan(
    checked: &Checked,
    device: &DeviceInfo,
    backend: Backend,
    asked: Option<Algorithm>,
) -> Result<Plan, PlanError> {
    if checked.pass() == Pass::Backward && checked.problem().fp8().is_some() {
        return dequantize::plan(checked, device, backend, asked);
    }
    let has_mask = checked.problem().mask_expression().is_some();
    let checked = &checked.with_band_in_mask();
    let (algorithm, kernels, candidates) = select::select(checked, device, backend, asked)?;
    let mut plan = Plan {
        backend,
        algorithm,
        pass: checked.pass(),
        problem: *checked.problem(),
        launches: Vec::new(),
        workspace: WorkspaceLayout::default(),
        standard_bytes: standard::n_bytes(checked),
        mask_blocks: None,
        candidates,
    };
    let planned = match (algorithm, checked.pass()) {
        (Algorithm::Flash3, Pass::Forward) => {
            flash3::forward::launches(checked, device, &kernels, &mut plan.workspace)
        }
        (Algorithm::Flash3, Pass::Backward) => {
            flash3::backward::launches(checked, device, &kernels, &mut plan.workspace)
        }
        (Algorithm::Flash2, Pass::Backward) => {
            flash2::backward(checked, device, &kernels, &mut plan.workspace)
        }
        (Algorithm::Flash2, _) => flash2::forward(checked, device, &kernels, &mut plan.workspace),
        (Algorithm::Flash1, Pass::Backward) => {
            flash1::backward(checked, device, &kernels, &mut plan.workspace)
        }
        (Algorithm::Flash1, _) => flash1::forward(checked, &kernels, &mut plan.workspace),
        (Algorithm::Standard, _) => standard::launches(checked, &kernels, &mut plan.workspace),
        _ => Ok(Vec::new()),
    };
    let planned = planned.and_then(|launches| match checked.arguments().get(Argument::Lse) {
        Some(_) => Ok(launches),
        None => lse_in_workspace(checked, launches, &mut plan.workspace),
    });
    let planned =
        planned.and_then(|launches| tensor_gradient::behind(checked, launches, &mut plan));
    match planned.and_then(|launches| plan.has_memory(device).map(|()| launches)) {
        Ok(launches) => {
            plan.mask_blocks = match checked.problem().mask_expression() {
                None => has_mask.then_some(MaskBlocks::Band),
                Some(_) => mask_map::outcome(checked, device, &launches),
            };
            plan.launches = mask_map::specialise(checked, launches);
            Ok(plan)
        }
        Err(reason) => Err(refuse(plan, asked, &reason)),
    }
}

/// The error of a plan whose algorithm turned out unable to run the problem.
fn refuse(plan: Plan, asked: Option<Algorithm>, reason: &Reason) -> PlanError {
    let Plan {
        backend,
        algorithm,
        mut candidates,
        ..
    } = plan;
    candidates
        .iter_mut()
        .filter(|candidate| candidate.algorithm == algorithm)
        .for_each(|candidate| candidate.outcome = Outcome::Refused(reason.clone()));
    PlanError::NoCandidate {
        backend,
        asked,
        candidates,
    }
}

/// The same launches, writing lse to the workspace: the caller does not want it, but kernels always write it.
fn lse_in_workspace(
    checked: &Checked,
    mut launches: Vec<PlannedLaunch>,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let n_bytes = size_of::<f32>() as u64;
    let lse = workspace.place("lse", &[checked.n_rows(), n_bytes])?;
    for launch in &mut launches {
        launch.params.slots(&mut |slot| {
            if let Slot::Vector(Argument::Lse, place) = slot {
                *place = lse;
            }
        });
    }
    Ok(launches)
}

impl PlannedLaunch {
    /// One launch of a kernel, compiled with those of the problem's constants that it uses. Sizes and strides of tensors are
    /// filled in here.
    fn new(checked: &Checked, variant: &'static Variant, grid: u32, mut params: Params) -> Self {
        let place = planned::place_of_dropout(&mut params);
        if let (Some(place), Some(dropout)) = (place, checked.problem().dropout()) {
            *place = DropoutParams::keeping(dropout.kept_bytes());
        }
        let spec = views::spec(checked, variant);
        let edits = spec.has(Constant::Score) || spec.has(Constant::ScoreGradient);
        PlannedLaunch {
            variant,
            spec,
            edit: checked.problem().edit().filter(|_| edits),
            grid,
            params: views::describe(params, variant, checked.arguments()),
        }
    }

    /// The same without the score expression.
    fn without_edit(self) -> PlannedLaunch {
        PlannedLaunch {
            spec: self.spec.without(Constant::Score),
            edit: None,
            ..self
        }
    }

    /// The kernel.
    pub fn kernel(&self) -> SpecialisedKernel {
        let (name, spec) = (self.variant.name, self.spec);
        SpecialisedKernel { name, spec }
    }

    /// The order of its tiles, if it has one.
    pub fn schedule(&self) -> Option<Schedule> {
        match &self.params {
            Params::Forward(params) => Some(params.schedule),
            Params::TmaForward(params) => Some(params.schedule),
            params => params.backward().map(|pass| pass.schedule),
        }
    }

    /// Whether blocks wait for each other, so that all of them must be resident.
    pub fn runs_together(&self) -> bool {
        matches!(&self.params, Params::TmaBackward(params) if params.pass.schedule.order == SHIFTED)
    }

    /// The number of head splits among which its tiles of keys divide the query heads of a KV head.
    fn n_head_splits(&self) -> u32 {
        self.params.backward().map_or(1, |pass| pass.n_head_splits)
    }

    /// The splits of a sequence's keys, if it divides them.
    fn splits(&self) -> Option<SplitKv> {
        match self.params {
            Params::Forward(ForwardParams { split, .. })
            | Params::TmaForward(TmaForwardParams { split, .. }) => Some(split),
            _ => None,
        }
        .filter(|split| split.n > 0)
    }

    /// How many query heads share its tiles.
    fn packed_heads(&self) -> u32 {
        match self.params {
            Params::Forward(params) if self.variant.tiles == TileShape::Compact => {
                params.shape.group_size
            }
            Params::TmaForward(params) => 1 << params.pack_gqa_log2,
            _ => 1,
        }
    }
}

impl Plan {
    /// Whether the device has the memory of the workspace.
    fn has_memory(&self, device: &DeviceInfo) -> Result<(), Reason> {
        match self.workspace.n_bytes() {
            needed if needed > device.memory_bytes && self.backend != Backend::Cpu => {
                let given = device.memory_bytes;
                Err(Reason::Memory { given, needed })
            }
            _ => Ok(()),
        }
    }

    /// The parameters of one of the launches, with every address filled in: that of the workspace, a multiple of [`workspace::ALIGNMENT_BYTES`], and
    /// for each argument `address`, which is 0 if it was not given. An empty argument gets the workspace's. The call fills in the inputs of score
    /// expressions, and seed and offset of dropout.
    pub fn params(
        &self,
        launch: &PlannedLaunch,
        workspace: u64,
        address: impl Fn(Argument) -> u64,
    ) -> Params {
        self.bound(launch, workspace, address, None)
    }

    /// Bytes that running it takes in addition to inputs and outputs; on the CPU, with the current number of threads.
    pub fn extra_bytes(&self) -> u64 {
        match self.backend {
            Backend::Cpu => {
                let pieces = self.workspace.pieces().iter();
                cpu::extra_bytes(&self.problem, self.pass)
                    + pieces.map(|piece| piece.n_bytes).sum::<u64>()
            }
            _ => self.workspace.n_bytes(),
        }
    }

    /// The kernels, in launch order.
    pub fn kernels(&self) -> impl Iterator<Item = SpecialisedKernel> + '_ {
        self.launches.iter().map(PlannedLaunch::kernel)
    }
}
