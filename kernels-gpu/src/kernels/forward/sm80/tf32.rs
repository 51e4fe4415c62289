//! flash2 forward of f32: the schedule of [`super::forward`], with products as [`crate::tile::tf32`] makes them. P stays in f32 until it is
//! multiplied.

use super::pages::SequencePages;
use super::place::{Place, place};
use super::tiles::n8;
use super::{Block, Tiles, warp_column, warp_row};
use crate::attention::block_mask::ListedBlock;
use crate::attention::mask::{Band, Rows};
use crate::attention::{batch_and_head, divide};
use crate::config::{self, F32_BYTES};
use crate::kernels::block_list::List;
use crate::kernels::bounds;
use crate::kernels::dropout::divide_by_kept;
use crate::kernels::forward::{LseRows, add_sinks, sink_of_head, store_lse};
use crate::params::{ForwardParams, TensorView};
use crate::ptx::{barrier, cp_async, spec, special};
use crate::tile::copy::{self, BoundsChecked, Extent, Team, Whole};
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::matmul::{left, right_transposed};
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::shared::SharedTile;
use crate::tile::softmax::{OnlineSoftmax, RowValues};
use crate::tile::tf32::{Accumulated, STEP, elements, multiply_add, store_through};

/// The tiles of head_dim `D`.
pub struct DefaultTiles<const D: u32>;

impl Tiles for DefaultTiles<32> {
    const HEAD_DIM: u32 = 32;
    type Scores = RegisterTile<2, { n8(config::forward_f32(32).block_k) }>;
    type Output = RegisterTile<2, { n8(32) }>;
}

impl Tiles for DefaultTiles<64> {
    const HEAD_DIM: u32 = 64;
    type Scores = RegisterTile<2, { n8(config::forward_f32(64).block_k) }>;
    type Output = RegisterTile<2, { n8(64) }>;
}

impl Tiles for DefaultTiles<128> {
    const HEAD_DIM: u32 = 128;
    type Scores = RegisterTile<2, { n8(config::forward_f32(128).block_k) }>;
    type Output = RegisterTile<2, { n8(128) }>;
}

/// Rows of a head's tensor, of so many columns.
#[inline(always)]
fn matrix(
    tensor: &TensorView,
    (batch_idx, head_idx): (u32, u32),
    (first, len): (u32, u32),
    columns: u32,
) -> GlobalMatrix {
    GlobalMatrix {
        rows: GlobalRows::of_elements(tensor, batch_idx, head_idx, 0, F32_BYTES)
            .from_row(first, len),
        chunks: columns / 4,
    }
}

/// One tile of queries: see [`super::forward`].
///
/// # Safety
/// The launch is as [`config::forward_f32`] says; tensors are as [`ForwardParams`] says, of at most `T::HEAD_DIM` columns.
#[inline(always)]
pub unsafe fn forward<T: Tiles>(p: &ForwardParams) {
    let config = const { config::forward_f32(T::HEAD_DIM) };
    // SAFETY: the caller's contract.
    let Some(place) = (unsafe { place(p) }) else {
        return;
    };
    let Place { tile, lse, .. } = place;
    // The bounds are asked for here: behind two ways ptxas would not know them.
    let band = Band::new(place.seqlen_q, place.seqlen_k, place.window, bounds());
    let (batch_idx, head_idx) = batch_and_head(tile.head, p.shape.heads_q);
    let kv_head_idx = divide(head_idx, p.shape.group_size);

    let first = tile.q_block * config.block_q;
    let row_bytes = T::HEAD_DIM * F32_BYTES;
    let shared_tile = |base| SharedTile { base, row_bytes };
    let q_base = special::shared_base();
    let k_base = q_base + config.block_q * row_bytes;
    let thread = special::thread_idx_x();
    let (of_q, of_k) = ((place.batch_q, head_idx), (place.batch_k, kv_head_idx));
    let rows_q = (place.q_first, band.seqlen_q());
    // A pool's rows are counted from a page's first one.
    let row_k = if spec::pages() { 0 } else { place.k_first };
    let rows_k = (row_k, band.seqlen_k());
    let (head_dim, head_dim_v) = (p.shape.head_dim, p.shape.head_dim_v);
    let block = Block {
        band,
        queries: Rows::of_sequence(first, config.block_q, band.seqlen_q()),
        k: matrix(&p.k, of_k, rows_k, head_dim),
        v: matrix(&p.v, of_k, rows_k, head_dim_v),
        pages: SequencePages::default(),
        q_tile: shared_tile(q_base),
        k_tile: shared_tile(k_base),
        v_tile: shared_tile(
            k_base + const { config::forward_stages(T::HEAD_DIM) } * config.block_k * row_bytes,
        ),
        team: Team {
            thread,
            threads: config.threads,
        },
        // No warps divide the columns.
        exchange: 0,
        warp_row: warp_row::<T>(thread),
        warp_column: warp_column::<T>(thread),
        head: tile.head,
        sequence: place.sequence,
    };
    let q = matrix(&p.q, of_q, rows_q, head_dim);
    let o = matrix(&p.o, of_q, rows_q, head_dim_v);

    // SAFETY: the plan's grid covers each tile once; its tensors lie where the parameters say.
    unsafe {
        if spec::block_mask() {
            // Nothing in common with the other way, or ptxas would hold it in registers there.
            let block = block.apart::<T>();
            let list = p.blocks.list(batch_idx, head_idx, tile.q_block);
            copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
            let (mut output, sums) = attend_listed::<T>(&block, p, list);
            store::<T>(&block, p, (o, lse), &mut output, sums);
            return;
        }
        if spec::pages() {
            // As above.
            let block = Block {
                pages: SequencePages::new(p, place.sequence, place.k_first, F32_BYTES),
                ..block.apart::<T>()
            };
            copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
            let (mut output, sums) = attend::<T, true>(&block, p);
            store::<T>(&block, p, (o, lse), &mut output, sums);
            return;
        }
        copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
        let (mut output, sums) = attend::<T, false>(&block, p);
        store::<T>(&block, p, (o, lse), &mut output, sums);
    }
}

/// O and L of the tile, to memory.
#[inline(always)]
unsafe fn store<T: Tiles>(
    block: &Block,
    p: &ForwardParams,
    (o, lse): (GlobalMatrix, LseRows),
    output: &mut T::Output,
    mut sums: RowValues,
) {
    // SAFETY: as `forward`. A warp reads no rows of Q but its own, so they may become its rows of O.
    unsafe {
        let (row, tile_row) = (block.queries.first + block.warp_row, block.warp_row);
        let head = block.head;
        if spec::dropout() {
            divide_by_kept(&p.dropout, output);
        }
        if spec::sinks() {
            // Nothing in common with what comes before the loop, or kernels without sinks would hold it in registers, too.
            let sink = sink_of_head(p.sinks, p.shape.heads_q, special::opaque(head));
            sums = add_sinks(row, sums, output, |_| sink);
        }
        store_through(o, row, block.q_tile, tile_row, output);
        store_lse::<T::Output>(lse, row, sums, move |row| (head, row));
    }
}

/// The loop over KV blocks, from the last one down: edge blocks, the full ones, edge blocks again where a window ends.
#[inline(always)]
unsafe fn attend<T: Tiles, const PAGES: bool>(
    block: &Block,
    p: &ForwardParams,
) -> (T::Output, RowValues) {
    let config = const { config::forward_f32(T::HEAD_DIM) };
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
            step::<T, BoundsChecked, PAGES>(block, p, blocks.first, j, &mut softmax, &mut o);
        }
        while j > blocks.full_first {
            j -= 1;
            step::<T, Whole, PAGES>(block, p, blocks.first, j, &mut softmax, &mut o);
        }
        while block.band.bounds().left && j > blocks.first {
            j -= 1;
            step::<T, BoundsChecked, PAGES>(block, p, blocks.first, j, &mut softmax, &mut o);
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

/// The loop over the blocks of keys that a block mask leaves the tile, from the last one down.
#[inline(always)]
unsafe fn attend_listed<T: Tiles>(
    block: &Block,
    p: &ForwardParams,
    list: List,
) -> (T::Output, RowValues) {
    let block_k = const { config::forward_f32(T::HEAD_DIM).block_k };
    let mut o = T::Output::zero();
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    // SAFETY: as `attend`; the list has the blocks.
    unsafe {
        let mut n = list.len();
        let mut listed = ListedBlock::default();
        if n > 0 {
            listed = list.block(n - 1);
            load_kv::<T, BoundsChecked, false>(block, n - 1, listed.block);
        }
        cp_async::cp_async_commit_group();
        if n == 0 {
            // No step waits for the copies of Q, over which O is about to be written.
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
        }
        while n > 0 {
            n -= 1;
            let next = if n > 0 { list.block(n - 1) } else { listed };
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
            if n > 0 {
                load_kv::<T, BoundsChecked, false>(block, n - 1, next.block);
            }
            cp_async::cp_async_commit_group();

            let first_key = listed.block * block_k;
            let mut s = scores::<T>(block, n);
            if spec::score() && !(spec::edit_partial() && listed.is_full) {
                block.edit_scores(p, first_key, &mut s);
            }
            if !listed.is_full || first_key + block_k > block.band.seqlen_k() {
                let first_query = block.queries.first + block.warp_row;
                s.for_each(|row, col, s| {
                    if !listed.keep(&block.band, first_query + row, first_key + col) {
                        *s = f32::NEG_INFINITY;
                    }
                });
            }
            softmax.update(&mut s, &mut o);
            add_values::<T>(block, p, n, first_key, s, &mut o);
            listed = next;
        }
        let lse = softmax.finish(&mut o);
        (o, lse)
    }
}

/// Begins the copies of K and V of block `j` into the stage of step `i`: out of pages, where `PAGES` says so.
#[inline(always)]
unsafe fn load_kv<T: Tiles, X: Extent, const PAGES: bool>(block: &Block, i: u32, j: u32) {
    let rows = const { config::forward_f32(T::HEAD_DIM).block_k };
    let (k, v) = (stage::<T>(block.k_tile, i), stage::<T>(block.v_tile, i));
    // SAFETY: the caller knows that nobody reads this stage, and under `Whole` that the block lies in the sequence.
    unsafe {
        if PAGES {
            let tensors = [block.k, block.v];
            let pages = block.pages;
            pages.load([k, v], tensors, 0..2, j * rows, rows, block.team);
            return;
        }
        copy::load::<X>(k, block.k, j * rows, rows, block.team);
        copy::load::<X>(v, block.v, j * rows, rows, block.team);
    }
}

/// The stage of step `i`.
#[inline(always)]
fn stage<T: Tiles>(tile: SharedTile, i: u32) -> SharedTile {
    let rows = const { config::forward_f32(T::HEAD_DIM).block_k };
    SharedTile {
        base: tile.base
            + i % const { config::forward_stages(T::HEAD_DIM) } * (rows * tile.row_bytes),
        ..tile
    }
}

/// KV block `j`, of those from `first` on. `X` says whether it is an edge, where scores are masked one by one.
#[inline(always)]
unsafe fn step<T: Tiles, X: Extent, const PAGES: bool>(
    block: &Block,
    p: &ForwardParams,
    first: u32,
    j: u32,
    softmax: &mut OnlineSoftmax,
    o: &mut T::Output,
) {
    let block_k = const { config::forward_f32(T::HEAD_DIM).block_k };
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
        let mut s = scores::<T>(block, j);
        if spec::score() {
            block.edit_scores(p, j * block_k, &mut s);
        }
        if X::CHECKED {
            let (q_first, k_first) = (block.queries.first + block.warp_row, j * block_k);
            s.for_each(|row, col, s| {
                if !block.band.keep(q_first + row, k_first + col) {
                    *s = f32::NEG_INFINITY;
                }
            });
        }

        // P = exp(S − m);  m, l, O
        softmax.update(&mut s, o);

        // O += P V
        add_values::<T>(block, p, j, j * block_k, s, o);
    }
}

/// S = Q Kᵀ of step `i`.
#[inline(always)]
unsafe fn scores<T: Tiles>(block: &Block, i: u32) -> T::Scores {
    let mut s = T::Scores::zero();
    let q = left(block.q_tile, block.warp_row);
    let k = right_transposed(stage::<T>(block.k_tile, i), 0);
    // SAFETY: Q and the step's K have arrived.
    unsafe { multiply_add(&mut s, q, k, (T::HEAD_DIM / STEP) as usize) };
    s
}

/// O += P V of step `i`, whose keys are those from `first_key` on.
#[inline(always)]
unsafe fn add_values<T: Tiles>(
    block: &Block,
    p: &ForwardParams,
    i: u32,
    first_key: u32,
    mut weights: T::Scores,
    o: &mut T::Output,
) {
    let block_k = const { config::forward_f32(T::HEAD_DIM).block_k };
    // SAFETY: the step's V has arrived; the parameters say where seed and offset lie.
    unsafe {
        if spec::dropout() {
            block.dropped(p, first_key).clear(&mut weights);
        }
        let v = elements(stage::<T>(block.v_tile, i), 0);
        multiply_add(o, Accumulated(&weights), v, (block_k / STEP) as usize);
    }
}
