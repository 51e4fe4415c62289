//! The launch of flash3's forward pass.

use ferroflash_kernels::params::{Params, TmaForwardParams};
use ferroflash_kernels::variants::TileShape;

use crate::plan::reason::Reason;
use crate::plan::select::{PassKernels, grid};
use crate::plan::tensor_map::boxes;
use crate::plan::views::{scale, shape};
use crate::plan::workspace::WorkspaceLayout;
use crate::plan::{DeviceInfo, PlannedLaunch, schedule, short};
use crate::validate::Checked;

use super::WARPGROUP_ROWS;

/// One launch, of as many blocks as the device holds at once: they draw the query tiles of every head from the ticket.
/// None where there is no row.
pub fn launches(
    checked: &Checked,
    device: &DeviceInfo,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let problem = checked.problem();
    let mut launches = Vec::new();
    for &variant in kernels.variants() {
        let footprint = &variant.footprint;
        let pack_gqa_log2 = match variant.tiles {
            TileShape::Compact => short::pack_gqa_log2(problem),
            TileShape::Default | TileShape::Wide => 0,
        };
        let tiles = (problem.seqlen_q() as u32).div_ceil(footprint.block_q >> pack_gqa_log2);
        let heads = (problem.batch() * problem.heads_q()) as u32 >> pack_gqa_log2;
        let group_size = problem.group_size() as u32 >> pack_gqa_log2;
        let (box_rows, box_heads) = (WARPGROUP_ROWS >> pack_gqa_log2, 1 << pack_gqa_log2);
        let all = grid("the number of query tiles", &[tiles.into(), heads.into()])?;
        if all == 0 {
            continue;
        }
        let params = TmaForwardParams {
            q: boxes(box_rows, box_heads),
            k: boxes(footprint.block_k, 1),
            v: boxes(footprint.block_k, 1),
            o: boxes(box_rows, box_heads),
            tile_counter: workspace.place_counter("tile_counter"),
            shape: shape(checked),
            window: checked.problem().window(),
            scale: scale(checked),
            schedule: schedule::forward(
                problem,
                tiles,
                heads,
                group_size,
                problem.dtype().size_bytes() as u64,
            ),
            pack_gqa_log2,
            ..Default::default()
        };
        launches.push(PlannedLaunch::new(
            checked,
            variant,
            all.min(schedule::resident_blocks(device, footprint)),
            Params::TmaForward(params),
        ));
    }
    Ok(launches)
}
