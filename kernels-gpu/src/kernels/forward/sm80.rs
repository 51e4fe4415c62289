//! flash2 forward for sm_80 and newer: `cp.async` into two stages of K and V, `ldmatrix`, `mma.sync`.
//!
//! Four warps, each with 32 rows of Q. K and V of the next block arrive while this one is multiplied; one barrier a
//! block both publishes what has arrived and says that the other stage may be overwritten.

mod dropout;
pub mod few;
mod listed;
mod pages;
mod place;
pub mod tf32;

use super::{LseRows, add_sinks, sink_of_head, store_lse};
use crate::attention::mask::{Band, Rows};
use crate::attention::score::ScoreTile;
use crate::attention::{batch_and_head, divide};
use crate::config;
use crate::kernels::bounds;
use crate::kernels::dropout::divide_by_kept;
use crate::kernels::scores::Given;
use crate::params::ForwardParams;
use crate::ptx::{barrier, cp_async, spec, special};
use crate::tile::copy::{self, BoundsChecked, Extent, Team, Whole};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::matmul::{Registers, left, multiply_add, right, right_transposed};
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::shared::SharedTile;
use crate::tile::softmax::{OnlineSoftmax, RowValues};
use pages::SequencePages;
use place::{Place, place};

/// The tiles of one head_dim; sizes as [`config::forward`] says.
pub trait Tiles {
    /// Columns of every tile; tensors may have fewer: see [`GlobalMatrix::has_chunk`].
    const HEAD_DIM: u32;
    /// A warp's rows of S.
    type Scores: Accumulator;
    /// A warp's rows of O.
    type Output: Accumulator;
}

/// The tiles of head_dim `D`.
pub struct DefaultTiles<const D: u32>;

impl Tiles for DefaultTiles<32> {
    const HEAD_DIM: u32 = 32;
    type Scores = RegisterTile<2, { n8(config::forward(32).block_k) }>;
    type Output = RegisterTile<2, { n8(32) }>;
}

impl Tiles for DefaultTiles<64> {
    const HEAD_DIM: u32 = 64;
    type Scores = RegisterTile<2, { n8(config::forward(64).block_k) }>;
    type Output = RegisterTile<2, { n8(64) }>;
}

impl Tiles for DefaultTiles<128> {
    const HEAD_DIM: u32 = 128;
    type Scores = RegisterTile<2, { n8(config::forward(128).block_k) }>;
    type Output = RegisterTile<2, { n8(128) }>;
}

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// What one block works with: a tile of queries, and where everything lies.
#[derive(Clone, Copy)]
struct Block {
    band: Band,
    queries: Rows,
    k: GlobalMatrix,
    v: GlobalMatrix,
    /// Where keys and values lie in pages: the sequence's.
    pages: SequencePages,
    q_tile: SharedTile,
    k_tile: SharedTile,
    v_tile: SharedTile,
    team: Team,
    /// The warp's first row in the tile.
    warp_row: u32,
    /// (batch, query head), as the schedule counts them.
    head: u32,
    /// Where sequences have lengths of their own: which one.
    sequence: u32,
}

/// Rows of a warp: two fragments.
const WARP_ROWS: u32 = 32;

/// Stages of K and V.
const STAGES: u32 = config::FORWARD_STAGES;

/// One tile of queries: see the module's pseudo-code.
///
/// # Safety
/// The launch is as [`config::forward`] says; tensors are as [`ForwardParams`] says, of at most `T::HEAD_DIM` columns.
#[inline(always)]
pub unsafe fn forward<E: Element, T: Tiles>(p: &ForwardParams) {
    let config = const { config::forward(T::HEAD_DIM) };
    // SAFETY: the caller's contract.
    let Some(place) = (unsafe { place(p) }) else {
        return;
    };
    let Place {
        seqlen_q,
        seqlen_k,
        window,
        tile,
        batch_q,
        batch_k,
        q_first,
        k_first,
        lse,
        sequence,
    } = place;
    // The bounds are asked for here: behind two ways ptxas would not know them.
    let band = Band::new(seqlen_q, seqlen_k, window, bounds());
    let (_, head_idx) = batch_and_head(tile.head, p.shape.heads_q);
    let kv_head_idx = divide(head_idx, p.shape.group_size);

    let first = tile.q_block * config.block_q;
    let row_bytes = T::HEAD_DIM * 2;
    let shared = special::shared_base();
    let thread = special::thread_idx_x();
    let k_base = shared + config.block_q * row_bytes;
    // A pool's rows are counted from a page's first one.
    let row_k = if spec::pages() { 0 } else { k_first };
    let rows_k =
        |tensor| GlobalRows::new(tensor, batch_k, kv_head_idx, 0).from_row(row_k, band.seqlen_k());
    let rows_q =
        |tensor| GlobalRows::new(tensor, batch_q, head_idx, 0).from_row(q_first, band.seqlen_q());
    let block = Block {
        band,
        queries: Rows::of_sequence(first, config.block_q, band.seqlen_q()),
        k: rows_k(&p.k).with_columns(p.shape.head_dim),
        v: rows_k(&p.v).with_columns(p.shape.head_dim_v),
        pages: SequencePages::default(),
        q_tile: SharedTile {
            base: shared,
            row_bytes,
        },
        k_tile: SharedTile {
            base: k_base,
            row_bytes,
        },
        v_tile: SharedTile {
            base: k_base + STAGES * config.block_k * row_bytes,
            row_bytes,
        },
        team: Team {
            thread,
            threads: config.threads,
        },
        warp_row: thread / 32 * WARP_ROWS,
        head: tile.head,
        sequence,
    };
    let q = rows_q(&p.q).with_columns(p.shape.head_dim);
    let o = rows_q(&p.o).with_columns(p.shape.head_dim_v);

    // SAFETY: the plan's grid covers each tile once; its tensors lie where the parameters say.
    unsafe {
        if spec::block_mask() {
            // Nothing in common with the other way, or ptxas would hold it in registers there.
            let block = block.apart();
            let (batch_idx, head_idx) = batch_and_head(tile.head, p.shape.heads_q);
            let list = p.blocks.list(batch_idx, head_idx, tile.q_block);
            copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
            let (mut output, sums) = listed::attend_listed::<E, T>(&block, p, list);
            store::<E, T>(&block, p, (o, lse), tile.head, &mut output, sums);
            return;
        }
        if spec::pages() {
            // As above.
            let block = Block {
                pages: SequencePages::new(p, sequence, k_first, 2),
                ..block.apart()
            };
            copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
            let (mut output, sums) = attend::<E, T, true>(&block, p);
            store::<E, T>(&block, p, (o, lse), tile.head, &mut output, sums);
            return;
        }
        copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
        let (mut output, sums) = attend::<E, T, false>(&block, p);
        store::<E, T>(&block, p, (o, lse), tile.head, &mut output, sums);
    }
}

impl Block {
    /// S ← what an expression makes of the scores of keys from `first_key` on.
    #[inline(always)]
    fn edit_scores<S: Accumulator>(&self, p: &ForwardParams, first_key: u32, s: &mut S) {
        let (batch_idx, head_idx) = batch_and_head(self.head, p.shape.heads_q);
        let place = fragment::accumulator(self.team.thread % 32, 0);
        let row = self.queries.first + self.warp_row + place.row;
        let tile = ScoreTile {
            batch: if spec::lengths() {
                self.sequence
            } else {
                batch_idx
            },
            head: head_idx,
            kv_head: divide(head_idx, p.shape.group_size),
            seqlen_q: self.band.seqlen_q(),
            seqlen_k: self.band.seqlen_k(),
            rows: [row, row + 8],
        };
        let given = Given {
            params: &p.score,
            scale: &p.scale,
        };
        given.edit(tile, first_key + place.col, s);
    }

    /// The same, with a thread's number of which ptxas does not know that it is the same.
    #[inline(always)]
    fn apart(&self) -> Block {
        let thread = special::opaque(self.team.thread);
        Block {
            team: Team {
                thread,
                ..self.team
            },
            warp_row: thread / 32 * WARP_ROWS,
            ..*self
        }
    }
}

/// O and L of the tile, to memory.
#[inline(always)]
unsafe fn store<E: Element, T: Tiles>(
    block: &Block,
    p: &ForwardParams,
    (o, lse): (GlobalMatrix, LseRows),
    head: u32,
    output: &mut T::Output,
    mut sums: RowValues,
) {
    // SAFETY: as `forward`. A warp reads no rows of Q but its own, so they may become its rows of O.
    unsafe {
        let (row, tile_row) = (block.queries.first + block.warp_row, block.warp_row);
        if spec::dropout() {
            divide_by_kept(&p.dropout, output);
        }
        if spec::sinks() {
            // Nothing in common with what comes before the loop, or kernels without sinks would hold it in registers, too.
            let sink = sink_of_head(p.sinks, p.shape.heads_q, special::opaque(head));
            sums = add_sinks(row, sums, output, |_| sink);
        }
        copy::store_through::<E, T::Output>(o, row, block.q_tile, tile_row, output);
        store_lse::<T::Output>(lse, row, sums, move |row| (head, row));
    }
}

/// The loop over KV blocks, from the last one down: edge blocks, the full ones, edge blocks again where a window ends.
#[inline(always)]
unsafe fn attend<E: Element, T: Tiles, const PAGES: bool>(
    block: &Block,
    p: &ForwardParams,
) -> (T::Output, RowValues) {
    let config = const { config::forward(T::HEAD_DIM) };
    let mut o = T::Output::zero();
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    let blocks = block.band.kv_blocks(block.queries, config.block_k);
    // SAFETY: as `forward`; the loads are those of blocks that exist, and each is waited for by the step that uses it.
    unsafe {
        if blocks.end > blocks.first {
            load_kv::<T, BoundsChecked, PAGES>(block, blocks.end - 1, blocks.end - 1);
        }
        cp_async::cp_async_commit_group();
        let mut j = blocks.end;
        while j > blocks.full_end {
            j -= 1;
            step::<E, T, BoundsChecked, PAGES>(block, p, blocks.first, j, &mut softmax, &mut o);
        }
        while j > blocks.full_first {
            j -= 1;
            step::<E, T, Whole, PAGES>(block, p, blocks.first, j, &mut softmax, &mut o);
        }
        while block.band.bounds().left && j > blocks.first {
            j -= 1;
            step::<E, T, BoundsChecked, PAGES>(block, p, blocks.first, j, &mut softmax, &mut o);
        }
        if blocks.end == blocks.first {
            // No step has waited for the copies of Q, over which O is about to be written.
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
        }
        let lse = softmax.finish(&mut o);
        (o, lse)
    }
}

/// Begins the copies of K and V of block `j` into the stage of step `i`: out of pages, where `PAGES` says so.
#[inline(always)]
unsafe fn load_kv<T: Tiles, X: Extent, const PAGES: bool>(block: &Block, i: u32, j: u32) {
    let rows = const { config::forward(T::HEAD_DIM).block_k };
    // SAFETY: the caller knows that nobody reads this stage, and under `Whole` that the block lies in the sequence.
    unsafe {
        if PAGES {
            let stages = [block.k_tile, block.v_tile].map(|tile| stage::<T>(tile, i));
            block
                .pages
                .load(stages, [block.k, block.v], j * rows, rows, block.team);
            return;
        }
        copy::load::<X>(
            stage::<T>(block.k_tile, i),
            block.k,
            j * rows,
            rows,
            block.team,
        );
        copy::load::<X>(
            stage::<T>(block.v_tile, i),
            block.v,
            j * rows,
            rows,
            block.team,
        );
    }
}

/// The stage of step `i`.
#[inline(always)]
fn stage<T: Tiles>(tile: SharedTile, i: u32) -> SharedTile {
    let stage_bytes = const { config::forward(T::HEAD_DIM).block_k * T::HEAD_DIM * 2 };
    SharedTile {
        base: tile.base + i % STAGES * stage_bytes,
        ..tile
    }
}

/// KV block `j`, of those from `first` on. `X` says whether it is an edge, where scores are masked one by one.
#[inline(always)]
unsafe fn step<E: Element, T: Tiles, X: Extent, const PAGES: bool>(
    block: &Block,
    p: &ForwardParams,
    first: u32,
    j: u32,
    softmax: &mut OnlineSoftmax,
    o: &mut T::Output,
) {
    let config = const { config::forward(T::HEAD_DIM) };
    // SAFETY: as `forward`; the barrier stands between the arrival of this stage and its use, and between the last
    // use of the other stage and its refill.
    unsafe {
        cp_async::cp_async_wait_group::<0>();
        barrier::barrier_sync_all();
        if j > first {
            load_kv::<T, Whole, PAGES>(block, j - 1, j - 1);
        }
        cp_async::cp_async_commit_group();

        // S = Q Kᵀ
        let mut s = T::Scores::zero();
        let (q, k) = (
            left(block.q_tile, block.warp_row),
            right_transposed(stage::<T>(block.k_tile, j), 0),
        );
        multiply_add::<E, _>(&mut s, q, k, T::HEAD_DIM as usize / 16);

        if spec::score() {
            block.edit_scores(p, j * config.block_k, &mut s);
        }
        if X::CHECKED {
            let (q_first, k_first) = (block.queries.first + block.warp_row, j * config.block_k);
            s.for_each(|row, col, s| {
                if !block.band.keep(q_first + row, k_first + col) {
                    *s = f32::NEG_INFINITY;
                }
            });
        }

        // P = exp(S − m);  m, l, O
        softmax.update(&mut s, o);

        // O += P V
        let mut weights = s.pack::<E>();
        if spec::dropout() {
            block.drop_weights::<T::Scores>(p, j * config.block_k, &mut weights);
        }
        let v = right(stage::<T>(block.v_tile, j), 0);
        multiply_add::<E, _>(o, Registers(weights), v, config.block_k as usize / 16);
    }
}
