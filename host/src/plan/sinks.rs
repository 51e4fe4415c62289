//! The launch that computes the gradients of sinks, after the kernel of Δ.

use ferroflash_kernels::params::{Params, SinkGradientParams};
use ferroflash_kernels::variants::Kind;

use super::select::{grid, only_variant};
use super::{PlannedLaunch, Reason};
use crate::arguments::Argument;
use crate::validate::Checked;

/// Whether gradients of sinks are wanted.
pub fn are_wanted(checked: &Checked) -> bool {
    checked.arguments().get(Argument::DSinks).is_some()
}

/// A block for every head, if they are wanted. The parameters have the addresses of lse and Δ, which empty sequences do not have.
pub fn gradient(
    checked: &Checked,
    rows: SinkGradientParams,
) -> Result<Option<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let Some(variant) = only_variant(Kind::SinkGradient).filter(|_| are_wanted(checked)) else {
        return Ok(None);
    };
    let is_empty = problem.batch() == 0 || problem.seqlen_q() == 0;
    let params = SinkGradientParams {
        heads_q: problem.heads_q() as u32,
        batch: if is_empty { 0 } else { rows.batch },
        block_q: if is_empty { 0 } else { rows.block_q },
        ..rows
    };
    let grid = grid("heads_q", &[problem.heads_q() as u64])?;
    let launch = PlannedLaunch::new(checked, variant, grid, Params::SinkGradient(params));
    Ok(Some(launch).filter(|launch| launch.grid > 0))
}
