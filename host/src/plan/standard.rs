//! Launches of `standard`: grids and parameters. The scores and the weights are in memory.

use ferroflash_kernels::params::{Params, SinkGradientParams, StandardParams};
use ferroflash_kernels::variants::{Kind, Variant};

use super::block_mask::block_map;
use super::select::{PassKernels, grid};
use super::views::{scale, shape};
use super::workspace::WorkspaceLayout;
use super::{PlannedLaunch, Reason, lengths, sinks};
use crate::validate::{Checked, Pass};

/// Rows of the tiles of an unused list.
const LISTED_ROWS: u32 = 128;

/// Columns of a row of scores or weights: a multiple of this, so that every row is 16-byte aligned.
///
/// The [module](mod@crate::plan) has an example.
pub const COLUMN_MULTIPLE: u64 = 8;

/// Columns of a row of scores or weights in memory.
pub fn padded_k(checked: &Checked) -> u64 {
    let seqlen_k = checked.problem().seqlen_k() as u64;
    seqlen_k
        .checked_next_multiple_of(COLUMN_MULTIPLE)
        .unwrap_or(u64::MAX)
}

/// Rows of the scores: of every sequence as many as the longest may have.
fn n_rows_of_scores(checked: &Checked) -> u64 {
    let problem = checked.problem();
    [problem.batch(), problem.heads_q(), problem.seqlen_q()]
        .iter()
        .fold(1, |product: u64, &size| product.saturating_mul(size as u64))
}

/// Bytes of the scores (f32) and the weights (in the problem's type).
pub fn n_bytes(checked: &Checked) -> u64 {
    let element_bytes = (size_of::<f32>() + checked.problem().dtype().size_bytes()) as u64;
    n_rows_of_scores(checked)
        .saturating_mul(padded_k(checked))
        .saturating_mul(element_bytes)
}

/// The kernels of the pass in their order, without those that have nothing to do.
pub fn launches(
    checked: &Checked,
    kernels: &PassKernels,
    workspace: &mut WorkspaceLayout,
) -> Result<Vec<PlannedLaunch>, Reason> {
    let mut params = params(checked, workspace)?;
    let mut launches = Vec::new();
    // Each block looks its sequence up. The list is not used, but who makes it clears rows of no sequence.
    let tiles = lengths::Tiles {
        rows: LISTED_ROWS,
        block_q: match checked.pass() {
            Pass::Backward => LISTED_ROWS,
            Pass::Forward | Pass::ForwardWithWeights => 0,
        },
        split: Default::default(),
        maps: &[],
    };
    if let Some((_, launch)) = lengths::list(checked, tiles, workspace)? {
        params.lengths = lengths::rows(checked.problem());
        launches.push(launch);
    }
    for &variant in kernels.variants() {
        let grid = blocks(checked, variant)?;
        if grid > 0 {
            launches.push(PlannedLaunch::new(
                checked,
                variant,
                grid,
                Params::Standard(params),
            ));
        }
    }
    let rows = SinkGradientParams {
        lse_log2: params.lse_log2,
        delta: params.delta,
        padded_q: params.shape.seqlen_q.into(),
        batch: params.shape.batch,
        ..SinkGradientParams::default()
    };
    launches.extend(sinks::gradient(checked, rows)?);
    Ok(launches)
}

/// Number of blocks of one kernel: tiles of its result, or rows.
fn blocks(checked: &Checked, variant: &Variant) -> Result<u32, Reason> {
    let problem = checked.problem();
    let tile_config = &variant.tile_config;
    let heads_q = (problem.batch() * problem.heads_q()) as u64;
    let heads_k = (problem.batch() * problem.heads_k()) as u64;
    let tiles_q = (problem.seqlen_q() as u64).div_ceil(tile_config.block_q.into());
    let tiles = |length: usize| (length as u64).div_ceil(tile_config.block_k.into());
    match variant.kind {
        Kind::StandardScores | Kind::StandardDWeights => grid(
            "the number of tiles of the scores",
            &[tiles_q, tiles(problem.seqlen_k()), heads_q],
        ),
        Kind::StandardOutput => grid(
            "the number of tiles of the output",
            &[tiles_q, tiles(problem.head_dim_v()), heads_q],
        ),
        Kind::StandardDq => grid(
            "the number of tiles of the gradient of q",
            &[tiles_q, tiles(problem.head_dim()), heads_q],
        ),
        Kind::StandardDv => grid(
            "the number of tiles of the gradient of v",
            &[
                tiles(problem.seqlen_k()),
                tiles(problem.head_dim_v()),
                heads_k,
            ],
        ),
        Kind::StandardDk => grid(
            "the number of tiles of the gradient of k",
            &[
                tiles(problem.seqlen_k()),
                tiles(problem.head_dim()),
                heads_k,
            ],
        ),
        _ => grid("the number of blocks of rows", &[tiles_q, heads_q]),
    }
}

fn params(checked: &Checked, workspace: &mut WorkspaceLayout) -> Result<StandardParams, Reason> {
    let rows = n_rows_of_scores(checked);
    let padded_k = padded_k(checked);
    let f32_bytes = size_of::<f32>() as u64;
    let mut push = |name, factors: &[u64]| workspace.place(name, factors);
    let scores = push("scores", &[rows, padded_k, f32_bytes])?;
    // A piece of the workspace in place of the caller's memory.
    let weights = match checked.pass() {
        Pass::ForwardWithWeights => 0,
        _ => push(
            "weights",
            &[
                rows,
                padded_k,
                checked.problem().dtype().size_bytes() as u64,
            ],
        )?,
    };
    // The backward pass works the weights out again; the kernel that does writes lse too, which the caller has lent
    // for reading only.
    let (lse, delta) = match checked.pass() {
        Pass::Backward => (
            push("lse", &[checked.n_rows(), f32_bytes])?,
            push("delta", &[rows, f32_bytes])?,
        ),
        _ => (0, 0),
    };
    let lse_log2 = match checked.pass() == Pass::Backward && checked.problem().has_sinks() {
        true => push("lse_log2", &[rows, f32_bytes])?,
        false => 0,
    };
    Ok(StandardParams {
        lse,
        scores,
        weights,
        delta,
        lse_log2,
        padded_k,
        shape: shape(checked),
        window: checked.window(),
        scale: scale(checked),
        blocks: block_map(checked.problem()),
        marks_dropped: u32::from(checked.pass() == Pass::Backward),
        ..Default::default()
    })
}
