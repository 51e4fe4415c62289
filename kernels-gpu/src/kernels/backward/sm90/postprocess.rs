//! dQ = accumulator · scale, rounded to the output type.
//!
//! When a block of threads has no tiles left, its producer claims rows of dQ as it claimed tiles, waits until all tiles that meet
//! them have added, and tells the consumers, which convert them. Idle blocks do this while the last tiles run; a kernel of its
//! own would begin only when the last tile has ended.

use super::Tiles;
use super::consumer::{Consumer, THREADS};
use super::dq_accumulate::{FRAGMENT_BYTES, piece_bytes, row_address, semaphore_address};
use super::layout::{Layout, converted_rows};
use super::producer::announce;
use super::scheduler::{DqRows, Work};
use crate::attention::lengths::ListedTile;
use crate::attention::mask::{Band, Rows};
use crate::attention::{batch_and_head, divide};
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::kernels::{band, varlen};
use crate::params::BackwardParams;
use crate::ptx::{atomic, global, spec, special};
use crate::tile::element::Element;
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::register::Accumulator;
use crate::tile::warpgroup::{self, WARPGROUP_ROWS};

/// The producer's part: claims rows until none are left. `n` is the number of announcements before; returns the number after.
///
/// # Safety
/// One thread of the block does it, when it has no tiles left.
#[inline(always)]
pub(super) unsafe fn hand_out<T: Tiles>(p: &BackwardParams, layout: Layout, mut n: u32) -> u32 {
    let band = band(&p.shape, p.window);
    let (per_head, heads) = if spec::lengths() {
        // SAFETY: a list lies there.
        let blocks = unsafe { varlen::n_listed(p.list.q_blocks) };
        (blocks, 1)
    } else {
        let per_head = p.shape.seqlen_q.div_ceil(const { converted_rows::<T>() });
        (per_head, p.shape.batch)
    };
    let all = per_head * heads * p.shape.heads_q;
    // SAFETY: each block of rows is claimed once. Tiles that are waited for run, or have ended.
    unsafe {
        loop {
            let claimed = atomic::atom_add_u32(p.tile_counters + 4, 1);
            if claimed >= all {
                return n;
            }
            let head = divide(claimed, per_head);
            let mut rows = DqRows {
                block: claimed - head * per_head,
                head,
            };
            if spec::lengths() {
                let listed = varlen::listed(p.list.q_blocks, rows.block);
                // Where several blocks are converted at once, the first of them stands for all.
                let together = const { converted_rows::<T>() / T::CONFIG.block_q };
                if !listed.block.is_multiple_of(together) {
                    continue;
                }
                rows.block = listed.block / together;
                let band = varlen::band_of_sequence(listed.seqlen_q, listed.seqlen_k, p.window);
                await_sum::<T>(p, band, rows, listed.q_blocks_before);
                announce(layout, n, Work::convert(rows), listed);
            } else {
                await_sum::<T>(p, band, rows, 0);
                announce(layout, n, Work::convert(rows), ListedTile::default());
            }
            n += 1;
        }
    }
}

/// Waits until all tiles have added to all blocks that have some of these rows.
#[inline(always)]
unsafe fn await_sum<T: Tiles>(p: &BackwardParams, band: Band, rows: DqRows, q_blocks_before: u32) {
    let config = T::CONFIG;
    let q_blocks = divide(p.padded_q as u32, config.block_q);
    let mut first = rows.block * const { converted_rows::<T>() };
    for _ in 0..const { converted_rows::<T>() / T::CONFIG.block_q } {
        if first < band.seqlen_q() {
            let queries = Rows::of_sequence(first, config.block_q, band.seqlen_q());
            let tiles = if T::BLOCK_MASKS && spec::block_mask() {
                let (batch_idx, head_idx) = batch_and_head(rows.head, p.shape.heads_q);
                // SAFETY: the ranks have been made.
                unsafe {
                    p.blocks
                        .n_tiles(batch_idx, head_idx, divide(first, config.block_q))
                }
            } else {
                band.kv_blocks(queries, config.block_k).n()
            };
            let block = rows.head * q_blocks + q_blocks_before + divide(first, config.block_q);
            for rank in 0..const { T::CONFIG.cluster } {
                let semaphore = semaphore_address::<T>(p, block, rank);
                // SAFETY: the workspace has the semaphores of every block.
                while unsafe { atomic::ld_acquire_u32(semaphore) } != tiles {}
            }
        }
        first += config.block_q;
    }
}

/// Where dQ of a sequence and a head goes.
struct SequenceDq {
    band: Band,
    /// The sequence's rows of dQ.
    rows: GlobalRows,
    /// The sequence's first row of the accumulator's head.
    padded_first: u32,
}

/// Which columns of a row, counted in those that are converted at once, lie as the `nth` in the accumulator: where consumers halve a part
/// of 64, two halves of each one's own part, and then its half of that.
#[inline(always)]
const fn place_in_row<T: Tiles>(nth: u32) -> u32 {
    let (piece, in_piece) = (nth / 3, nth % 3);
    match (T::SCHEDULE.halves_a_part, in_piece) {
        (false, _) => nth,
        (true, 2) => 4 + piece,
        (true, _) => 2 * piece + in_piece,
    }
}

impl Consumer<'_> {
    /// Where dQ goes of the sequence of the `n`-th work.
    #[inline(always)]
    unsafe fn d_q_place<T: Tiles>(&self, n: u32, head: u32) -> SequenceDq {
        let p = self.p;
        if spec::lengths() {
            // SAFETY: the slot is full.
            let tile = unsafe { self.layout.read_listed(n % STAGES) };
            let batch_idx = p.list.batch_q(tile.sequence);
            SequenceDq {
                band: varlen::band_of_sequence(tile.seqlen_q, tile.seqlen_k, p.window),
                rows: GlobalRows::new(&p.d_q, batch_idx, head, 0)
                    .from_row(tile.q_first, tile.seqlen_q),
                padded_first: tile.q_blocks_before * T::CONFIG.block_q,
            }
        } else {
            let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
            SequenceDq {
                band: self.band,
                rows: GlobalRows::new(&p.d_q, batch_idx, head_idx, p.shape.seqlen_q),
                padded_first: 0,
            }
        }
    }

    /// Whether some tile has added to these rows of a head.
    #[inline(always)]
    unsafe fn some_added<T: Tiles>(
        &self,
        place: &SequenceDq,
        head: u32,
        first: u32,
        len: u32,
    ) -> bool {
        if T::BLOCK_MASKS && spec::block_mask() {
            let (batch_idx, head_idx) = batch_and_head(head, self.p.shape.heads_q);
            let block = divide(first, const { T::CONFIG.block_q });
            // SAFETY: the ranks have been made.
            unsafe { self.p.blocks.n_tiles(batch_idx, head_idx, block) > 0 }
        } else {
            let queries = Rows::of_sequence(first, len, place.rows.len);
            place.band.kv_blocks(queries, T::CONFIG.block_k).n() > 0
        }
    }

    /// The consumers' part: this warp's 16 rows, from registers as the consumers had them. Zeros where no tile has added.
    #[inline(always)]
    pub(super) unsafe fn convert<E: Element, T: Tiles>(&self, n: u32, rows: DqRows) {
        let p = self.p;
        // SAFETY: the slot is full. The accumulator has the rows, and their sum where a tile has added.
        unsafe {
            let DqRows { block, head } = rows;
            let first = block * const { converted_rows::<T>() } + self.idx * WARPGROUP_ROWS;
            // Opaque: see `Consumer::send`.
            let thread = special::opaque(special::thread_idx_x()) % THREADS;
            let place = self.d_q_place::<T>(n, head);
            let seqlen_q = place.rows.len;
            let added =
                first < seqlen_q && self.some_added::<T>(&place, head, first, WARPGROUP_ROWS);
            // Blocks of more than 64 rows hold the pieces of the first 64 first.
            let padded_first = place.padded_first + first;
            let mut own = row_address::<T>(p, head, padded_first) + u64::from(thread * 16);
            let target = GlobalMatrix {
                rows: place.rows,
                // Opaque as well: nobody else wants it.
                chunks: special::opaque(p.shape.head_dim) / 8,
            };
            for nth in 0..T::HEAD_DIM / 8 / T::Rounded::N as u32 {
                let mut d_q = T::Rounded::zero();
                if added {
                    for n in 0..T::Rounded::N {
                        let x = global::ld_global_f32x4(own);
                        *d_q.fragment_mut(0, n) = x.map(|x| x * p.scale.scale);
                        own += u64::from(FRAGMENT_BYTES);
                    }
                }
                let target = target.from_chunk(place_in_row::<T>(nth) * T::Rounded::N as u32);
                warpgroup::store_rows::<E, _>(target, first + thread / 32 * 16, &d_q);
            }
            self.end_work(n);
        }
    }

    /// The same where consumers had dQ transposed: a block, of which this warp has 16 columns and a lane pairs of rows.
    #[inline(always)]
    pub(super) unsafe fn convert_transposed<E: Element, T: Tiles>(&self, n: u32, rows: DqRows) {
        let p = self.p;
        let block_q = const { T::CONFIG.block_q };
        // SAFETY: the slot is full. The accumulator has the rows, and their sum where a tile has added.
        unsafe {
            let DqRows { block, head } = rows;
            let first = block * block_q;
            // Opaque: see `Consumer::send`.
            let thread = special::opaque(special::thread_idx_x()) % THREADS;
            let (warp, lane) = (thread / 32, thread % 32);
            let place = self.d_q_place::<T>(n, head);
            let added = self.some_added::<T>(&place, head, first, block_q);
            let own = row_address::<T>(p, head, place.padded_first + first)
                + u64::from(self.idx * piece_bytes::<T>() + warp * 512);
            let target = GlobalMatrix {
                rows: place.rows,
                chunks: special::opaque(p.shape.head_dim) / 8,
            };
            let chunk = (self.idx * 4 + warp) * 2;
            let mut pair = lane;
            while pair < block_q / 2 {
                let from = own + u64::from(pair / 4 * FRAGMENT_BYTES + pair % 4 * 16);
                let mut d_q = [[0.0; 8]; 4];
                if added {
                    for column in 0..8 {
                        let x = global::ld_global_f32x4(from + column as u64 * 64);
                        for i in 0..4 {
                            d_q[i][column] = x[i] * p.scale.scale;
                        }
                    }
                }
                for i in 0..4 {
                    let (row, chunk) = (first + pair * 2 + i as u32 % 2, chunk + i as u32 / 2);
                    let x = [0, 1, 2, 3].map(|j| E::pack(d_q[i][2 * j], d_q[i][2 * j + 1]));
                    let inside = target.contains(row, chunk);
                    global::st_global_x4_if(target.rows.chunk(row, chunk), x, inside);
                }
                pair += 32;
            }
            self.end_work(n);
        }
    }
}
