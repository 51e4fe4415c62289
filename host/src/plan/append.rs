//! Appends to a cache, and rotations, planned: one kernel does both.

use ferroflash_kernels::params::{
    AppendParams, HALVES, INTERLEAVED, KvCache, NewRows, Pages, Params, RotaryParams,
};
use ferroflash_kernels::variants::Kind;

use super::operation::{Launches, OperationPlan, counts, kernel, plan_operation};
use super::{Backend, DeviceInfo, Reason, lengths};
use crate::arguments::{Argument, Operation};
use crate::error::PlanError;
use crate::problem::append::AppendProblem;
use crate::problem::new_rows;
use crate::problem::rotate::RotateProblem;
use crate::problem::{self, Fp8Kv};
use crate::terms::{Direction, Pairs, QueryPositions, Turns};
use crate::validate::operation::CheckedOperation;
use crate::validate::rotary::{CheckedAppend, CheckedRotate};

/// The plan made before rows are appended.
///
/// The [module](mod@crate::plan) has an example.
pub type AppendPlan = OperationPlan<AppendProblem>;

/// The plan made before rows are rotated.
///
/// The [module](mod@crate::plan) has an example.
pub type RotatePlan = OperationPlan<RotateProblem>;

/// Plans a checked append for a GPU (or the emulator's) or for the CPU.
///
/// The [module](mod@crate::plan) has an example.
pub fn plan_append(
    checked: &CheckedAppend,
    device: &DeviceInfo,
    backend: Backend,
) -> Result<AppendPlan, PlanError> {
    plan_operation(checked, device, backend, append)
}

/// Plans a checked rotation, forward or backward, for a GPU (or the emulator's) or for the CPU.
///
/// The [module](mod@crate::plan) has an example.
pub fn plan_rotate(
    checked: &CheckedRotate,
    direction: Direction,
    device: &DeviceInfo,
    backend: Backend,
) -> Result<RotatePlan, PlanError> {
    plan_operation(
        checked,
        device,
        backend,
        match direction {
            Direction::Forth => |checked, device| rotate(checked, 1.0, device),
            Direction::Back => |checked, device| rotate(checked, -1.0, device),
        },
    )
}

fn append(checked: &CheckedAppend, device: &DeviceInfo) -> Result<Launches, Reason> {
    let problem = checked.problem();
    let pages = |size: fn(problem::Pages) -> usize| problem.pages().map_or(0, size) as u64;
    counts([
        ("heads_q", problem.heads_q() as u64),
        ("heads_k", problem.heads_k() as u64),
        ("seqlen_cache", problem.seqlen_cache() as u64),
        ("n_pages", pages(|pages| pages.n_pages())),
        ("page_size", pages(|pages| pages.page_size())),
        ("the table of pages", problem.n_table_entries()),
    ])?;
    let rows = rows(problem.rows(), problem.batch())?;
    let params = AppendParams {
        cache: KvCache {
            seqlen: problem.seqlen_cache() as u32,
            scales_per_page: u32::from(problem.fp8_kv() == Some(Fp8Kv::PerPage)),
            pages: match problem.pages() {
                Some(pages) => lengths::table_of(pages, problem.seqlen_cache()),
                None => Pages::default(),
            },
            ..KvCache::default()
        },
        rotary: match problem.turns() {
            Some(turns) => rotary(turns, 1.0)?,
            None => RotaryParams::default(),
        },
        rows: NewRows {
            q_at_first: match problem.query_positions() {
                QueryPositions::Ascending => 0,
                QueryPositions::First => 1,
            },
            ..rows
        },
        heads_q: problem.heads_q() as u32,
        heads_k: problem.heads_k() as u32,
        head_dim: problem.head_dim() as u32,
        appends: 1,
        ..AppendParams::default()
    };
    let kind = match problem.fp8_kv() {
        Some(_) => Kind::AppendE4m3,
        None => Kind::Append,
    };
    launch(kind, params, checked, device)
}

fn rotate(checked: &CheckedRotate, sin_sign: f32, device: &DeviceInfo) -> Result<Launches, Reason> {
    let problem = checked.problem();
    let [.., heads, head_dim] = problem.shape();
    counts([("heads", heads as u64)])?;
    let params = AppendParams {
        rotary: rotary(problem.turns(), sin_sign)?,
        rows: rows(problem.rows(), problem.batch())?,
        heads_q: heads as u32,
        head_dim: head_dim as u32,
        ..AppendParams::default()
    };
    launch(Kind::Append, params, checked, device)
}

/// The launch, unless there is nothing to do: a block for every run of lines, and a thread for every length.
fn launch<P: Operation>(
    kind: Kind,
    params: AppendParams,
    checked: &CheckedOperation<P>,
    device: &DeviceInfo,
) -> Result<Launches, Reason> {
    let variant = kernel(kind, params.head_dim as usize, checked, device)?;
    let heads = u64::from(params.heads_q) + 2 * u64::from(params.heads_k);
    let n_lines = u64::from(params.rows.n_rows) * heads;
    counts([("new rows · heads", n_lines)])?;
    let n_lengths = match checked.arguments().get(Argument::SeqUsedOut) {
        Some(_) => params.rows.batch,
        None => 0,
    };
    let of_lines = (n_lines as u32).div_ceil(variant.tile_config.block_q);
    let grid = of_lines.max(n_lengths.div_ceil(variant.tile_config.threads));
    let mut launches = Launches::default();
    if grid > 0 {
        launches.push(checked, variant, grid, Params::Append(params));
    }
    Ok(launches)
}

fn rows(rows: new_rows::NewRows, batch: usize) -> Result<NewRows, Reason> {
    let n_rows = rows.n_rows(batch);
    counts([
        ("batch", batch as u64),
        ("rows of a sequence", rows.seqlen() as u64),
        ("new rows", n_rows),
    ])?;
    Ok(NewRows {
        batch: batch as u32,
        seqlen: rows.seqlen() as u32,
        n_rows: n_rows as u32,
        ..NewRows::default()
    })
}

fn rotary(turns: Turns, sin_sign: f32) -> Result<RotaryParams, Reason> {
    counts([("n_positions", turns.n_positions as u64)])?;
    Ok(RotaryParams {
        n_positions: turns.n_positions as u32,
        // At most half of head_dim.
        n_pairs: turns.rotary_dim as u32 / 2,
        pairs: match turns.pairs {
            Pairs::Halves => HALVES,
            Pairs::Interleaved => INTERLEAVED,
        },
        sin_sign,
        ..RotaryParams::default()
    })
}
