//! The common part of both kinds of consumers: masks, exponentials, dS, and sending off gradients.

use super::Tiles;
use super::layout::{Layout, SLOT, first_key, own_keys};
use super::producer::map_of_sequence;
use super::scheduler::{Work, WorkTile, kv_head};
use crate::attention::batch_and_head;
use crate::attention::lengths::ListedTile;
use crate::attention::mask::{Band, Bounds};
use crate::attention::score::{ScoreRows, ScoreTile};
use crate::config::TMA_BACKWARD_STAGES as STAGES;
use crate::kernels::backward::record;
use crate::kernels::common::dropout::{Dropped, head_of};
use crate::kernels::common::score_mod::{Given, edit_fragments};
use crate::kernels::common::sequence::Sequence;
use crate::kernels::common::stamps::Record;
use crate::kernels::varlen::END;
use crate::params::{BOX_COLUMNS, BackwardMap, BackwardParams};
use crate::ptx::math::{ex2_approx, fms};
use crate::ptx::tensor_map::fence_tensor_map_acquire_if;
use crate::ptx::{barrier, mbarrier, score, shared, spec, special, tma};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::register::{Accumulator, Packed, is_hidden};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{self, BoxedTile, WARPGROUP_ROWS, WarpgroupTile};

/// The consumers' barriers, when they send gradients off.
const OUT_BARRIER: u32 = 1;
/// Threads of a consumer.
pub(super) const THREADS: u32 = 128;

/// Pᵀ or dSᵀ, packed.
pub(super) type PackedScores<T> = <<T as Tiles>::Scores as Accumulator>::Packed;

/// State that does not change from tile to tile.
pub(super) struct Consumer<'a> {
    pub(super) p: &'a BackwardParams,
    pub(super) maps: u64,
    pub(super) layout: Layout,
    /// The mask. If sequences have different lengths, of rows that are counted such that every sequence ends at [`END`].
    pub(super) band: Band,
    /// Which consumer.
    pub(super) idx: u32,
    /// 1 in the warp's lane 0, which arrives for the warp where only products read.
    pub(super) leads: u32,
}

/// The keys of a tile of which a consumer has the scores, [`own_keys`], in one register: the first one; [`RAGGED`] where some lie beyond the sequence's end,
/// [`VISIBLE`] where all lie in the prefix.
#[derive(Clone, Copy)]
pub(super) struct Keys(i32);

/// Greater than every key, by more than a window is wide.
const RAGGED: i32 = 1 << 30;

/// Less than every key, by more than a sequence is long.
const VISIBLE: i32 = -(1 << 30);

/// What a consumer sends off of a gradient.
pub(super) struct Out {
    /// Where it lies in shared memory.
    pub(super) place: BoxedTile,
    /// The gradient's tensor map.
    pub(super) map: BackwardMap,
    /// Its first key, counted from the tile's.
    pub(super) first: u32,
    /// The first part of 64 columns, and how many.
    pub(super) parts: [u32; 2],
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
        let words = unsafe { shared::ld_shared_x4(first + n as u32 * 64) };
        let [a, b, c, d] = words.map(f32::from_bits);
        f(2 * n, [a, b]);
        f(2 * n + 1, [c, d]);
    }
}

impl Consumer<'_> {
    /// The `n`-th work, when the producer has announced it. It can be read again until its slot is released.
    #[inline(always)]
    pub(super) unsafe fn await_work(&self, n: u32) -> Work {
        // SAFETY: the slot is full when it is read.
        unsafe {
            self.layout.work_ring.await_full(Ring::at(STAGES, n));
            self.layout.read_uniform_work(n % STAGES)
        }
    }

    /// The sequence of the work in a slot, whose tile is of this batch entry.
    ///
    /// # Safety
    /// The slot is full as long as the sequence is asked.
    #[inline(always)]
    pub(super) unsafe fn sequence(
        &self,
        slot: u32,
        batch_idx: u32,
    ) -> Sequence<'_, impl Fn() -> ListedTile> {
        Sequence {
            shape: &self.p.shape,
            list: &self.p.list,
            window: self.p.window,
            batch_idx,
            // SAFETY: the caller's contract.
            listed: move || unsafe { self.layout.read_listed(slot) },
        }
    }

    /// The work's slot may be overwritten.
    #[inline(always)]
    pub(super) unsafe fn end_work(&self, n: u32) {
        // SAFETY: every thread arrives for itself.
        unsafe { mbarrier::mbarrier_arrive_if(self.layout.work_ring.empty(n % STAGES), 1) }
    }

    /// The thread that sends by these maps acquires them, where the `n`-th work is a tile of another sequence than the tile before. Fences
    /// are slow: with all threads at every tile, and not one where maps are new, they take as long as a step.
    #[inline(always)]
    pub(super) unsafe fn acquire_maps<const N: usize>(&self, n: u32, maps: [BackwardMap; N]) {
        if !spec::lengths() {
            return;
        }
        // SAFETY: the slot is full; the kernel that made the list has made the maps.
        unsafe {
            let listed = self.layout.read_listed(n % STAGES);
            let sends = special::thread_idx_x().is_multiple_of(THREADS) as u32;
            for map in maps {
                let map = map_of_sequence(self.p, listed.sequence, map);
                fence_tensor_map_acquire_if(map, sends & listed.new_maps);
            }
        }
    }

    /// The [`own_keys`] of the tile from its key `first` on; the tile is the `n`-th work.
    #[inline(always)]
    pub(super) unsafe fn keys<T: Tiles>(&self, n: u32, work: WorkTile, first: u32) -> Keys {
        let mut first = first_key::<T>(work.tile) + first;
        let mut prefix = self.p.window.prefix;
        if spec::lengths() {
            // SAFETY: the slot is full.
            let listed = unsafe { self.layout.read_listed(n % STAGES) };
            let to_end = END - listed.seqlen_k;
            first += to_end;
            prefix += to_end;
        }
        let end = first + const { own_keys::<T>() };
        if end > self.band.seqlen_k() {
            Keys(RAGGED)
        } else if T::SKIPS_PREFIX && spec::prefix() && end <= prefix {
            Keys(VISIBLE)
        } else {
            Keys(first as i32)
        }
    }

    /// Whether a query of the block from `first_query` on does not see one of the keys.
    #[inline(always)]
    pub(super) fn is_edge<T: Tiles>(&self, keys: Keys, first_query: u32) -> bool {
        let (block_q, band) = (const { T::CONFIG.block_q as i32 }, &self.band);
        let last = const { own_keys::<T>() as i32 - 1 };
        band.hides_right(first_query as i32, keys.0 + last)
            || band.hides_left(first_query as i32 + (block_q - 1), keys.0)
            || !band.bounds().right && keys.0 == RAGGED
            || hides_behind_end::<T>() && first_query as i32 + block_q > band.seqlen_q() as i32
    }

    /// Pᵀ = exp2(scale_log2 · Sᵀ − L) of the 64 keys from `first` on, 0 where masked. The tile is the `n`-th work. It stands in place of
    /// Sᵀ, too; times the derivative of an expression, where that is not 1, only where the schedule keeps P.
    #[inline(always)]
    pub(super) unsafe fn probabilities<E: Element, T: Tiles>(
        &self,
        n: u32,
        at: Ring,
        keys: Keys,
        first: u32,
        s: &mut T::Scores,
    ) -> Probabilities<T> {
        // SAFETY: Q's stage is full, and L and the number of its first row with it.
        unsafe {
            if T::EDITS_SCORES && spec::score_gradient() {
                if !begins_early::<T>() {
                    self.begin_scores_of_step(n, at, first);
                }
                return self.probabilities_and_derivatives::<E, T>(at, keys, first, s);
            }
            if T::EDITS_SCORES && spec::score() && !self.needs_no_edit::<T>(at) {
                if !begins_early::<T>() {
                    self.begin_scores_of_step(n, at, first);
                }
                edit_fragments(s, 0);
            }
            self.where_hidden::<T>(at, keys, first, |visible| {
                s.for_each_hidden(visible, |x| *x = f32::NEG_INFINITY);
            });
            with_columns::<T::Scores>(self.layout.lse::<T>(at.stage), |n, lse| {
                for (idx, x) in s.fragment_mut(0, n).iter_mut().enumerate() {
                    *x = ex2_approx(fms(*x, self.p.scale.scale_log2, lse[idx % 2]));
                }
            });
        }
        let p = s.pack::<E>();
        Probabilities {
            for_d_v: p,
            for_d_s: p,
        }
    }

    /// Whether the expression makes nothing of a step's scores.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    unsafe fn needs_no_edit<T: Tiles>(&self, at: Ring) -> bool {
        // SAFETY: the caller's contract.
        T::BLOCK_MASKS
            && spec::block_mask()
            && spec::edit_partial()
            && unsafe { self.layout.read_mask_word(at.stage) } == 1
    }

    /// Calls `hide` with what each of the thread's two keys sees of the block of queries, if one of the 64 from `first` on does not see all of
    /// them.
    #[inline(always)]
    unsafe fn where_hidden<T: Tiles>(
        &self,
        at: Ring,
        keys: Keys,
        first: u32,
        mut hide: impl FnMut([(u32, u32); 2]),
    ) {
        // SAFETY: Q's stage is full, and the number of its first row with it.
        unsafe {
            let first_query = self.layout.read_first_query(at.stage);
            // Two ways, so that ptxas knows what it need not ask.
            if T::BLOCK_MASKS && spec::block_mask() && self.layout.read_mask_word(at.stage) == 1 {
                if keys.0 == RAGGED {
                    let first_key = self.layout.read_first_key(at.stage) + first;
                    hide(self.visible::<T>(self.band, first_key, first_query, true));
                }
            } else if self.is_edge::<T>(keys, first_query) {
                let first_key = self.layout.read_first_key(at.stage) + first;
                let band = self.band_of_step(at);
                hide(self.visible::<T>(band, first_key, first_query, false));
            }
        }
    }

    /// The band of a step's rows, counted as the step's are.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    pub(super) unsafe fn band_of_step(&self, at: Ring) -> Band {
        if spec::prefix() && spec::lengths() {
            // SAFETY: the caller's contract.
            self.band
                .with_prefix(unsafe { self.layout.read_mask_word(at.stage) })
        } else {
            self.band
        }
    }

    /// dSᵀ = Pᵀ ∘ (dPᵀ − Δ); `p` gives the fragments of Pᵀ. Where weights are dropped, dPᵀ is divided by the share that is kept.
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
                    *x = if T::DROPS && spec::dropout() {
                        p[idx] * fms(*x, self.p.dropout.inverse_keep, delta[idx % 2])
                    } else {
                        p[idx] * (*x - delta[idx % 2])
                    };
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
            if T::SCHEDULE.queries_down {
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

    /// The thread, and the products, have read Q and the data that came with it.
    #[inline(always)]
    pub(super) unsafe fn release_q(&self, at: Ring) {
        // SAFETY: every thread arrives for itself.
        unsafe { mbarrier::mbarrier_arrive_if(self.layout.q_ring.empty(at.stage), 1) }
    }

    /// Which columns of the block of queries see the thread's two keys, by the band unless the block is full: the first one, and one past
    /// the last; none where there is no key.
    #[inline(always)]
    fn visible<T: Tiles>(
        &self,
        band: Band,
        first_key: u32,
        first_query: u32,
        is_full: bool,
    ) -> [(u32, u32); 2] {
        // Opaque, where registers would not hold it beside Sᵀ, dQ and dK.
        let thread = match T::SCHEDULE.s_after_dq {
            true => special::thread_idx_x(),
            false => special::opaque(special::thread_idx_x()),
        };
        let place = fragment::accumulator(thread % 32, 0);
        let first_key = first_key + thread / 32 % 4 * 16 + place.row;
        let first_column = first_query + place.col;
        [0, 8].map(|below| {
            let key = first_key + below;
            if key < band.seqlen_k() {
                let Bounds { left, right, .. } = band.bounds();
                let begin = if right && !is_full {
                    band.first_query(key).saturating_sub(first_column)
                } else {
                    0
                };
                let end = if left && !is_full {
                    band.end_query(key).saturating_sub(first_column)
                } else {
                    u32::MAX
                };
                if hides_behind_end::<T>() {
                    return (begin, end.min(band.seqlen_q().saturating_sub(first_column)));
                }
                (begin, end)
            } else {
                (u32::MAX, u32::MAX)
            }
        })
    }

    /// Sends a gradient of the tile's 64 keys from `first` on off through `place`, by a tensor map. The tile is the `n`-th work.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "what differs between dV and dK")]
    pub(super) unsafe fn send<E: Element, T: Tiles, G: WarpgroupTile>(
        &self,
        n: u32,
        place: BoxedTile,
        map: BackwardMap,
        work: WorkTile,
        first: u32,
        gradient: &G,
        scale: f32,
    ) {
        let out = Out {
            place,
            map,
            first,
            parts: [0, (G::N as u32 * 8).div_ceil(BOX_COLUMNS)],
        };
        // SAFETY: the caller's contract.
        unsafe {
            self.send_parts::<T>(n, work, out, |place, warp| {
                let mut gradient = *gradient;
                gradient.for_each(|_, _, x| *x *= scale);
                warpgroup::store_matrices::<G>(place, warp * 16, &gradient.pack::<E>());
            });
        }
    }

    /// Sends off what `write` writes to its place, which it is called with, and with which of the consumer's warps writes. The tile is the `n`-th work.
    #[inline(always)]
    pub(super) unsafe fn send_parts<T: Tiles>(
        &self,
        n: u32,
        work: WorkTile,
        out: Out,
        write: impl FnOnce(BoxedTile, u32),
    ) {
        let Out {
            place,
            map,
            first,
            parts: [first_part, n_parts],
        } = out;
        // Opaque: as they do not change, they would stay in registers, and there are none to spare.
        let thread = special::opaque(special::thread_idx_x());
        let (consumer, thread) = (thread / THREADS - 1, thread % THREADS);
        let place = BoxedTile {
            base: special::opaque(place.base),
            ..place
        };
        let (batch_idx, head_idx) = batch_and_head(work.tile.head, self.p.shape.heads_k);
        let head_idx = kv_head(self.p, head_idx);
        let first = first_key::<T>(work.tile) + first;
        // SAFETY: as `consume`; one thread sends, and waits until what it sent through this place before has left.
        unsafe {
            if T::SCHEDULE.outs == 2 {
                tma::bulk_wait_group_read::<1>();
            } else {
                tma::bulk_wait_group_read::<0>();
            }
            barrier::barrier_sync(OUT_BARRIER + consumer, THREADS);
            write(place, thread / 32);
            tma::fence_proxy_async();
            let map = if spec::lengths() {
                let listed = self.layout.read_listed(special::opaque(n) % STAGES);
                map_of_sequence(self.p, listed.sequence, map)
            } else {
                map.at(self.maps)
            };
            barrier::barrier_sync(OUT_BARRIER + consumer, THREADS);
            for part in 0..n_parts {
                let part = first_part + part;
                let at = [part * BOX_COLUMNS, first, head_idx, batch_idx];
                tma::tma_store_if(map, at, place.part(part).base, (thread == 0) as u32);
            }
            tma::bulk_commit_group();
        }
    }
}

// A consumer's scores, where an expression edits them.

/// Pᵀ of a step, rounded.
pub(super) struct Probabilities<T: Tiles> {
    /// As dV's product takes it.
    pub(super) for_d_v: PackedScores<T>,
    /// Times the derivative of an expression that edits scores: dSᵀ is made of it, where registers do not hold it unrounded.
    pub(super) for_d_s: PackedScores<T>,
}

impl Layout {
    /// Writes which (batch, query head) a stage is for, where an expression edits scores or weights are dropped; where sequences have different lengths, which
    /// (sequence, query head).
    ///
    /// # Safety
    /// The stage is empty.
    #[inline(always)]
    pub(super) unsafe fn write_head(self, stage: u32, head: u32) {
        // SAFETY: the caller's contract.
        unsafe { shared::st_shared_u32(self.steps + stage * SLOT + 12, head) };
    }

    /// Reads it.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    unsafe fn read_head(self, stage: u32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { shared::ld_shared_u32(self.steps + stage * SLOT + 12) }
    }
}

/// Query heads that share a head of k and v.
#[inline(always)]
fn group_size(p: &BackwardParams) -> u32 {
    if spec::head_splits() {
        p.shape.group_size * p.n_head_splits + p.n_larger_head_splits
    } else {
        p.shape.group_size
    }
}

/// Whether the expression gets a step's position while the step's product runs ([`Consumer::begin_scores_early`]): what it reads for a row, such as
/// ALiBi's slope, comes from memory meanwhile. Not where it edits some of the steps alone.
#[inline(always)]
fn begins_early<T: Tiles>() -> bool {
    let some_steps = T::BLOCK_MASKS && spec::block_mask() && spec::edit_partial();
    T::EDITS_SCORES && (spec::score() || spec::score_gradient()) && !some_steps
}

/// Whether queries beyond a sequence's end are masked, too. L is ∞ there and P is 0, but an expression may have read anything: NaN, which would reach dV and dK.
#[inline(always)]
fn hides_behind_end<T: Tiles>() -> bool {
    T::EDITS_SCORES && (spec::score() || spec::score_gradient()) && spec::lengths()
}

impl Consumer<'_> {
    /// What [`Consumer::probabilities`] begins with, for the tile's 64 keys from `first` on, where it may come earlier.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    pub(super) unsafe fn begin_scores_early<T: Tiles>(&self, n: u32, at: Ring, first: u32) {
        if begins_early::<T>() {
            // SAFETY: the caller's contract.
            unsafe { self.begin_scores_of_step(n, at, first) };
        }
    }

    /// The scores that follow are those of the step, of the tile's 64 keys from `first` on. The tile is the `n`-th work.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    unsafe fn begin_scores_of_step(&self, n: u32, at: Ring, first: u32) {
        let (p, layout) = (self.p, self.layout);
        let shape = &p.shape;
        // SAFETY: the caller's contract; the work's slot is full as long as the tile is not done with.
        let (head, first_query, first_key, seqlens) = unsafe {
            let seqlens = self.sequence(special::opaque(n) % STAGES, 0).lengths();
            (
                layout.read_head(at.stage),
                layout.read_first_query(at.stage),
                layout.read_first_key(at.stage),
                seqlens,
            )
        };
        // Rows are counted such that the sequence ends at `END`.
        let [to_q, to_k] = match spec::lengths() {
            true => seqlens.map(|seqlen| END - seqlen),
            false => [0, 0],
        };
        let thread = special::opaque(special::thread_idx_x());
        let place = fragment::accumulator(thread % 32, 0);
        let key = first_key - to_k + first + thread / 32 % 4 * 16 + place.row;
        let (batch, head) = batch_and_head(head, shape.heads_q);
        let given = Given::new(&p.score, &p.scale);
        let tile = ScoreTile::new(batch, head, group_size(p), seqlens, key);
        given.begin(ScoreRows::Keys, tile);
        score::score_block(first_query - to_q + place.col);
    }

    /// [`Consumer::probabilities`] if the derivative of the expression is not 1. Masked pairs are cleared after packing: two
    /// registers for each pair of scores live across the branch, and not three.
    ///
    /// # Safety
    /// As [`Consumer::begin_scores_of_step`], which came before.
    #[inline(always)]
    unsafe fn probabilities_and_derivatives<E: Element, T: Tiles>(
        &self,
        at: Ring,
        keys: Keys,
        first: u32,
        s: &mut T::Scores,
    ) -> Probabilities<T> {
        const { assert!(T::Scores::N <= score::MOST_FRAGMENTS) };
        let (mut for_d_v, mut for_d_s) = (PackedScores::<T>::zero(), PackedScores::<T>::zero());
        // SAFETY: the caller's contract.
        unsafe {
            with_columns::<T::Scores>(self.layout.lse::<T>(at.stage), |n, lse| {
                let s = s.fragment_mut(0, n);
                let derivatives = score::score_gradient(s, n);
                for (idx, x) in s.iter_mut().enumerate() {
                    *x = ex2_approx(fms(*x, self.p.scale.scale_log2, lse[idx % 2]));
                }
                *for_d_v.pairs_mut(0, n) = [E::pack(s[0], s[1]), E::pack(s[2], s[3])];
                for idx in 0..4 {
                    s[idx] *= derivatives[idx];
                }
                *for_d_s.pairs_mut(0, n) = [E::pack(s[0], s[1]), E::pack(s[2], s[3])];
            });
            self.where_hidden::<T>(at, keys, first, |visible| {
                if T::SCHEDULE.keeps_p {
                    s.for_each_hidden(visible, |x| *x = 0.0);
                }
                for n in 0..T::Scores::N {
                    for half in 0..2 {
                        let left = is_hidden(visible[half], n, 0);
                        let right = is_hidden(visible[half], n, 1);
                        let left = if left { 0 } else { 0xffff };
                        let right = if right { 0 } else { 0xffff_0000 };
                        for_d_v.pairs_mut(0, n)[half] &= left | right;
                        for_d_s.pairs_mut(0, n)[half] &= left | right;
                    }
                }
            });
        }
        Probabilities { for_d_v, for_d_s }
    }
}

// A consumer's weights, where some are dropped.

/// dPᵀ ← 0 where Pᵀ is 0: where weights are dropped. Others that are 0 make no difference, as dS is a multiple of the weight.
#[inline(always)]
pub(super) fn clear_where_zero<T: Tiles>(p: &PackedScores<T>, d_p: &mut T::Scores) {
    for n in 0..T::Scores::N {
        let pairs = p.pairs(0, n);
        for (idx, x) in d_p.fragment_mut(0, n).iter_mut().enumerate() {
            let half = pairs[idx / 2] & 0xffff << (16 * (idx % 2));
            *x = if half == 0 { 0.0 } else { *x };
        }
    }
}

impl Consumer<'_> {
    /// Which weights of the step are dropped, of the tile's 64 keys from `first` on. The tile is the `n`-th work.
    ///
    /// # Safety
    /// Q's stage is full.
    #[inline(always)]
    unsafe fn dropped(&self, n: u32, at: Ring, first: u32) -> Dropped<'_> {
        let (p, layout) = (self.p, self.layout);
        // SAFETY: the caller's contract; the work's slot is full as long as the tile is not done with; the parameters say where seed and
        // offset lie.
        unsafe {
            let thread = special::opaque(special::thread_idx_x());
            let head = layout.read_head(at.stage);
            let mut dropped = Dropped {
                p: &p.dropout,
                head: head_of(&p.dropout, head),
                rows: ScoreRows::Keys,
                // Opaque, or LLVM adds up what does not change first, and holds it in a register: 1.4 % of the time at head_dim 64 (H200).
                first_row: special::opaque(layout.read_first_key(at.stage) + first)
                    + thread / 32 % 4 * 16,
                first_column: layout.read_first_query(at.stage),
            };
            if spec::lengths() {
                // Rows are counted such that the sequence ends at `END`. Behind the head's key: with lengths held through making that,
                // ptxas finds no registers at head_dim 64, and serialises the products.
                let [seqlen_q, seqlen_k] = layout.read_lengths(special::opaque(n) % STAGES);
                dropped.first_row -= END - seqlen_k;
                dropped.first_column -= END - seqlen_q;
            }
            dropped
        }
    }

    /// Pᵀ, packed, ← 0 where weights are dropped.
    ///
    /// # Safety
    /// As [`Consumer::probabilities`], which came before.
    #[inline(always)]
    pub(super) unsafe fn drop_weights<T: Tiles>(
        &self,
        n: u32,
        at: Ring,
        first: u32,
        p: &mut PackedScores<T>,
    ) {
        if T::DROPS && spec::dropout() {
            // SAFETY: the caller's contract.
            unsafe { self.dropped(n, at, first).clear_packed::<T::Scores>(p) };
        }
    }

    /// dPᵀ ← 0 where weights are dropped; asked for where some are.
    ///
    /// # Safety
    /// As [`Consumer::drop_weights`].
    #[inline(always)]
    pub(super) unsafe fn drop_gradients<T: Tiles>(
        &self,
        n: u32,
        at: Ring,
        first: u32,
        d_p: &mut T::Scores,
    ) {
        // SAFETY: the caller's contract.
        unsafe { self.dropped(n, at, first).clear(d_p) };
    }
}

// A consumer's time stamps: see `kernels/stamps.rs`.

/// The first consumer's first thread; the producer's warpgroup comes before it.
const FIRST_THREAD: u32 = THREADS;

impl Consumer<'_> {
    /// A profiled kernel records that a tile begins.
    ///
    /// # Safety
    /// The tile is this block's.
    #[inline(always)]
    pub(super) unsafe fn record_begin<T: Tiles>(&self, work: WorkTile) {
        if T::PROFILES {
            // SAFETY: the plan has a record for each tile.
            unsafe { self.record(work).begin() };
        }
    }

    /// The same of its end.
    ///
    /// # Safety
    /// As [`Consumer::record_begin`].
    #[inline(always)]
    pub(super) unsafe fn record_end<T: Tiles>(&self, work: WorkTile) {
        if T::PROFILES {
            // SAFETY: as above.
            unsafe { self.record(work).end() };
        }
    }

    /// Where.
    #[inline(always)]
    fn record(&self, work: WorkTile) -> Record {
        // Opaque: see `Consumer::send`.
        let writes = special::opaque(special::thread_idx_x()) == FIRST_THREAD;
        record(self.p, work.tile, writes)
    }
}
