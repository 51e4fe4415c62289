//! Gradients of a tile's keys from registers to memory: where shared memory has no place for them on their way.

use super::Tiles;
use super::consumer::{Consumer, THREADS};
use super::dq_accumulate::FRAGMENT_BYTES;
use super::layout::{CONSUMERS, first_key, rank};
use super::scheduler::{WorkTile, kv_head};
use crate::attention::batch_and_head;
use crate::config::{Division, TMA_BACKWARD_STAGES as STAGES, TMA_BACKWARD_SUM_WARPS as SUM_WARPS};
use crate::ptx::{atomic, barrier, global, shuffle, special};
use crate::tile::element::Element;
use crate::tile::register::Accumulator;
use crate::tile::warpgroup::{self, WarpgroupTile};

impl Consumer<'_> {
    /// Writes the tile's 64 keys from `first` on of a gradient. The tile is the `n`-th work.
    ///
    /// # Safety
    /// As [`Consumer::send`].
    #[inline(always)]
    pub(super) unsafe fn store<E: Element, T: Tiles, G: WarpgroupTile>(
        &self,
        n: u32,
        sum: Sum,
        work: WorkTile,
        first: u32,
        gradient: &G,
        scale: f32,
    ) {
        let p = self.p;
        let (tensor, columns) = match sum {
            Sum::Values => (&p.d_v, p.shape.head_dim_v),
            Sum::Keys => (&p.d_k, p.shape.head_dim),
        };
        // SAFETY: rows and columns that the tensor does not have are not written.
        unsafe {
            let tile = work.tile;
            let (batch_idx, head_idx) = batch_and_head(tile.head, p.shape.heads_k);
            let head_idx = kv_head(p, head_idx);
            let rows = self
                .sequence(n % STAGES, batch_idx)
                .rows_k::<E>(tensor, head_idx);
            let target = rows.with_chunks(columns / 8);
            let row = special::thread_idx_x() / 32 % 4 * 16;
            let first = first_key::<T>(tile) + first + row;
            let mut gradient = *gradient;
            gradient.for_each(|_, _, x| *x *= scale);
            warpgroup::store_rows::<E, _>(target, first, &gradient);
        }
    }
}

// Sums of dV and dK over head splits: where tiles are few, several of them have the same keys, each with a part of the query heads.
//
// Their tiles add up dV and dK in global memory, in the order of the splits: the first stores, the next ones accumulate, and the last
// takes the sum into its registers and writes it in the output type. So results are the same from run to run. A warp waits for
// the same warp of the split before, and for nobody else. That tile was claimed earlier: it runs, or has ended.
//
// Sums lie as consumers hold them: fragments of all threads of a consumer one after the other.

/// Threads of a warp: each counts for itself.
const LANES: u32 = 32;

/// Which of a tile's two sums.
#[derive(Clone, Copy)]
pub(super) enum Sum {
    /// Of dV.
    Values,
    /// Of dK.
    Keys,
}

impl Consumer<'_> {
    /// Adds what this consumer has of a gradient, in so many parts, to those of the splits before. Whether this is the last split: then `gradient` is
    /// the sum.
    ///
    /// # Safety
    /// All warps of the consumer come here, once for each of its gradients of a tile.
    #[inline(always)]
    pub(super) unsafe fn accumulate_head_split<T: Tiles, G: WarpgroupTile, const PARTS: usize>(
        &self,
        work: WorkTile,
        sum: Sum,
        gradient: &mut [G; PARTS],
    ) -> bool {
        let p = self.p;
        // Opaque: see `Consumer::send`.
        let thread = special::opaque(special::thread_idx_x());
        // Consumers that share the products have one gradient each.
        let piece = match T::SCHEDULE.division {
            Division::Products => sum as u32,
            Division::Keys | Division::Columns => sum as u32 * CONSUMERS + (thread / THREADS - 1),
        };
        let (kv_head, split) = batch_and_head(work.tile.head, p.n_head_splits);
        // Of each block that shares the tile.
        let tile = kv_head * p.schedule.tiles + work.tile.k_block;
        let tile = tile * T::SCHEDULE.cluster + rank::<T>();
        let warp = piece * (THREADS / LANES) + thread % THREADS / LANES;
        let semaphore = p.dkv_semaphore + u64::from(tile * SUM_WARPS + warp) * 4;
        let piece_bytes = const { (PARTS * T::KeyGradient::N) as u32 * FRAGMENT_BYTES };
        let tile_bytes = const { 2 * T::SCHEDULE.keys_of_block() * T::HEAD_DIM * 4 };
        let own = u64::from(piece * piece_bytes + thread % THREADS * 16);
        let sums = p.dkv_accum + u64::from(tile) * u64::from(tile_bytes) + own;
        let fragment =
            |part: usize, n: usize| sums + (part * G::N + n) as u64 * u64::from(FRAGMENT_BYTES);
        // SAFETY: the workspace has the tile's sums and semaphores.
        unsafe {
            // Broadcast lane 0's values so that ptxas treats the branches as warp-uniform.
            let split = shuffle::shuffle_idx_u32(split, 0);
            if split > 0 {
                let before = split * LANES;
                while shuffle::shuffle_idx_u32(atomic::ld_acquire_u32(semaphore), 0) != before {}
                // What lane 0 acquired, all lanes have.
                barrier::warp_sync();
            }
            let is_last = split + 1 == p.n_head_splits;
            for (part, gradient) in gradient.iter_mut().enumerate() {
                if is_last {
                    for n in 0..G::N {
                        let sum = global::ld_global_f32x4(fragment(part, n));
                        for (i, x) in gradient.fragment_mut(0, n).iter_mut().enumerate() {
                            *x += sum[i];
                        }
                    }
                } else if split > 0 {
                    for n in 0..G::N {
                        atomic::red_add_f32x4(fragment(part, n), gradient.fragment(0, n));
                    }
                } else {
                    for n in 0..G::N {
                        global::st_global_f32x4(fragment(part, n), gradient.fragment(0, n));
                    }
                }
            }
            atomic::red_release_add_u32(semaphore, 1);
            is_last
        }
    }
}
