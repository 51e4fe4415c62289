//! The backward pass of a problem whose q, k and v are in 8 bits: a launch that takes them out, rounded to the problem's type, to the workspace; then the backward
//! pass of any algorithm on these.

use ferroflash_kernels::params::{DequantizeParams, KernelParams, Params, Slot};
use ferroflash_kernels::variants::Kind;

use super::flash3::forward::descales;
use super::select::{grid, of_dtype};
use super::{Backend, DeviceInfo, Plan, PlannedLaunch, Reason, eligible, lengths, refuse};
use crate::arguments::Argument;
use crate::error::PlanError;
use crate::terms::Algorithm;
use crate::validate::Checked;

/// The plan.
pub fn plan(
    checked: &Checked,
    device: &DeviceInfo,
    backend: Backend,
    asked: Option<Algorithm>,
) -> Result<Plan, PlanError> {
    let mut plan = super::plan(&checked.dequantized(), device, backend, asked)?;
    plan.problem = *checked.problem();
    match before(checked, device, &mut plan) {
        Ok(()) => Ok(plan),
        Err(reason) => Err(refuse(plan, asked, &reason)),
    }
}

/// Puts the launch before the others, and what it writes in the place of q, k and v.
fn before(checked: &Checked, device: &DeviceInfo, plan: &mut Plan) -> Result<(), Reason> {
    let problem = checked.problem();
    let bytes = problem.dtype().size_bytes();
    let mut place = |name, shape: [usize; 4]| {
        let [batch, rows, heads, columns] = shape.map(|n| n as u64);
        let factors = [batch, rows, heads, columns, bytes as u64];
        plan.workspace.place(name, &factors)
    };
    let q_values = place("q_values", problem.shape_q())?;
    let k_values = place("k_values", problem.shape_k())?;
    let v_values = place("v_values", problem.shape_v())?;
    for launch in &mut plan.launches {
        launch.params.slots(&mut |slot| {
            let (argument, base) = match slot {
                Slot::Tensor(argument, view) => (argument, &mut view.base),
                Slot::Map(argument, map) => (argument, &mut map.base),
                Slot::Vector(..) | Slot::Workspace(_) => return,
            };
            match argument {
                Argument::Q => *base = q_values,
                Argument::K => *base = k_values,
                Argument::V => *base = v_values,
                _ => {}
            }
        });
    }
    plan.has_memory(device)?;
    if plan.launches.is_empty() {
        // Nothing to compute, or no kernels.
        return Ok(());
    }
    let variant = of_dtype(Kind::Dequantize, checked)?;
    for columns in [problem.head_dim(), problem.head_dim_v()] {
        eligible::head_dim(variant.head_dims(), columns)?;
    }
    eligible::compute_capability(variant, device)?;
    eligible::alignment(checked.arguments())?;
    let rows = lengths::rows(problem);
    let params = DequantizeParams {
        q_values,
        k_values,
        v_values,
        descales: descales(problem),
        rows_q: rows.rows_q,
        rows_k: rows.rows_k,
        seqlen_q: problem.seqlen_q() as u32,
        seqlen_k: problem.seqlen_k() as u32,
        batch: problem.batch() as u32,
        heads_q: problem.heads_q() as u32,
        heads_k: problem.heads_k() as u32,
        group_size: problem.group_size() as u32,
        head_dim: problem.head_dim() as u32,
        head_dim_v: problem.head_dim_v() as u32,
        ..DequantizeParams::default()
    };
    let blocks = |rows: usize| (rows as u64).div_ceil(variant.tile_config.block_q.into());
    let of_all = blocks(problem.seqlen_q()) + 2 * blocks(problem.seqlen_k());
    let grid = grid(
        "the number of blocks of rows",
        &[problem.batch() as u64, of_all],
    )?;
    let launch = PlannedLaunch::new(checked, variant, grid, Params::Dequantize(params));
    if launch.grid > 0 {
        plan.launches.insert(0, launch);
    }
    Ok(())
}
