//! The launch of flash3's forward pass.

use ferroflash_kernels::params::{Params, TileList, TmaForwardParams};
use ferroflash_kernels::variants::TileShape;

use crate::plan::reason::Reason;
use crate::plan::select::{PassKernels, grid};
use crate::plan::tensor_map::tensor_map;
use crate::plan::views::{scale, shape, view};
use crate::plan::workspace::WorkspaceLayout;
use crate::plan::{Addresses, DeviceInfo, PlannedLaunch, schedule, short};
use crate::validate::Checked;

use super::{WARPGROUP_ROWS, place};

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
        let tiles = (problem.seqlen_q as u32).div_ceil(footprint.block_q >> pack_gqa_log2);
        let heads = (problem.batch * problem.heads_q) as u32 >> pack_gqa_log2;
        let group_size = problem.group_size() as u32 >> pack_gqa_log2;
        let (box_rows, box_heads) = (WARPGROUP_ROWS >> pack_gqa_log2, 1 << pack_gqa_log2);
        let all = grid("the number of query tiles", &[tiles.into(), heads.into()])?;
        if all == 0 {
            continue;
        }
        let tensors = checked.forward();
        let params = TmaForwardParams {
            q: tensor_map(&tensors.q, box_rows, box_heads),
            k: tensor_map(&tensors.k, footprint.block_k, 1),
            v: tensor_map(&tensors.v, footprint.block_k, 1),
            o: tensor_map(&tensors.o, box_rows, box_heads),
            o_rows: view(&tensors.o),
            lse: 0,
            tile_counter: workspace.place_counter("tile_counter"),
            shape: shape(checked),
            window: checked.problem().window(),
            scale: scale(checked),
            schedule: schedule::forward(
                problem,
                tiles,
                heads,
                group_size,
                problem.dtype.size_bytes() as u64,
            ),
            pack_gqa_log2,
            list: TileList::default(),
        };
        launches.push(PlannedLaunch::new(
            problem,
            variant,
            all.min(schedule::resident_blocks(device, footprint)),
            Params::TmaForward(params),
        ));
    }
    Ok(launches)
}

/// Fills the addresses in. Without keys, k and v lie nowhere.
pub fn bind(mut params: TmaForwardParams, at: &Addresses) -> TmaForwardParams {
    let seqlen_k = params.shape.seqlen_k;
    params.k.base = place(seqlen_k, at.k, at.o);
    params.v.base = place(seqlen_k, at.v, at.o);
    params.q.base = at.q;
    params.o.base = at.o;
    params.o_rows.base = at.o;
    params.lse = at.lse;
    params.tile_counter += at.workspace;
    params
}
