//! Sequences of different lengths, which are in device memory: the launch that lists their tiles, and its capacity.
//!
//! A plan knows the longest sequence, and the number of rows of all of them. Grids and pieces of the workspace are sized for the most tiles that
//! such sequences can have; the kernels do as many as the device finds.

use ferroflash_kernels::attention::lengths::ListedTile;
use ferroflash_kernels::attention::pages::box_rows;
use ferroflash_kernels::config;
use ferroflash_kernels::params::{
    BACKWARD_MAPS, FORWARD_MAPS, Lengths, Pages, Params, SplitKv, TensorMap, TileList,
    TileListParams,
};
use ferroflash_kernels::variants::Kind;

use super::select::{grid, only_variant};
use super::views::shape_in_halves;
use super::workspace::{ALIGNMENT_BYTES, WorkspaceLayout};
use super::{PlannedLaunch, Reason};
use crate::arguments::Argument;
use crate::problem::{self, Problem};
use crate::validate::{Checked, Pass};

/// How many blocks of `rows` rows the sequences can have on a side whose longest has `seqlen`, packed in `total` if they are.
fn most_blocks(batch: usize, seqlen: usize, total: Option<usize>, rows: u32) -> u64 {
    let (batch, rows) = (batch as u64, u64::from(rows));
    let padded = batch.saturating_mul((seqlen as u64).div_ceil(rows));
    match total {
        // Each sequence has at most one block that is not full.
        Some(total) => padded.min((total as u64 / rows).saturating_add(batch)),
        None => padded,
    }
}

/// The most blocks of this many rows of q.
pub fn most_q_blocks(problem: &Problem, rows: u32) -> u64 {
    most_blocks(problem.batch(), problem.seqlen_q(), problem.total_q(), rows)
}

/// The most blocks of this many rows of k and v.
pub fn most_k_blocks(problem: &Problem, rows: u32) -> u64 {
    most_blocks(problem.batch(), problem.seqlen_k(), problem.total_k(), rows)
}

/// A problem of sequences of equal lengths, for choices of speed: the average length if they are packed, else the longest.
pub fn of_average_length(checked: &Checked) -> Problem {
    let problem = checked.problem();
    if !checked.has_lengths() {
        return *problem;
    }
    let average = |total: Option<usize>, longest: usize| match total {
        Some(total) => total.div_ceil(problem.batch().max(1)).min(longest),
        None => longest,
    };
    problem.of_equal_lengths(
        average(problem.total_q(), problem.seqlen_q()),
        average(problem.total_k(), problem.seqlen_k()),
    )
}

/// How the main kernel of a pass cuts the sequences.
#[derive(Clone, Copy, Debug)]
pub struct Tiles<'a> {
    /// Rows of a tile: of q in the forward pass, of k in the backward pass.
    pub rows: u32,
    /// Rows of a query block, in the backward pass; else 0.
    pub block_q: u32,
    /// In the forward pass, how keys are divided.
    pub split: SplitTiles,
    /// The tensor maps of the main kernel, in its order, of which only the boxes are known; none if it takes none.
    pub maps: &'a [TensorMap],
}

/// How the keys of tiles are divided.
#[derive(Clone, Copy, Debug, Default)]
pub struct SplitTiles {
    /// Into what.
    pub kv: SplitKv,
    /// The number of heads for which a sequence has tiles.
    pub heads: u32,
    /// Rows of a KV block.
    pub block_k: u32,
}

/// How many rows the tensors have; addresses are filled in at launch.
pub fn rows(problem: &Problem) -> Lengths {
    let ([_, rows_q, ..], [_, rows_k, ..]) = (problem.shape_q(), problem.shape_k());
    // A sequence in pages has as many as it may have, wherever they lie.
    let rows_k = match problem.pages() {
        Some(_) => problem.seqlen_k(),
        None => rows_k,
    };
    Lengths {
        rows_q: rows_q as u32,
        rows_k: rows_k as u32,
        ..Lengths::default()
    }
}

/// The pages, with boxes for KV blocks of this many rows; none without pages.
pub fn pages(checked: &Checked, block_k: u32) -> Pages {
    let problem = checked.problem();
    let Some(pages) = problem.pages() else {
        return Pages::default();
    };
    let slots = pages.n_slots(problem.seqlen_k()) as u32;
    let pages = table_of(pages, problem.seqlen_k());
    Pages {
        box_rows: match begin_at_any_row(checked) {
            true => 1,
            false => box_rows(pages.page_size, slots, block_k),
        },
        ..pages
    }
}

/// Whether sequences may begin at any row of a page, and continue in others: only the device knows the row. No two rows of their KV blocks are known
/// to be contiguous, so a TMA box has one row.
pub fn begin_at_any_row(checked: &Checked) -> bool {
    let is_padded = checked.arguments().get(Argument::LeftpadK).is_some();
    is_padded && checked.problem().has_several_pages()
}

/// A pool, and the table of sequences of at most this many rows; addresses are filled in at launch.
pub fn table_of(pages: problem::Pages, seqlen: usize) -> Pages {
    Pages {
        columns: pages.n_columns(seqlen) as u32,
        n_pages: pages.n_pages() as u32,
        page_size: pages.page_size() as u32,
        ..Pages::default()
    }
}

/// The launch that lists the tiles, and the main kernels' parameters for the list. `None` if all sequences have the problem's lengths.
pub fn list(
    checked: &Checked,
    tiles: Tiles,
    workspace: &mut WorkspaceLayout,
) -> Result<Option<(TileList, PlannedLaunch)>, Reason> {
    let kind = match tiles.maps {
        [] => Kind::TileList,
        _ => Kind::TmaTileList,
    };
    let Some(variant) = only_variant(kind).filter(|_| checked.has_lengths()) else {
        return Ok(None);
    };
    let problem = checked.problem();
    let batch = problem.batch() as u64;
    let is_backward = checked.pass() == Pass::Backward;
    let (max_tiles, max_q_blocks) = if is_backward {
        (
            most_k_blocks(problem, tiles.rows),
            most_q_blocks(problem, tiles.block_q),
        )
    } else {
        let splits = u64::from(tiles.split.kv.n.max(1));
        let q_tiles = most_q_blocks(problem, tiles.rows);
        (q_tiles.saturating_mul(splits), 0)
    };
    let entry_bytes = u64::from(ListedTile::N_BYTES);
    let n_maps = tiles.maps.len() as u64;
    let lengths = rows(problem);
    let list = TileList {
        tiles: workspace.place("tiles", &[max_tiles + 1, entry_bytes])?,
        // The kernel writes how many there are, 0 too.
        q_blocks: if is_backward {
            workspace.place("q_blocks", &[max_q_blocks + 1, entry_bytes])?
        } else {
            0
        },
        maps: match n_maps {
            0 => 0,
            n => workspace.place("tensor_maps", &[batch, n, size_of::<TensorMap>() as u64])?,
        },
        rows_q: lengths.rows_q,
        packed_q: problem.total_q().is_some().into(),
        packed_k: problem.total_k().is_some().into(),
        reserved: 0,
    };
    let mut maps = [TensorMap::default(); BACKWARD_MAPS as usize];
    maps[..tiles.maps.len()].copy_from_slice(tiles.maps);
    let params = TileListParams {
        maps,
        lengths,
        list,
        scratch: workspace.place("sequences", &[7, batch, size_of::<u32>() as u64])?,
        shape: shape_in_halves(checked),
        window: checked.window(),
        n_maps: n_maps as u32,
        tile_rows: tiles.rows,
        block_q: tiles.block_q,
        max_tiles: u32::try_from(max_tiles).unwrap_or(u32::MAX),
        max_q_blocks: u32::try_from(max_q_blocks).unwrap_or(u32::MAX),
        split_keys: tiles.split.kv.keys,
        split_parts: tiles.split.kv.parts,
        split_heads: tiles.split.heads,
        block_k: tiles.split.block_k,
        page_size: problem.pages().map_or(0, |pages| pages.page_size() as u32),
        whole_tiles: tiles.split.kv.whole_tiles,
        ..TileListParams::default()
    };
    let block_rows = u64::from(variant.tile_config.block_q);
    let blocks_of = |[entries, rows, ..]: [usize; 4]| {
        (rows as u64)
            .div_ceil(block_rows)
            .saturating_mul(entries as u64)
    };
    let of_q = blocks_of(problem.shape_q());
    let of_k = if is_backward {
        blocks_of(problem.shape_k())
    } else {
        0
    };
    // One block makes the list; maps are made by those that clear.
    let blocks = of_q.saturating_add(of_k).saturating_add(1).max(2);
    let grid = grid("the number of blocks of rows", &[blocks])?;
    let launch = PlannedLaunch::new(checked, variant, grid, Params::TileList(params));
    Ok(Some((list, launch)))
}

const _: () = assert!(size_of::<TensorMap>() as u64 * 2 == ALIGNMENT_BYTES);
const _: () = assert!(FORWARD_MAPS <= BACKWARD_MAPS);
const _: () = assert!(config::tile_list().block_q == config::tile_list().block_k);
