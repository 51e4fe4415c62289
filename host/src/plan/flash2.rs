//! Launches of flash2: grids and parameters.

use ferroflash_kernels::params::{BackwardParams, ForwardParams, Params};
use ferroflash_kernels::variants::{Kind, Variant};

use super::reason::Reason;
use super::select::{PassKernels, grid};
use super::views::{scale, shape, view};
use super::workspace::WorkspaceLayout;
use super::{Addresses, DeviceInfo, PlannedLaunch, schedule};
use crate::validate::Checked;

/// One launch: query tiles of every head; none where there is no row.
pub fn forward(checked: &Checked, kernels: &PassKernels) -> Result<Vec<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let heads = (problem.batch * problem.heads_q) as u32;
    let launch = |variant: &&'static Variant| {
        let tiles = (problem.seqlen_q as u32).div_ceil(variant.footprint.block_q);
        let grid = grid("the number of query tiles", &[tiles.into(), heads.into()])?;
        let tensors = checked.forward();
        let params = ForwardParams {
            q: view(&tensors.q),
            k: view(&tensors.k),
            v: view(&tensors.v),
            o: view(&tensors.o),
            lse: 0,
            shape: shape(checked),
            scale: scale(checked),
            schedule: schedule::forward(
                problem,
                tiles,
                heads,
                problem.group_size() as u32,
                problem.dtype.size_bytes() as u64,
            ),
        };
        Ok(PlannedLaunch {
            variant,
            grid,
            params: Params::Forward(params),
        })
    };
    let launches: Result<Vec<_>, _> = kernels.variants().iter().map(launch).collect();
    Ok(launches?
        .into_iter()
        .filter(|launch| launch.grid > 0)
        .collect())
}

/// Δ, then the main kernel, then dQ.
///
/// The padded length is at least one block, so that without any query the first kernel still clears the ticket and the
/// main kernel still writes dK = dV = 0.
pub fn backward(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let Some(main) = kernels
        .variants()
        .iter()
        .find(|variant| variant.kind == Kind::Backward)
    else {
        return Ok(Vec::new());
    };
    let block_q = u64::from(main.footprint.block_q);
    let padded_q = (problem.seqlen_q as u64).max(1).next_multiple_of(block_q);
    let heads_q = (problem.batch * problem.heads_q) as u64;
    let heads_k = (problem.batch * problem.heads_k) as u64;
    let tiles = (problem.seqlen_k as u32).div_ceil(main.footprint.block_k);
    let params = BackwardParams {
        schedule: schedule::backward(problem, tiles, heads_k as u32, device, &main.footprint),
        ..params(checked, padded_q, block_q, workspace)?
    };

    let mut launches = Vec::new();
    for &variant in kernels.variants() {
        let grid = match variant.kind {
            Kind::Backward => grid("the number of key tiles", &[tiles.into(), heads_k])?
                .min(schedule::resident_blocks(device, &variant.footprint)),
            // Nothing was added up where there is no query.
            Kind::BackwardDq if problem.seqlen_q == 0 => 0,
            _ => {
                let blocks = padded_q.div_ceil(variant.footprint.block_q.into());
                grid("the number of query blocks", &[blocks, heads_q])?
            }
        };
        if grid > 0 {
            launches.push(PlannedLaunch {
                variant,
                grid,
                params: Params::Backward(params),
            });
        }
    }
    Ok(launches)
}

/// What the three kernels share; the workspace's pieces are laid out here.
fn params(
    checked: &Checked,
    padded_q: u64,
    block_q: u64,
    workspace: &mut WorkspaceLayout,
) -> Result<BackwardParams, Reason> {
    let problem = checked.problem();
    let heads = (problem.batch * problem.heads_q) as u64;
    let f32_bytes = size_of::<f32>() as u64;
    let mut push = |name, factors: &[u64]| workspace.place(name, factors);
    let lse_log2 = push("lse_log2", &[heads, padded_q, f32_bytes])?;
    let delta = push("delta", &[heads, padded_q, f32_bytes])?;
    let d_q_accum = push(
        "d_q_accum",
        &[heads, padded_q, problem.head_dim as u64, f32_bytes],
    )?;
    let turns = push(
        "turns",
        &[heads, padded_q / block_q, size_of::<u32>() as u64],
    )?;
    let ticket = push("ticket", &[size_of::<u32>() as u64])?;

    let tensors = checked.forward();
    let gradients = checked.gradients();
    let gradient = |of: fn(&crate::validate::GradientTensors) -> crate::tensor::Description| {
        gradients
            .map(|gradients| view(&of(gradients)))
            .unwrap_or_default()
    };
    Ok(BackwardParams {
        q: view(&tensors.q),
        k: view(&tensors.k),
        v: view(&tensors.v),
        o: view(&tensors.o),
        d_o: gradient(|gradients| gradients.d_o),
        d_q: gradient(|gradients| gradients.d_q),
        d_k: gradient(|gradients| gradients.d_k),
        d_v: gradient(|gradients| gradients.d_v),
        lse: 0,
        d_lse: 0,
        lse_log2,
        delta,
        d_q_accum,
        turns,
        ticket,
        padded_q,
        shape: shape(checked),
        scale: scale(checked),
        schedule: Default::default(),
    })
}

/// Fills the addresses in.
pub fn bind_forward(mut params: ForwardParams, at: &Addresses) -> ForwardParams {
    params.q.base = at.q;
    params.k.base = at.k;
    params.v.base = at.v;
    params.o.base = at.o;
    params.lse = at.lse;
    params
}

/// Fills the addresses in.
pub fn bind_backward(mut params: BackwardParams, at: &Addresses) -> BackwardParams {
    params.q.base = at.q;
    params.k.base = at.k;
    params.v.base = at.v;
    params.o.base = at.o;
    params.d_o.base = at.d_o;
    params.d_q.base = at.d_q;
    params.d_k.base = at.d_k;
    params.d_v.base = at.d_v;
    params.lse = at.lse;
    params.d_lse = at.d_lse;
    params.lse_log2 += at.workspace;
    params.delta += at.workspace;
    params.d_q_accum += at.workspace;
    params.turns += at.workspace;
    params.ticket += at.workspace;
    params
}
