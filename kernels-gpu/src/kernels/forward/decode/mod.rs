//! flash2 forward for few queries over many keys, as when text is generated: the keys are divided among warps, and among blocks.
//!
//! A tile has 16 rows: the queries of all heads of a group, which have the same keys (GQA packed; heads of a query are neighbours).
//! Each of four warps takes every fourth chunk of 16 keys, with stages of its own, so that no warp waits for another until all have
//! come to their end. Then the block merges the results of its warps, each with its own m and l. Keys may be divided into splits, one per block; the
//! last block of a tile to finish merges the results of the splits (Flash-Decoding, Dao et al. 2023).
//!
//! If sequences have different lengths, no list of tiles is made: each block reads the lengths, and finds its share by itself.

mod cache;
mod e4m3;
mod merge;
mod scheduler;

use super::sm80::Tiles;
use crate::attention::divide;
use crate::attention::divisor::Divisor;
use crate::attention::mask::Band;
use crate::config;
use crate::kernels::common::sequence::band_of_lengths;
use crate::params::{ForwardParams, SCALE_ROWS};
use crate::ptx::{barrier, cp_async, global, shuffle, spec, special};
use crate::tile::copy::{self, BoundsChecked, Team};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::softmax::{OnlineSoftmax, RowValues};
use cache::Stage;
pub use cache::{Cache, Same};
pub use e4m3::E4m3;
use scheduler::Tile;

/// Rows of a tile, and keys of a chunk.
const ROWS: u32 = 16;
/// Keys of a step of all warps: splits have multiples of as many.
const KEYS: u32 = ROWS * WARPS;
/// Warps of a block.
const WARPS: u32 = config::DECODE_WARPS;

/// The tiles of head_dim `D` for few queries.
pub struct CompactTiles<const D: u32>;

impl Tiles for CompactTiles<32> {
    const HEAD_DIM: u32 = 32;
    type Scores = RegisterTile<1, 2>;
    type Output = RegisterTile<1, 4>;
}

impl Tiles for CompactTiles<64> {
    const HEAD_DIM: u32 = 64;
    type Scores = RegisterTile<1, 2>;
    type Output = RegisterTile<1, 8>;
}

impl Tiles for CompactTiles<128> {
    const HEAD_DIM: u32 = 128;
    type Scores = RegisterTile<1, 2>;
    type Output = RegisterTile<1, 16>;
}

/// The most steps of the product Q Kᵀ.
const MAX_STEPS: usize = 8;

/// One tile: see the module's documentation.
///
/// # Safety
/// The launch is as [`config::forward_decode`] says, with a block for every KV head, tile, and share or sequence and split; tensors are as [`ForwardParams`]
/// says, of at most `T::HEAD_DIM` columns, q and o padded.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn forward<E: Element, C: Cache, T: Tiles>(p: &ForwardParams) {
    // SAFETY: the caller's contract.
    unsafe {
        let Some(tile) = Tile::of_block(p) else {
            return;
        };
        let mut o = T::Output::zero();
        let mut lse = [[f32::NEG_INFINITY; 2]; 2];
        if tile.idx * ROWS < tile.rows_q.len * p.shape.group_size {
            let band = band_of_lengths(p.window, tile.rows_q.len, tile.rows_k.len);
            lse = attend::<C, T>(p, tile, &band, &mut o);
        }
        merge::epilogue::<E, C, T>(p, tile, lse, &o);
    }
}

/// O and L of the warp's chunks.
#[inline(always)]
unsafe fn attend<C: Cache, T: Tiles>(
    p: &ForwardParams,
    tile: Tile,
    band: &Band,
    o: &mut T::Output,
) -> RowValues {
    let warp = special::thread_idx_x() / 32;
    let (first, end) = tile.chunks(p, band);
    let steps = divide(end - first + WARPS - 1 - warp, WARPS);
    let chunk = |step: u32| first + warp + step * WARPS;
    let stage = Stage::of_step::<C, T>;
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    // Of the lane's two rows: the first key that the query sees, and one past the last.
    let fragment::Coord { row, col } = fragment::accumulator(special::lane_idx(), 0);
    let seen = [row, row + 8].map(|row| {
        let query = tile.place(p, row).query;
        (band.first_key(query), band.end_key(query))
    });
    // SAFETY: a stage is filled when its last step is over, and read when its copies have been waited for.
    unsafe {
        let mut keys = Keys::new::<C>(p, tile);
        if spec::pages() {
            // All keys wait for the first pages. Without the barrier ptxas would have them looked up when Q is on its way.
            keys.look_up(chunk(0));
            barrier::warp_sync();
        }
        // Q lies in the stage that is filled last.
        let last = stage(C::STAGES - 1);
        C::begin::<T>(p, tile, last);
        cp_async::cp_async_commit_group();
        for step in 0..C::STAGES - 1 {
            if step < steps {
                keys.load::<C>(stage(step), chunk(step), chunk(step + 1));
            }
            cp_async::cp_async_commit_group();
        }
        C::wait_for_q();
        barrier::warp_sync();
        let mut cache = C::new::<T>(p, tile, last);

        let mut step = 0;
        while step < steps {
            C::wait_for_step();
            // The step's chunk has arrived in all lanes, and all have done with the stage that is filled next.
            barrier::warp_sync();
            let next = step + C::STAGES - 1;
            if next < steps {
                keys.load::<C>(stage(next), chunk(next), chunk(next + 1));
            }
            cp_async::cp_async_commit_group();

            let mut s = cache.scores::<T>(stage(step));
            let first_key = chunk(step) * ROWS;
            for n in 0..T::Scores::N {
                for (idx, s) in s.fragment_mut(0, n).iter_mut().enumerate() {
                    let (first, end) = seen[idx / 2];
                    let key = first_key + n as u32 * 8 + col + idx as u32 % 2;
                    if key < first || key >= end {
                        *s = f32::NEG_INFINITY;
                    }
                }
            }
            softmax.update(&mut s, o);
            cache.add::<T>(o, s, stage(step));
            step += 1;
        }
        cp_async::cp_async_wait_group::<0>();
        let lse = softmax.finalize(o);
        cache.finish::<T>(o);
        lse
    }
}

// A warp's chunks of K and V, side by side or in pages.

/// The keys and values of a sequence and one head.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// Rows of K and of V; of pages, those of page 0.
    rows: [GlobalMatrix; 2],
    /// Where there are pages: the address of the sequence's entries of the table.
    table: u64,
    /// Where K and V have scales: the sequence's and its head's, of K and of V; of pages that have their own, those of page 0; of blocks that do, those of
    /// block 0.
    scales: [u64; 2],
    /// Bytes from one page's scale to the next; 0 where pages have none of their own.
    page_scale_bytes: u32,
    /// Bytes from one page of K, and of V, to the next.
    page_bytes: [i64; 2],
    n_pages: u32,
    page_size: Divisor,
    /// Where there are pages: the sequence's first row in them.
    first: u32,
    /// Whether the rows of every chunk are contiguous, in one page.
    is_side_by_side: bool,
    /// For the chunk that is loaded next: the place of its first row if it is contiguous, else of the row with this lane's number.
    found: Found,
}

/// Where a row of a sequence lies in the pool.
#[derive(Clone, Copy, Default)]
struct Found {
    page: u32,
    row: u32,
}

impl Keys {
    /// Of a tile.
    #[inline(always)]
    pub(super) fn new<C: Cache>(p: &ForwardParams, tile: Tile) -> Keys {
        let batch_idx = if spec::pages() || p.list.packed_k == 1 {
            0
        } else {
            tile.sequence
        };
        let first = tile.rows_k.first;
        // A pool's rows are counted from a page's first one.
        let first_of_rows = if spec::pages() { 0 } else { first };
        let rows =
            [(&p.k, p.shape.head_dim), (&p.v, p.shape.head_dim_v)].map(|(tensor, columns)| {
                let head_idx = tile.kv_head_idx;
                GlobalMatrix {
                    rows: GlobalRows::of_elements(tensor, batch_idx, head_idx, 0, C::ELEMENT_BYTES)
                        .from_row(first_of_rows, tile.rows_k.len),
                    chunks: columns * C::ELEMENT_BYTES / 16,
                }
            });
        let scales = &p.descales;
        let scale = scales.strides_k.first(tile.sequence, tile.kv_head_idx);
        let scale = u64::from(scale) * 4;
        let entries = u64::from(tile.sequence) * u64::from(p.pages.columns);
        Keys {
            rows,
            table: p.pages.table + entries * 4,
            scales: [scales.k + scale, scales.v + scale],
            page_scale_bytes: p.page_scales * 4,
            page_bytes: [p.k.batch_stride, p.v.batch_stride]
                .map(|n| n * i64::from(C::ELEMENT_BYTES)),
            n_pages: p.pages.n_pages,
            page_size: p.divisors.page_size,
            first,
            is_side_by_side: (p.pages.page_size | first).is_multiple_of(ROWS),
            found: Found::default(),
        }
    }

    /// Looks up the pages of a chunk, so that its load does not wait for the table.
    ///
    /// # Safety
    /// The table has an entry for each of the sequence's pages.
    #[inline(always)]
    unsafe fn look_up(&mut self, chunk: u32) {
        if !spec::pages() {
            return;
        }
        let row = chunk * ROWS
            + if self.is_side_by_side {
                0
            } else {
                special::lane_idx() % ROWS
            };
        // No page of the pool, where the sequence has no such row.
        let mut found = Found {
            page: u32::MAX,
            row: 0,
        };
        if row < self.rows[0].rows.len {
            let (slot, row) = self.page_size.divide(self.first + row);
            found.row = row;
            // SAFETY: the caller's contract.
            found.page = unsafe { global::ld_global_u32(self.table + u64::from(slot) * 4) };
        }
        self.found = found;
    }

    /// Begins the copies of a chunk, which has been looked up, to a stage, and looks the next one up. The caller commits the group. Rows that
    /// the sequence or the pool does not have become 0.
    ///
    /// # Safety
    /// Warp-collective. Nothing reads the stage until the copies have been waited for.
    #[inline(always)]
    unsafe fn load<C: Cache>(&mut self, stage: Stage, chunk: u32, next: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            if C::SCALES_BYTES > 0 {
                self.load_scales(stage, chunk);
            }
            if spec::pages() {
                if self.is_side_by_side {
                    let rows = [0, 1].map(|of| self.rows_of_page(of, chunk));
                    Self::load_rows(stage, rows, self.found.row);
                } else {
                    self.load_out_of_pages(stage);
                }
                self.look_up(next);
            } else {
                Self::load_rows(stage, self.rows, chunk * ROWS);
            }
        }
    }

    /// Begins the copies of a chunk with contiguous rows, of K and of V, from `first` on.
    #[inline(always)]
    unsafe fn load_rows(stage: Stage, [k, v]: [GlobalMatrix; 2], first: u32) {
        let team = Team {
            thread: special::lane_idx(),
            threads: 32,
        };
        // SAFETY: the caller's contract.
        unsafe {
            copy::load::<BoundsChecked>(stage.k, k, first, ROWS, team);
            copy::load::<BoundsChecked>(stage.v, v, first, ROWS, team);
        }
    }

    /// The rows of the page that has been found, of K or of V, up to the sequence's last one; none of a page that the pool does not have.
    #[inline(always)]
    fn rows_of_page(&self, of: usize, chunk: u32) -> GlobalMatrix {
        let GlobalMatrix { rows, chunks } = self.rows[of];
        if self.found.page >= self.n_pages {
            let rows = GlobalRows { len: 0, ..rows };
            return GlobalMatrix { rows, chunks };
        }
        let page = i64::from(self.found.page).wrapping_mul(self.page_bytes[of]);
        let left = rows.len.saturating_sub(chunk * ROWS);
        let rows = GlobalRows {
            base: rows.base.wrapping_add(page as u64),
            len: self.found.row.saturating_add(left),
            ..rows
        };
        GlobalMatrix { rows, chunks }
    }

    /// Begins the copies of a chunk's scales: half of the lanes those of K, the others those of V. Those of pages that the pool does not have
    /// become 0. A chunk lies within a block of keys that share a scale.
    #[inline(always)]
    unsafe fn load_scales(&self, stage: Stage, chunk: u32) {
        const { assert!(SCALE_ROWS.is_multiple_of(ROWS)) };
        let lane = special::lane_idx();
        let inside = !spec::pages() || self.found.page < self.n_pages;
        let page = if inside { self.found.page } else { 0 };
        let mut from = self.scales[usize::from(lane >= ROWS)];
        from += u64::from(page) * u64::from(self.page_scale_bytes);
        if spec::scale_blocks() {
            from += u64::from(chunk * ROWS / SCALE_ROWS) * 4;
        }
        // SAFETY: the caller's contract. What is not there is not read; its address is a valid one.
        unsafe {
            cp_async::cp_async_ca_4(stage.scales + lane * 4, from, if inside { 4 } else { 0 });
        }
    }

    /// The address of the lane's row, of K in the first half of the lanes, of V in the others; 0 where there is none.
    #[inline(always)]
    fn address(&self) -> u64 {
        let of = usize::from(special::lane_idx() >= ROWS);
        let page = i64::from(self.found.page).wrapping_mul(self.page_bytes[of]);
        let row = self.rows[of].rows.chunk(self.found.row, 0);
        match self.found.page < self.n_pages {
            true => row.wrapping_add(page as u64),
            false => 0,
        }
    }

    #[inline(always)]
    unsafe fn load_out_of_pages(&self, stage: Stage) {
        let chunks_per_row = stage.k.row_bytes / 16;
        let (lane, rows_at_once) = (special::lane_idx(), 32 / chunks_per_row);
        let (first, chunk) = (lane / chunks_per_row, lane % chunks_per_row);
        let address = self.address();
        for i in 0..ROWS / rows_at_once {
            let to = first + i * rows_at_once;
            for (of, tile) in [stage.k, stage.v].into_iter().enumerate() {
                // SAFETY: the caller's contract. What is not there is not read; its address is a valid one.
                unsafe {
                    let half =
                        |word: u64| shuffle::shuffle_idx_u32(word as u32, to + of as u32 * ROWS);
                    let row = u64::from(half(address >> 32)) << 32 | u64::from(half(address));
                    let source = self.rows[of];
                    let inside = source.has_chunk(chunk) & (row != 0);
                    let from = if inside {
                        row + u64::from(chunk) * 16
                    } else {
                        source.rows.base
                    };
                    let bytes = if inside { 16 } else { 0 };
                    cp_async::cp_async_cg_16(tile.chunk(to, chunk), from, bytes);
                }
            }
        }
    }
}
