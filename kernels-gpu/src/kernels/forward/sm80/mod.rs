//! flash2 forward for sm_80 and newer: `cp.async` into two stages of K and V, `ldmatrix`, `mma.sync`.
//!
//! Elements of 16 bits and f32 differ in how they are multiplied alone ([`Products`]). Four warps, each with 32 rows of Q, or 16 at head_dim 256. Above that all four have the same 32, and each a part of the columns
//! (`mainloop.rs`, which says what arrives when, too).

mod mainloop;
mod pages;

use super::{add_sinks, store_statistic, value_of_head};
use crate::attention::mask::{Band, Rows, Work};
use crate::attention::schedule::{self, ForwardTile};
use crate::attention::score::ScoreTile;
use crate::attention::{batch_and_head, divide};
use crate::config::{self, F32_BYTES, Forward, HALF_BYTES, TileConfig};
use crate::kernels::common::dropout::divide_by_kept;
use crate::kernels::common::score_mod::Given;
use crate::kernels::common::sequence::StatisticRows;
use crate::kernels::common::stamps::{Profiled, Record};
use crate::kernels::{bounds, query_tile_work};
use crate::params::{ForwardParams, Window};
use crate::ptx::{barrier, cp_async, spec, special};
use crate::tile::copy::{self, BoundsChecked, Extent, Team, Whole};
use crate::tile::element::{Element, F32};
use crate::tile::fragment;
use crate::tile::global::GlobalMatrix;
use crate::tile::products::{Products, rows};
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::shared::SharedTile;
use crate::tile::softmax::{OnlineSoftmax, RowValues};
use core::marker::PhantomData;
use mainloop::{Staged, load_first, scores, stage};
use pages::SequencePages;

/// The tiles of one head_dim.
pub trait Tiles {
    /// Columns of every tile; tensors may have fewer: see [`GlobalMatrix::has_chunk`](crate::tile::global::GlobalMatrix::has_chunk).
    const HEAD_DIM: u32;
    /// A warp's rows of S.
    type Scores: Accumulator;
    /// A warp's rows of O, and its columns.
    type Output: Accumulator;
}

/// How a block of threads shares such tiles out.
pub trait Blocks: Tiles {
    /// What it takes.
    const CONFIG: TileConfig;
    /// Bytes of a row of Q, K and V.
    const ROW_BYTES: u32;
    /// Whether the kernel records its tiles: see [`Profiled`].
    const PROFILES: bool = false;
    /// How they are worked on.
    const SCHEDULE: Forward = Forward::of(Self::ROW_BYTES / Self::HEAD_DIM, Self::HEAD_DIM);
    /// Stages of K, and of V.
    const STAGES: u32 = Self::SCHEDULE.stages;
    /// Rows of a warp.
    const WARP_ROWS: u32 = Self::Output::M as u32 * 16;
    /// Its columns: of O, and as many of Q, K and V.
    const WARP_COLUMNS: u32 = Self::Output::N as u32 * 8;
    /// Warps that have the same rows, each other columns.
    const WARPS_ACROSS: u32 = Self::HEAD_DIM / Self::WARP_COLUMNS;
    /// Fails to compile where the register tiles are not those of the tile config.
    const CONSISTENT: () = {
        let tile_config = Self::CONFIG;
        let warps_down = tile_config.threads / 32 / Self::WARPS_ACROSS;
        assert!(warps_down * Self::WARP_ROWS == tile_config.block_q);
        assert!(Self::WARPS_ACROSS * Self::WARP_COLUMNS == Self::HEAD_DIM);
        assert!(Self::WARPS_ACROSS == Self::SCHEDULE.warps_across);
        assert!(Self::Scores::M == Self::Output::M);
        assert!(Self::Scores::N as u32 * 8 == tile_config.block_k);
    };
}

/// The tiles of head_dim `D` and elements `E`.
pub struct DefaultTiles<E, const D: u32>(PhantomData<E>);

impl<E: Products, const D: u32> Blocks for DefaultTiles<E, D>
where
    DefaultTiles<E, D>: Tiles,
{
    const CONFIG: TileConfig = config::forward(E::BYTES, D);
    const ROW_BYTES: u32 = D * E::BYTES;
}

impl<T: Tiles> Tiles for Profiled<T> {
    const HEAD_DIM: u32 = T::HEAD_DIM;
    type Scores = T::Scores;
    type Output = T::Output;
}

impl<T: Blocks> Blocks for Profiled<T> {
    const CONFIG: TileConfig = T::CONFIG;
    const ROW_BYTES: u32 = T::ROW_BYTES;
    const PROFILES: bool = true;
}

/// Register tiles of so many fragments down, of elements of this many bytes.
macro_rules! tiles {
    ($($head_dim:literal: $m:literal;)* of $bytes:ident, $elements:tt) => {$(
        tiles!(@ $head_dim, $m, $bytes, $elements);
    )*};
    (@ $head_dim:literal, $m:literal, $bytes:ident, [$element:ty $(, $e:ident: $bound:ident)?]) => {
        impl$(<$e: $bound>)? Tiles for DefaultTiles<$element, $head_dim> {
            const HEAD_DIM: u32 = $head_dim;
            type Scores = RegisterTile<$m, { n8(Forward::of($bytes, $head_dim).block_k) }>;
            type Output = RegisterTile<$m, { n8($head_dim / Forward::of($bytes, $head_dim).warps_across) }>;
        }
    };
}

tiles! { 32: 2; 64: 2; 128: 2; 256: 1; 512: 2; of HALF_BYTES, [E, E: Element] }
tiles! { 32: 2; 64: 2; 128: 2; of F32_BYTES, [F32] }

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// The state of one block: a tile of queries, and its layout in shared memory.
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
    /// Where warps divide the columns: see `mainloop.rs`.
    exchange: u32,
    team: Team,
    /// The warp's first row in the tile.
    warp_row: u32,
    /// The warp's first column.
    warp_column: u32,
    /// (batch, query head), as the schedule counts them.
    head: u32,
    /// Where sequences have different lengths: which one; else 0.
    sequence: u32,
}

/// One tile of queries: see the module's pseudo-code.
///
/// # Safety
/// The launch is as [`Blocks::CONFIG`] says; tensors are as [`ForwardParams`] says, of at most `T::HEAD_DIM` columns.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn forward<E: Products, T: Blocks>(p: &ForwardParams) {
    const { T::CONSISTENT };
    const { assert!(T::ROW_BYTES == T::HEAD_DIM * E::BYTES) };
    let config = const { T::CONFIG };
    // SAFETY: the caller's contract.
    let Some(place) = (unsafe { place(p) }) else {
        return;
    };
    let TilePosition {
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
    let row_bytes = T::ROW_BYTES;
    let shared = special::shared_base();
    let thread = special::thread_idx_x();
    let k_base = shared + config.block_q * row_bytes;
    let stages_bytes = const { T::STAGES } * config.block_k * row_bytes;
    // A pool's rows are counted from a page's first one.
    let row_k = if spec::pages() { 0 } else { k_first };
    let rows_k =
        |tensor| rows::<E>(tensor, batch_k, kv_head_idx, 0).from_row(row_k, band.seqlen_k());
    let rows_q =
        |tensor| rows::<E>(tensor, batch_q, head_idx, 0).from_row(q_first, band.seqlen_q());
    let chunks = p.shape.head_dim / E::PER_CHUNK;
    let chunks_v = p.shape.head_dim_v / E::PER_CHUNK;
    let block = Block {
        band,
        queries: Rows::of_sequence(first, config.block_q, band.seqlen_q()),
        k: rows_k(&p.k).with_chunks(chunks),
        v: rows_k(&p.v).with_chunks(chunks_v),
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
            base: k_base + stages_bytes,
            row_bytes,
        },
        exchange: k_base + 2 * stages_bytes,
        team: Team {
            thread,
            threads: config.threads,
        },
        warp_row: warp_row::<T>(thread),
        warp_column: warp_column::<T>(thread),
        head: tile.head,
        sequence,
    };
    let q = rows_q(&p.q).with_chunks(chunks);
    let o = rows_q(&p.o).with_chunks(chunks_v);

    // SAFETY: the plan's grid covers each tile once; its tensors lie where the parameters say.
    unsafe {
        record_begin::<T>(p, tile);
        if spec::block_mask() {
            // Nothing in common with the other way, or ptxas would hold it in registers there.
            let block = block.apart::<T>();
            let (batch_idx, head_idx) = batch_and_head(tile.head, p.shape.heads_q);
            let list = p.blocks.list(batch_idx, head_idx, tile.q_block);
            copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
            let (mut output, sums) = mainloop::attend_block_sparse::<E, T>(&block, p, list);
            store::<E, T>(&block, p, (o, lse), tile.head, &mut output, sums);
            return;
        }
        if spec::pages() {
            // As above.
            let block = Block {
                pages: SequencePages::new(p, sequence, k_first, E::BYTES),
                ..block.apart::<T>()
            };
            copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
            let (mut output, sums) = attend::<E, T, true>(&block, p);
            store::<E, T>(&block, p, (o, lse), tile.head, &mut output, sums);
            return;
        }
        copy::load::<BoundsChecked>(block.q_tile, q, first, config.block_q, block.team);
        let (mut output, sums) = attend::<E, T, false>(&block, p);
        store::<E, T>(&block, p, (o, lse), tile.head, &mut output, sums);
        record_end::<T>(p, &block);
    }
}

/// A profiled kernel records that a tile begins.
#[inline(always)]
unsafe fn record_begin<T: Blocks>(p: &ForwardParams, tile: ForwardTile) {
    if T::PROFILES {
        // SAFETY: the plan has a record for each tile.
        unsafe { record(p, tile).begin() };
    }
}

/// The same of its end. Rows that record have neither block masks nor pages, whose ways end elsewhere.
#[inline(always)]
unsafe fn record_end<T: Blocks>(p: &ForwardParams, block: &Block) {
    if T::PROFILES {
        // The tile again: no register need hold it through the loop.
        let first = special::opaque(block.queries.first);
        let q_block = divide(first, const { T::CONFIG.block_q });
        let head = special::opaque(block.head);
        // SAFETY: as above.
        unsafe { record(p, ForwardTile { q_block, head }).end() };
    }
}

/// The record of a tile, which thread 0 writes.
#[inline(always)]
fn record(p: &ForwardParams, tile: ForwardTile) -> Record {
    let (tiles, writes) = (
        p.schedule.tiles,
        special::opaque(special::thread_idx_x()) == 0,
    );
    Record::new(p.stamps, tiles, tile.head, tile.q_block, writes)
}

/// The first row of a thread's warp.
#[inline(always)]
fn warp_row<T: Blocks>(thread: u32) -> u32 {
    thread / 32 / T::WARPS_ACROSS * T::WARP_ROWS
}

/// Its first column.
#[inline(always)]
fn warp_column<T: Blocks>(thread: u32) -> u32 {
    thread / 32 % T::WARPS_ACROSS * T::WARP_COLUMNS
}

impl Block {
    /// The number of its head among those of all sequences.
    #[inline(always)]
    fn head_of_all(&self, p: &ForwardParams) -> u32 {
        self.sequence * p.shape.heads_q + self.head
    }

    /// S ← the expression of the scores of keys from `first_key` on.
    #[inline(always)]
    fn edit_scores<S: Accumulator>(&self, p: &ForwardParams, first_key: u32, s: &mut S) {
        let (batch_idx, head_idx) = batch_and_head(self.head_of_all(p), p.shape.heads_q);
        let place = fragment::accumulator(self.team.thread % 32, 0);
        let row = self.queries.first + self.warp_row + place.row;
        let seqlens = [self.band.seqlen_q(), self.band.seqlen_k()];
        let tile = ScoreTile::new(batch_idx, head_idx, p.shape.group_size, seqlens, row);
        let given = Given::new(&p.score, &p.scale);
        given.edit(tile, first_key + place.col, s);
    }

    /// The same, with a thread's number of which ptxas does not know that it is the same.
    #[inline(always)]
    fn apart<T: Blocks>(&self) -> Block {
        let thread = special::opaque(self.team.thread);
        Block {
            team: Team {
                thread,
                ..self.team
            },
            warp_row: warp_row::<T>(thread),
            warp_column: warp_column::<T>(thread),
            ..*self
        }
    }
}

/// O and L of the tile, to memory.
#[inline(always)]
unsafe fn store<E: Products, T: Blocks>(
    block: &Block,
    p: &ForwardParams,
    (o, lse): (GlobalMatrix, StatisticRows),
    head: u32,
    output: &mut T::Output,
    mut sums: RowValues,
) {
    // SAFETY: as `forward`. A warp reads no rows of Q but its own, or those that all have read before the last barrier, so they may become
    // rows of O.
    unsafe {
        let (row, tile_row) = (block.queries.first + block.warp_row, block.warp_row);
        if spec::dropout() {
            divide_by_kept(&p.dropout, output);
        }
        if spec::sinks() {
            // Nothing in common with what comes before the loop, or kernels without sinks would hold it in registers, too.
            let sink = value_of_head(p.sinks, p.shape.heads_q, special::opaque(head));
            sums = add_sinks(row, sums, output, |_| sink);
        }
        if const { T::WARPS_ACROSS > 1 } {
            mainloop::store_columns::<E, T>(block, o, output);
        } else {
            copy::store_through::<E, T::Output>(o, row, block.q_tile, tile_row, output);
        }
        if block.warp_column == 0 {
            store_statistic::<T::Output>(lse, row, sums, move |row| (head, row));
        }
    }
}

/// The loop over KV blocks, from the last one down: edge blocks, the full ones, edge blocks again where a window ends.
#[inline(always)]
unsafe fn attend<E: Products, T: Blocks, const PAGES: bool>(
    block: &Block,
    p: &ForwardParams,
) -> (T::Output, RowValues) {
    let config = const { T::CONFIG };
    let mut o = T::Output::zero();
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    let blocks = block.band.kv_blocks(block.queries, config.block_k);
    // SAFETY: as `forward`; the loads are those of blocks that exist, and each is waited for by the step that uses it.
    unsafe {
        if blocks.end > blocks.first {
            load_first::<T, BoundsChecked, PAGES>(block, staged(blocks.end - 1));
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
        let lse = softmax.finalize(&mut o);
        (o, lse)
    }
}

/// Block `j`, in the stage of its number.
#[inline(always)]
fn staged(j: u32) -> Staged {
    Staged { step: j, block: j }
}

/// KV block `j`, of those from `first` on. `X` says whether it is an edge, where scores are masked one by one.
#[inline(always)]
unsafe fn step<E: Products, T: Blocks, X: Extent, const PAGES: bool>(
    block: &Block,
    p: &ForwardParams,
    first: u32,
    j: u32,
    softmax: &mut OnlineSoftmax,
    o: &mut T::Output,
) {
    let config = const { T::CONFIG };
    // SAFETY: as `forward`; the copies of this step have been committed. Those of the next are of a block before this one.
    unsafe {
        // S = Q Kᵀ
        let next = (j > first).then(|| staged(j - 1));
        let mut s = scores::<E, T, X, Whole, PAGES>(block, p, staged(j), next);
        if spec::score() {
            block.edit_scores(p, j * config.block_k, &mut s);
        }
        if X::CHECKED {
            let (q_first, k_first) = (block.queries.first + block.warp_row, j * config.block_k);
            s.mask(|row, col| block.band.keep(q_first + row, k_first + col));
        }

        // P = exp(S − m);  m, l, O
        softmax.update(&mut s, o);

        // O += P V
        add_values::<E, T>(block, p, j, j * config.block_k, &s, o);
    }
}

/// O += P V of step `i`, whose keys are those from `first_key` on.
#[inline(always)]
unsafe fn add_values<E: Products, T: Blocks>(
    block: &Block,
    p: &ForwardParams,
    i: u32,
    first_key: u32,
    weights: &T::Scores,
    o: &mut T::Output,
) {
    let block_k = const { T::CONFIG.block_k };
    // SAFETY: as `forward`; V of the step has arrived.
    unsafe {
        let mut weights = E::hold(weights);
        if spec::dropout() {
            let dropped = block.dropped(p, first_key);
            dropped.clear_held::<E, T::Scores>(&mut weights);
        }
        let v = E::right(stage::<T>(block.v_tile, i), block.warp_column / 16);
        // O += P V
        E::gemm_rs::<_, T::Scores>(o, weights, v, block_k);
    }
}

// Not a `Sequence`: what it says would be in registers in another order, and of these the kernel has none to spare.

/// Which tile a block works on, and where its sequence lies.
pub(super) struct TilePosition {
    pub(super) seqlen_q: u32,
    pub(super) seqlen_k: u32,
    pub(super) window: Window,
    pub(super) tile: ForwardTile,
    pub(super) batch_q: u32,
    pub(super) batch_k: u32,
    /// Where sequences have different lengths: which one; else 0.
    pub(super) sequence: u32,
    pub(super) q_first: u32,
    pub(super) k_first: u32,
    pub(super) lse: StatisticRows,
}

/// The block's tile; `None` where sequences have fewer than there may be.
#[inline(always)]
pub(super) unsafe fn place(p: &ForwardParams) -> Option<TilePosition> {
    let idx = special::block_idx_x();
    if !spec::lengths() {
        let tile = schedule::forward(&p.schedule, query_tile_work(&p.blocks), idx);
        let (batch_idx, _) = batch_and_head(tile.head, p.shape.heads_q);
        return Some(TilePosition {
            seqlen_q: p.shape.seqlen_q,
            seqlen_k: p.shape.seqlen_k,
            window: p.window,
            tile,
            batch_q: batch_idx,
            batch_k: batch_idx,
            sequence: 0,
            q_first: 0,
            k_first: 0,
            lse: StatisticRows::padded(p.lse, &p.shape),
        });
    }
    // SAFETY: the list has been made, and has the entry.
    let (tile, listed) = unsafe {
        let schedule = p.list.schedule(&p.schedule);
        if idx >= schedule.tiles * schedule.heads {
            return None;
        }
        p.list.forward_tile(&schedule, Work::Even, idx)
    };
    Some(TilePosition {
        seqlen_q: listed.seqlen_q,
        seqlen_k: listed.seqlen_k,
        window: p.window.of_sequence(listed.seqlen_q, listed.seqlen_k),
        tile,
        batch_q: p.list.batch_q(listed.sequence),
        // A pool of pages begins at its entry 0, whatever the sequence.
        batch_k: if spec::pages() {
            0
        } else {
            p.list.batch_k(listed.sequence)
        },
        sequence: listed.sequence,
        q_first: listed.q_first,
        k_first: listed.k_first,
        lse: StatisticRows::listed(p.lse, &p.shape, &p.list, listed),
    })
}
