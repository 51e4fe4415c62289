//! Launches of flash2: grids and parameters.

use ferroflash_kernels::params::{ForwardParams, Params};
use ferroflash_kernels::variants::{Kind, Variant};

use super::backward::{self, Cut};
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
            window: checked.problem().window(),
            scale: scale(checked),
            schedule: schedule::forward(
                problem,
                tiles,
                heads,
                problem.group_size() as u32,
                problem.dtype.size_bytes() as u64,
            ),
        };
        Ok(PlannedLaunch::new(
            problem,
            variant,
            grid,
            Params::Forward(params),
        ))
    };
    let launches: Result<Vec<_>, _> = kernels.variants().iter().map(launch).collect();
    Ok(launches?
        .into_iter()
        .filter(|launch| launch.grid > 0)
        .collect())
}

/// Δ, then the main kernel, then dQ: see [`backward::launches`].
pub fn backward(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let Some(main) = kernels.of_kind(Kind::Backward) else {
        return Ok(Vec::new());
    };
    let problem = checked.problem();
    let cut = Cut::new(problem, &main.footprint);
    let schedule = schedule::backward(problem, &cut, device, &main.footprint);
    let columns = problem.head_dim as u32;
    let params = backward::params(checked, main, &cut, columns, schedule, workspace)?;
    backward::launches(
        checked,
        device,
        kernels,
        &cut,
        &params,
        Params::Backward(params),
    )
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
