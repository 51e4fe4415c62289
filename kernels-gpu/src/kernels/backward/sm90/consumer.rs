//! What consumers of both kinds do: masks, exponentials, dS, and sending gradients off.

use super::Tiles;
use super::layout::{Layout, WorkTile};
use crate::attention::batch_and_head;
use crate::attention::mask::{Mask, Rows};
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::params::{BOX_COLUMNS, BackwardParams, TensorMap};
use crate::ptx::math::{ex2_approx, fms};
use crate::ptx::{barrier, mbarrier, shared, shuffle, special, tma};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{self, BoxedTile, WARPGROUP_ROWS};

/// The consumers' barriers, when they send gradients off.
const OUT_BARRIER: u32 = 1;
/// Threads of a consumer.
pub(super) const THREADS: u32 = 128;

/// Pᵀ or dSᵀ, packed.
pub(super) type PackedScores<T> = <<T as Tiles>::Scores as Accumulator>::Packed;

/// What does not change from tile to tile.
pub(super) struct Consumer<'a, M> {
    pub(super) p: &'a BackwardParams,
    pub(super) maps: u64,
    pub(super) layout: Layout,
    pub(super) mask: M,
    /// Which consumer.
    pub(super) idx: u32,
    /// 1 in the warp's lane 0, which arrives for the warp where only products read.
    pub(super) leads: u32,
}

/// A tile's keys, as a consumer sees them: 64.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// The first one.
    first: u32,
    /// The first query from which on every one sees all of them.
    edge: u32,
}

/// Calls `f` with the index of every fragment across, and the two values of a block's `statistics` in shared memory that
/// this lane's columns of it want. They lie [`super::super::interleaved`].
///
/// # Safety
/// The statistics have arrived.
#[inline(always)]
unsafe fn with_columns<S: Accumulator>(statistics: u32, mut f: impl FnMut(usize, [f32; 2])) {
    let first = statistics + special::lane_idx() % 4 * 16;
    for n in 0..S::N / 2 {
        // SAFETY: the caller's contract.
        let [a, b, c, d] =
            unsafe { shared::ld_shared_x4(first + n as u32 * 64) }.map(f32::from_bits);
        f(2 * n, [a, b]);
        f(2 * n + 1, [c, d]);
    }
}

/// The `n`-th fragment across of what was packed.
#[inline(always)]
pub(super) fn unpacked<E: Element>(packed: &impl Packed, n: usize) -> [f32; 4] {
    let [[a, b], [c, d]] = packed.pairs(0, n).map(E::unpack);
    [a, b, c, d]
}

impl<M: Mask> Consumer<'_, M> {
    /// The `n`-th tile, when the loader has said which. It can be read again until its slot is released.
    #[inline(always)]
    pub(super) unsafe fn await_work(&self, n: u32) -> WorkTile {
        // SAFETY: the slot is full when it is read.
        unsafe {
            self.layout.work_ring.await_full(Ring::at(STAGES, n));
            let work = self.layout.read_work(n % STAGES);
            WorkTile {
                steps: shuffle::shuffle_idx_u32(work.steps, 0),
                ..work
            }
        }
    }

    /// The tile's slot may be overwritten.
    #[inline(always)]
    pub(super) unsafe fn end_work(&self, n: u32) {
        // SAFETY: every thread arrives for itself.
        unsafe { mbarrier::mbarrier_arrive_if(self.layout.work_ring.empty(n % STAGES), 1) }
    }

    /// The 64 keys of the tile from its key `first` on.
    #[inline(always)]
    pub(super) fn keys<T: Tiles>(&self, work: WorkTile, first: u32) -> Keys {
        let config = T::FOOTPRINT;
        let rows = Rows {
            first: work.tile.tile * config.block_k + first,
            len: WARPGROUP_ROWS,
        };
        let blocks = self.mask.q_blocks(rows, &self.p.shape, config.block_q);
        Keys {
            first: rows.first,
            edge: blocks.full_begin * config.block_q,
        }
    }

    /// Pᵀ = exp2(scale_log2 · Sᵀ − L), 0 where masked; it stands in place of Sᵀ, too.
    #[inline(always)]
    pub(super) unsafe fn probabilities<E: Element, T: Tiles>(
        &self,
        at: Ring,
        keys: Keys,
        s: &mut T::Scores,
    ) -> PackedScores<T> {
        // SAFETY: Q's stage is full, and L and the number of its first row with it.
        unsafe {
            let first_query = self.layout.read_first_query(at.stage);
            if first_query < keys.edge {
                self.mask_block::<T>(keys, first_query, s);
            }
            with_columns::<T::Scores>(self.layout.lse::<T>(at.stage), |n, lse| {
                for (idx, x) in s.fragment_mut(0, n).iter_mut().enumerate() {
                    *x = ex2_approx(fms(*x, self.p.scale.scale_log2, lse[idx % 2]));
                }
            });
        }
        s.pack::<E>()
    }

    /// dSᵀ = Pᵀ ∘ (dPᵀ − Δ); `p` gives the fragments of Pᵀ.
    #[inline(always)]
    pub(super) unsafe fn score_gradients<E: Element, T: Tiles>(
        &self,
        at: Ring,
        p: impl Fn(usize) -> [f32; 4],
        mut d_p: T::Scores,
    ) -> PackedScores<T> {
        // SAFETY: Q's stage is full, and Δ with it: who takes P over knows of it from there.
        unsafe {
            with_columns::<T::Scores>(self.layout.delta::<T>(at.stage), |n, delta| {
                let p = p(n);
                for (idx, x) in d_p.fragment_mut(0, n).iter_mut().enumerate() {
                    *x = p[idx] * (*x - delta[idx % 2]);
                }
            });
        }
        d_p.pack::<E>()
    }

    /// dSᵀ of the tile's 64 keys from `first` on, to where dQ's product finds it.
    #[inline(always)]
    pub(super) unsafe fn publish<T: Tiles>(&self, at: Ring, first: u32, d_s: &PackedScores<T>) {
        let ring = self.layout.d_s_ring;
        let row = first + special::thread_idx_x() / 32 % 4 * 16;
        // SAFETY: the stage is empty when it is written.
        unsafe {
            ring.await_empty(at);
            let tile = self.layout.d_s::<T>(at.stage);
            if T::QUERIES_DOWN {
                let part = tile.part(row / WARPGROUP_ROWS);
                let col16 = row % WARPGROUP_ROWS / 16;
                warpgroup::store_matrices_transposed::<T::Scores>(part, col16, d_s);
            } else {
                warpgroup::store_matrices::<T::Scores>(tile, row, d_s);
            }
            tma::fence_proxy_async();
            barrier::warp_sync();
            mbarrier::mbarrier_arrive_if(ring.full(at.stage), self.leads);
        }
    }

    /// The thread has read Q and what came with it, as have the products.
    #[inline(always)]
    pub(super) unsafe fn release_q(&self, at: Ring) {
        // SAFETY: every thread arrives for itself.
        unsafe { mbarrier::mbarrier_arrive_if(self.layout.q_ring.empty(at.stage), 1) }
    }

    /// S ← −∞ where the mask hides the key, or there is none.
    #[inline(always)]
    fn mask_block<T: Tiles>(&self, keys: Keys, first_query: u32, s: &mut T::Scores) {
        let place = fragment::accumulator(special::lane_idx(), 0);
        let first_key =
            keys.first + special::opaque(special::thread_idx_x()) / 32 % 4 * 16 + place.row;
        let hidden = [0, 8].map(|below| {
            let key = first_key + below;
            if key < self.p.shape.seqlen_k {
                let first_column = first_query + place.col;
                self.mask.first_query(key).saturating_sub(first_column)
            } else {
                u32::MAX
            }
        });
        for n in 0..T::Scores::N {
            for (idx, x) in s.fragment_mut(0, n).iter_mut().enumerate() {
                if (n as u32 * 8 + idx as u32 % 2) < hidden[idx / 2] {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Sends a gradient of the tile's 64 keys from `first` on off through `place`, by the `map`-th tensor map.
    #[inline(always)]
    pub(super) unsafe fn send<E: Element, T: Tiles>(
        &self,
        place: BoxedTile,
        map: u64,
        work: WorkTile,
        first: u32,
        gradient: &T::KeyGradient,
        scale: f32,
    ) {
        // Worked out anew for every tile: as they do not change, they would stay in registers, and there are none to spare.
        let thread = special::opaque(special::thread_idx_x());
        let (consumer, thread) = (thread / THREADS - 1, thread % THREADS);
        let place = BoxedTile {
            base: special::opaque(place.base),
            ..place
        };
        let map = self.maps + map * size_of::<TensorMap>() as u64;
        let (batch_idx, head_idx) = batch_and_head(work.tile.head, self.p.shape.heads_k);
        let first = work.tile.tile * T::FOOTPRINT.block_k + first;
        // SAFETY: as `consume`; one thread sends, and waits until what it sent before has left.
        unsafe {
            tma::bulk_wait_group_read::<0>();
            barrier::barrier_sync(OUT_BARRIER + consumer, THREADS);
            let mut gradient = *gradient;
            gradient.for_each(|_, _, x| *x *= scale);
            warpgroup::store_matrices::<T::KeyGradient>(
                place,
                thread / 32 * 16,
                &gradient.pack::<E>(),
            );
            tma::fence_proxy_async();
            barrier::barrier_sync(OUT_BARRIER + consumer, THREADS);
            for part in 0..T::HEAD_DIM.div_ceil(BOX_COLUMNS) {
                let at = [part * BOX_COLUMNS, first, head_idx, batch_idx];
                tma::tma_store_if(map, at, place.part(part).base, (thread == 0) as u32);
            }
            tma::bulk_commit_group();
        }
    }
}
