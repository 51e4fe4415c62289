//! Merging of the results of a block's warps, and of a tile's blocks.

use super::scheduler::{PackedRow, Tile};
use super::{Cache, ROWS, Tiles, WARPS};
use crate::config;
use crate::kernels::merge::partial::{SplitRow, inverse, lse_of_all, sink_of, weight, with_sink};
use crate::params::ForwardParams;
use crate::ptx::math::{fma, max};
use crate::ptx::{atomic, barrier, global, shared, spec, special};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::global::{GlobalRows, row_of_head};
use crate::tile::register::Accumulator;
use crate::tile::softmax::RowValues;

/// Threads that share a row.
const THREADS_OF_ROW: u32 = 32 * WARPS / ROWS;
/// Contiguous columns of a thread.
const COLUMNS: u32 = 4;

/// Where the warps' results lie in shared memory: of each its O in f32, and its L.
#[derive(Clone, Copy)]
struct Results {
    base: u32,
    /// Such that the rows of a fragment meet in no bank.
    row_bytes: u32,
}

impl Results {
    #[inline(always)]
    fn new<T: Tiles>() -> Results {
        Results {
            base: special::shared_base(),
            row_bytes: (T::HEAD_DIM + 8) * 4,
        }
    }

    #[inline(always)]
    fn o(self, warp: u32, row: u32, col: u32) -> u32 {
        self.base + (warp * ROWS + row) * self.row_bytes + col * 4
    }

    #[inline(always)]
    fn lse(self, warp: u32, row: u32) -> u32 {
        self.o(WARPS, 0, 0) + (warp * ROWS + row) * 4
    }

    /// # Safety
    /// Nothing else uses the warp's place now.
    #[inline(always)]
    unsafe fn write<C: Cache, O: Accumulator>(self, warp: u32, lse: RowValues, o: &O) {
        let place = fragment::accumulator(special::lane_idx(), 0);
        for half in 0..2 {
            let row = place.row + half as u32 * 8;
            // SAFETY: the caller's contract.
            unsafe {
                for n in (0..O::N).step_by(2) {
                    let [left, right] = [n, n + 1].map(|n| {
                        let x = o.fragment(0, n);
                        [x[2 * half], x[2 * half + 1]].map(f32::to_bits)
                    });
                    if C::INTERLEAVES {
                        let four = [left[0], right[0], left[1], right[1]];
                        let to = self.o(warp, row, n as u32 * 8 + place.col * 2);
                        shared::st_shared_x4(to, four);
                    } else {
                        let to = self.o(warp, row, n as u32 * 8 + place.col);
                        shared::st_shared_x2(to, left);
                        shared::st_shared_x2(to + 8 * 4, right);
                    }
                }
                if place.col == 0 {
                    shared::st_shared_f32(self.lse(warp, row), lse[0][half]);
                }
            }
        }
    }
}

/// Merges the warps' results, and writes them: to o and lse, or to the place of the split. The last block of a tile then merges the
/// splits, where blocks do that.
///
/// # Safety
/// All threads of the block come here, and no copy to shared memory is on its way. The tensors are as the parameters say.
#[inline(always)]
pub(super) unsafe fn epilogue<E: Element, C: Cache, T: Tiles>(
    p: &ForwardParams,
    tile: Tile,
    lse: RowValues,
    o: &T::Output,
) {
    let results = Results::new::<T>();
    let thread = special::thread_idx_x();
    let (row, col) = (thread / THREADS_OF_ROW, thread % THREADS_OF_ROW * COLUMNS);
    let target = Target::new(p, tile, row);
    // SAFETY: the caller's contract; each thread writes its own columns of a row that exists.
    unsafe {
        // Stages of other warps lie there, too.
        barrier::barrier_sync_all();
        results.write::<C, _>(thread / 32, lse, o);
        barrier::barrier_sync_all();

        let of_warps = [0, 1, 2, 3].map(|warp| shared::ld_shared_f32(results.lse(warp, row)));
        let most = of_warps.into_iter().fold(f32::NEG_INFINITY, max);
        let weights = of_warps.map(|lse| weight(lse, most));
        let sum = weights.iter().sum::<f32>();
        let (mut inverse, mut lse) = (inverse(sum), lse_of_all(sum, most));
        if spec::sinks() && !target.is_part(p, tile) {
            let (with_sink, factor) = with_sink(lse, sink_of(p.sinks, target.head_idx));
            lse = with_sink;
            inverse *= factor;
        }
        for piece in 0..T::HEAD_DIM / (THREADS_OF_ROW * COLUMNS) {
            let col = col + piece * THREADS_OF_ROW * COLUMNS;
            let mut x = [0.0; COLUMNS as usize];
            for (warp, weight) in weights.iter().enumerate() {
                let o = shared::ld_shared_x4(results.o(warp as u32, row, col)).map(f32::from_bits);
                x = [0, 1, 2, 3].map(|i| fma(*weight, o[i], x[i]));
            }
            target.write::<E>(p, tile, col, x.map(|x| x * inverse));
        }
        if col == 0 {
            target.write_lse(p, tile, lse);
        }
        if spec::split_kv() && p.split.tiles_merge == 1 && !is_alone(p, tile) && is_last(p, tile) {
            add_up_splits::<E, T>(p, tile);
        }
    }
}

/// Whether the tile's only block writes o and lse itself, where it might be one of several: a sequence with a length of its own has a single
/// split, and no other kernel merges.
#[inline(always)]
fn is_alone(p: &ForwardParams, tile: Tile) -> bool {
    spec::lengths() && tile.n_splits == 1 && p.split.tiles_merge == 1
}

/// Where a row of the tile goes.
#[derive(Clone, Copy)]
struct Target {
    /// Its number among the rows of lse.
    idx: u64,
    /// The head, among all heads of q.
    head_idx: u32,
    /// The address of the row of o.
    o: u64,
    /// Whether the sequence has it.
    exists: bool,
    /// Whether o and lse have it. Where the sequence does not, the first split writes 0 and −∞.
    is_written: bool,
}

impl Target {
    #[inline(always)]
    fn new(p: &ForwardParams, tile: Tile, row: u32) -> Target {
        let PackedRow { head_idx, query } = tile.place(p, row);
        let head = tile.sequence * p.shape.heads_q + head_idx;
        let exists = query < tile.rows_q.len;
        Target {
            idx: row_of_head(0, head, u64::from(p.shape.seqlen_q), query) / 4,
            head_idx,
            o: GlobalRows::new(&p.o, tile.sequence, head_idx, 0).chunk(query, 0),
            exists,
            is_written: exists || (query < p.shape.seqlen_q && tile.split == 0),
        }
    }

    /// Whether it goes to the place of the split.
    #[inline(always)]
    fn is_part(self, p: &ForwardParams, tile: Tile) -> bool {
        spec::split_kv() && self.exists && !is_alone(p, tile)
    }

    #[inline(always)]
    unsafe fn write<E: Element>(self, p: &ForwardParams, tile: Tile, col: u32, x: [f32; 4]) {
        if !self.is_written || spec::pad_columns() && col >= p.shape.head_dim_v {
            return;
        }
        let x = if self.exists { x } else { [0.0; 4] };
        // SAFETY: the row is there.
        unsafe {
            if self.is_part(p, tile) {
                let row = u64::from(tile.split) * p.split.rows + self.idx;
                let element = row * u64::from(p.shape.head_dim_v) + u64::from(col);
                global::st_global_f32x4(p.split.o + element * 4, x);
            } else {
                let packed = [E::pack(x[0], x[1]), E::pack(x[2], x[3])];
                global::st_global_x2(self.o + u64::from(col) * 2, packed);
            }
        }
    }

    #[inline(always)]
    unsafe fn write_lse(self, p: &ForwardParams, tile: Tile, lse: f32) {
        if !self.is_written {
            return;
        }
        let lse = if self.exists { lse } else { f32::NEG_INFINITY };
        let base = if self.is_part(p, tile) {
            p.split.lse + u64::from(tile.split) * p.split.rows * 4
        } else {
            p.lse
        };
        // SAFETY: the row is there.
        unsafe { global::st_global_f32(base + self.idx * 4, lse) };
    }
}

/// Counts the block, which has written its split; whether the other splits of the tile have all been written. The last one leaves the
/// counter at 0.
///
/// # Safety
/// As [`epilogue`].
#[inline(always)]
unsafe fn is_last(p: &ForwardParams, tile: Tile) -> bool {
    let flag = special::shared_base();
    let of_head = tile.sequence * p.shape.heads_k + tile.kv_head_idx;
    let counter = p.split.arrivals + u64::from(of_head * tile.n + tile.idx) * 4;
    // SAFETY: the caller's contract. One thread counts for all: what they have written comes before, what they read then comes behind.
    unsafe {
        barrier::barrier_sync_all();
        if special::thread_idx_x() == 0 {
            atomic::fence_acq_rel_gpu();
            let before = atomic::atom_inc_u32(counter, tile.n_splits - 1);
            atomic::fence_acq_rel_gpu();
            shared::st_shared_u32(flag, (before + 1 == tile.n_splits) as u32);
        }
        barrier::barrier_sync_all();
        shared::ld_shared_u32(flag) == 1
    }
}

/// Adds up the splits of the tile's rows, a warp one row after the other.
///
/// # Safety
/// As [`epilogue`]; all splits have been written.
#[inline(always)]
unsafe fn add_up_splits<E: Element, T: Tiles>(p: &ForwardParams, tile: Tile) {
    const { assert!(T::HEAD_DIM <= config::COMBINE_COLUMNS / 2) };
    let mut row = special::thread_idx_x() / 32;
    while row < ROWS {
        let target = Target::new(p, tile, row);
        if target.exists {
            let splits = SplitRow {
                split: &p.split,
                row: target.idx,
                n: tile.n_splits,
                head_dim: p.shape.head_dim_v,
                sinks: p.sinks,
                head_idx: target.head_idx,
            };
            // SAFETY: the caller's contract.
            unsafe {
                let lse = splits.merge_to::<E, 1, 8>(target.o);
                global::st_global_f32_if(p.lse + target.idx * 4, lse, special::lane_idx() == 0);
            }
        }
        row += WARPS;
    }
}
