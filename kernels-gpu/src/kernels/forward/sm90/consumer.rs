//! A consumer: 64 query rows of every tile, of all columns or of half of them; products and softmax.

use super::Tiles;
use super::elements::Elements;
use super::layout::{Keys, Layout, WorkTile, place};
use super::scheduler::{PackGqa, sequence_of};
use crate::attention::lengths::ListedTile;
use crate::attention::mask::Band;
use crate::attention::score::{RowTerms, ScoreRows, ScoreTile};
use crate::config::{TMA_SLOTS, TileConfig};
use crate::kernels::band;
use crate::kernels::common::dropout::{Dropped, head_of};
use crate::kernels::common::score_mod::{Given, edit_fragments};
use crate::kernels::common::sequence::Sequence;
use crate::kernels::common::stamps::Record;
use crate::kernels::varlen::split_keys;
use crate::params::{BOX_COLUMNS, TmaForwardParams};
use crate::ptx::{barrier, mbarrier, score, spec, special};
use crate::tile::fragment;
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;
use crate::tile::softmax::{OnlineSoftmax, RowValues, scale_rows};
use crate::tile::warpgroup::{
    self, BoxedTile, Pending, STEP_BYTES, WARPGROUP_ROWS, begin_gemm_rs, begin_gemm_ss,
};

/// The warps of a consumer vote at barriers `VOTE_BARRIER ..`.
const VOTE_BARRIER: u32 = 4;
/// Threads of the producer warpgroup; the consumers follow it.
const PRODUCER_THREADS: u32 = 128;

/// State that does not change from tile to tile.
pub struct Consumer<'a> {
    pub p: &'a TmaForwardParams,
    pub layout: Layout,
    pub band: Band,
    pub packing: PackGqa,
    /// Keys of a split, where keys are divided.
    pub split_keys: u32,
    /// Which consumer.
    pub idx: u32,
    /// The warp's first row of a tile.
    pub row: u32,
    /// 1 in the warp's lane 0, which arrives for the warp.
    pub leads: u32,
}

/// A tile whose O is still in registers.
#[derive(Clone, Copy)]
pub struct Finished {
    pub work: WorkTile,
    pub softmax: OnlineSoftmax,
}

/// A block's exponentials by the reference maxima of the earlier blocks, and the work left until O is ready.
struct Speculation {
    /// The factors of O, if m has grown.
    alpha: Option<RowValues>,
    /// For l.
    sums: RowValues,
    /// Whether a score has outgrown its m, in any of the consumer's warps: all repeat the block, since `wgmma` takes them all.
    mispredicted: bool,
}

/// Whether the softmax is speculative.
#[inline(always)]
fn speculates<T: Tiles>() -> bool {
    T::SPECULATES && !tanh_binds::<T>()
}

/// The whole of a consumer's work.
///
/// # Safety
/// One warpgroup of the block does it for each consumer; the barriers have been made.
#[inline(always)]
pub unsafe fn consume<E: Elements, T: Tiles>(p: &TmaForwardParams, layout: Layout, idx: u32) {
    let mut slot = Ring::start(TMA_SLOTS);
    // SAFETY: all four warps take the same way.
    unsafe {
        let c = Consumer::new::<T>(p, layout, idx);
        let work = c.next_work::<T>(&mut slot);
        T::attend::<E>(&c, work, slot);
        if T::SPLITS_KV && spec::split_kv() {
            c.merge_splits::<E, T>();
        }
    }
}

/// The tiles from this work on, if there is one: sequences may have fewer tiles than there are blocks of threads, and others may have claimed
/// all of them.
///
/// # Safety
/// As [`consume`].
#[inline(always)]
pub unsafe fn attend_if_any<E: Elements, T: Tiles>(c: &Consumer, work: WorkTile, slot: Ring) {
    if !(spec::lengths() || T::SPLITS_KV && spec::split_kv()) || work.blocks != 0 {
        // SAFETY: the caller's contract.
        unsafe {
            c.record_begin::<T>(work);
            attend::<E, T>(c, work, slot);
        }
    }
}

/// The tiles from this work on, which is one.
#[inline(always)]
unsafe fn attend<E: Elements, T: Tiles>(c: &Consumer, mut work: WorkTile, mut slot: Ring) {
    let kv_steps = const { T::CONFIG.block_k * T::ELEMENT_BYTES / STEP_BYTES };
    let (p, layout) = (c.p, c.layout);
    let mut q = Ring::start(T::Q_STAGES);
    let (mut k, mut v) = (Ring::start(T::KV_STAGES), Ring::start(T::KV_STAGES));
    let mut o_place = Ring::start(1);
    let fresh = OnlineSoftmax::new(p.scale.scale_log2);
    // SAFETY: as below.
    let mut softmax = unsafe { c.softmax_of_tile::<T>(fresh, work, slot) };
    let mut s = T::Scores::zero();
    let mut o = T::Output::zero();
    // SAFETY: stages are read when they are full, and released when the products that read them have been waited for;
    // all four warps take the same way.
    unsafe {
        c.begin_ping_pong::<T>();
        c.release_work(slot, true);
        let mut block = work.blocks - 1;
        mbarrier::mbarrier_wait(layout.q_ring.full(q.stage), q.parity);
        mbarrier::mbarrier_wait(layout.k_ring.full(k.stage), k.parity);
        // S = Q Kᵀ
        c.begin_own_scores::<E, T>(&mut s, q, k).wait::<0>();
        let keys = c.keys::<T>(k.stage);
        c.release::<T>(&mut k, q, block);
        c.begin_scores_of_tile::<T>(work, slot, true);
        let unit = softmax.unit();
        let terms = c.edit_scores::<T>(work, block, slot, keys, unit, &mut s);
        softmax.begin(&mut s, terms);
        let mut weights = c.weights::<E, T>(work, block, slot, keys, &s);
        // 0 until O of the tile has been begun.
        let mut accumulate = 0;
        let mut finished: Option<Finished> = None;
        let ended = loop {
            let last = block == 0;
            let ended = Finished { work, softmax };
            if last {
                work = c.next_work::<T>(&mut slot);
                if work.blocks == 0 {
                    break ended;
                }
                block = work.blocks;
                q.advance();
                mbarrier::mbarrier_wait(layout.q_ring.full(q.stage), q.parity);
                c.record_next::<T>(ended.work, work);
            }
            block -= 1;

            mbarrier::mbarrier_wait(layout.k_ring.full(k.stage), k.parity);
            c.await_ping_pong::<T>();
            // S = Q Kᵀ
            let begun_s = c.begin_own_scores::<E, T>(&mut s, q, k);
            if let Some(finished) = &finished {
                c.epilogue::<E, T>(finished, place(slot, 2 + last as u32), &mut o_place, &mut o);
            }
            c.release_work(slot, last);
            mbarrier::mbarrier_wait(layout.v_ring.full(v.stage), v.parity);
            let values = E::values(c.own_v::<T>(v.stage));
            // O += P V
            let begun_o = begin_gemm_rs::<E, _>(&mut o, &weights, values, kv_steps, accumulate);
            c.pass_ping_pong::<T>();
            begun_s.wait::<1>();
            c.begin_scores_of_tile::<T>(work, slot, last);
            if last {
                softmax = c.softmax_of_tile::<T>(fresh, work, slot);
            }
            let unit = softmax.unit();
            let keys = c.keys::<T>(k.stage);
            let terms = c.edit_scores::<T>(work, block, slot, keys, unit, &mut s);
            let keys = c.keys_of_weights::<T>(k.stage);
            let mut speculation = c.speculative_softmax::<T>(&mut softmax, &mut s, terms);
            if !speculates::<T>() {
                c.release::<T>(&mut k, q, block);
            }
            // V is there, as has been seen before. But ptxas lets no arithmetic sink below a loop: without this one the
            // exponentials would come after the wait for O instead of running beside its product.
            mbarrier::mbarrier_wait(layout.v_ring.full(v.stage), v.parity);
            begun_o.wait::<0>();
            mbarrier::mbarrier_arrive_if(layout.v_ring.empty(v.stage), c.leads);
            v.advance();
            if speculation.mispredicted {
                // S = Q Kᵀ
                c.begin_own_scores::<E, T>(&mut s, q, k).wait::<0>();
                let keys = c.keys::<T>(k.stage);
                c.edit_scores::<T>(work, block, slot, keys, unit, &mut s);
                speculation.alpha = softmax.grow(&s, terms).or(speculation.alpha);
                speculation.sums = softmax.exponentials(&mut s, terms);
            }
            if speculates::<T>() {
                c.release::<T>(&mut k, q, block);
            }
            softmax.add::<T::Scores>(speculation.sums);
            if let (Some(alpha), false) = (speculation.alpha, last) {
                scale_rows(&mut o, alpha);
            }
            weights = c.weights::<E, T>(work, block, slot, keys, &s);
            finished = last.then_some(ended);
            accumulate = !last as u32;
        };
        c.end_ping_pong::<T>();
        if let Some(finished) = &finished {
            c.epilogue::<E, T>(finished, place(slot, 3), &mut o_place, &mut o);
        }
        mbarrier::mbarrier_wait(layout.v_ring.full(v.stage), v.parity);
        let values = E::values(c.own_v::<T>(v.stage));
        // O += P V
        begin_gemm_rs::<E, _>(&mut o, &weights, values, kv_steps, accumulate).wait::<0>();
        c.epilogue::<E, T>(&ended, place(slot, 2), &mut o_place, &mut o);
        c.record_end::<T>(ended.work);
    }
}

/// The first row in the tile of a thread's warp.
#[inline(always)]
fn row_of_thread<T: Tiles>(thread: u32) -> u32 {
    let row = (thread - PRODUCER_THREADS) / 32 * 16;
    if T::SHARES_ROWS {
        row % WARPGROUP_ROWS
    } else {
        row
    }
}

/// A warp's first row in the tile.
#[inline(always)]
fn row_of_warp<T: Tiles>(idx: u32, thread: u32) -> u32 {
    let of_consumer = if T::SHARES_ROWS {
        0
    } else {
        idx * WARPGROUP_ROWS
    };
    of_consumer + thread / 32 % 4 * 16
}

impl<'a> Consumer<'a> {
    /// This consumer's rows of Q in a stage.
    #[inline(always)]
    fn own_q<T: Tiles>(&self, stage: u32) -> BoxedTile {
        let rows = if T::SHARES_ROWS { 0 } else { self.idx };
        self.layout.q::<T>(stage, rows)
    }

    /// Begins S = Q Kᵀ of the stages' rows.
    #[inline(always)]
    pub(super) unsafe fn begin_own_scores<'s, E: Elements, T: Tiles>(
        &self,
        s: &'s mut T::Scores,
        q: Ring,
        k: Ring,
    ) -> Pending<'s, T::Scores> {
        let (q, k) = (self.own_q::<T>(q.stage), self.layout.k::<T>(k.stage));
        // SAFETY: as `attend`.
        // S = Q Kᵀ
        unsafe { begin_gemm_ss::<E, _>(s, q, k.t(), const { T::HEAD_BYTES / STEP_BYTES }, 0) }
    }

    /// This consumer's columns of V in a stage.
    #[inline(always)]
    fn own_v<T: Tiles>(&self, stage: u32) -> BoxedTile {
        let parts = const { T::Output::N as u32 * 8 / BOX_COLUMNS };
        let v = self.layout.v::<T>(stage);
        if T::SHARES_ROWS {
            v.from_part(self.idx * parts)
        } else {
            v
        }
    }

    /// # Safety
    /// If sequences have different lengths, their list has been made.
    #[inline(always)]
    unsafe fn new<T: Tiles>(p: &'a TmaForwardParams, layout: Layout, idx: u32) -> Self {
        Consumer {
            p,
            layout,
            band: band(&p.shape, p.window),
            packing: PackGqa::new::<T>(p),
            split_keys: if T::SPLITS_KV && spec::split_kv() {
                // SAFETY: the caller's contract.
                unsafe { split_keys(&p.split, &p.list) }
            } else {
                0
            },
            idx,
            row: row_of_warp::<T>(idx, special::thread_idx_x()),
            leads: (special::lane_idx() == 0) as u32,
        }
    }

    /// S ← P, with the maxima looked for only if a row has none yet.
    #[inline(always)]
    unsafe fn speculative_softmax<T: Tiles>(
        &self,
        softmax: &mut OnlineSoftmax,
        s: &mut T::Scores,
        terms: RowTerms,
    ) -> Speculation {
        // SAFETY: all warps of the consumer come here.
        unsafe {
            // Not `&&`: it makes ptxas spill a word at head_dim 64.
            let speculative = softmax.has_references::<T::Scores>() & speculates::<T>();
            let alpha = if speculative {
                None
            } else {
                softmax.grow(s, terms)
            };
            let mut sums = softmax.exponentials(s, terms);
            if tanh_binds::<T>() {
                // Else nobody asks for the sums before the wait for O, and LLVM moves the exponentials behind it.
                for sum in &mut sums[0] {
                    *sum = f32::from_bits(special::opaque(sum.to_bits()));
                }
            }
            let outgrown = speculative && softmax.outgrown_by::<T::Scores>(&sums);
            Speculation {
                alpha,
                sums,
                mispredicted: speculates::<T>()
                    && warpgroup::any(VOTE_BARRIER + self.idx, outgrown),
            }
        }
    }

    /// The next tile of queries, when the producer has announced it. If sequences have different lengths, the slot is
    /// released later: [`Consumer::release_work`].
    #[inline(always)]
    pub unsafe fn next_work<T: Tiles>(&self, slot: &mut Ring) -> WorkTile {
        let ring = self.layout.work_ring;
        // SAFETY: the slot is read when it is full, and released by every lane that has read it.
        unsafe {
            mbarrier::mbarrier_wait(ring.full(slot.stage), slot.parity);
            let work = self.layout.read_work::<T>(slot.stage);
            mbarrier::mbarrier_arrive_if(ring.empty(slot.stage), !spec::lengths() as u32);
            slot.advance();
            work
        }
    }

    /// Where sequences have different lengths: the slot before `slot` has been read, and every tile before the last one stored.
    #[inline(always)]
    pub unsafe fn release_work(&self, slot: Ring, read: bool) {
        if spec::lengths() {
            let before = (slot.stage + TMA_SLOTS - 1) % TMA_SLOTS;
            // SAFETY: every lane releases for itself.
            unsafe {
                mbarrier::mbarrier_arrive_if(self.layout.work_ring.empty(before), read as u32);
            }
        }
    }

    /// The sequence of a tile of this head, whose entry of the list lies in the place `listed`.
    ///
    /// # Safety
    /// The tile is not done with as long as the sequence is asked.
    #[inline(always)]
    pub(in crate::kernels::forward) unsafe fn sequence(
        &self,
        head: u32,
        listed: u32,
    ) -> Sequence<'_, impl Fn() -> ListedTile> {
        // SAFETY: the caller's contract.
        sequence_of(self.p, head, move || unsafe {
            self.layout.read_listed(listed)
        })
    }

    /// The warp's first row of a tile, in the sequence.
    #[inline(always)]
    pub fn first_row<T: Tiles>(&self, work: WorkTile) -> u32 {
        let row = if T::FORGETS_PLACE {
            row_of_warp::<T>(self.idx, special::opaque(special::thread_idx_x()))
        } else {
            self.row
        };
        work.q_block * T::CONFIG.block_q + row
    }

    /// K may be overwritten, and Q if this was the tile's last block, block 0.
    #[inline(always)]
    pub(super) unsafe fn release<T: Tiles>(&self, k: &mut Ring, q: Ring, block: u32) {
        let last = (block == 0) as u32;
        let leads = if T::FORGETS_PLACE {
            (special::opaque(special::lane_idx()) == 0) as u32
        } else {
            self.leads
        };
        // SAFETY: the caller has waited for the last product with them.
        unsafe {
            if T::BLOCK_MASKS && spec::block_mask() {
                // All lanes have read which keys the stage is for.
                barrier::warp_sync();
            }
            mbarrier::mbarrier_arrive_if(self.layout.k_ring.empty(k.stage), leads);
            mbarrier::mbarrier_arrive_if(self.layout.q_ring.empty(q.stage), leads & last);
        }
        k.advance();
    }
}

// A consumer's masks: S ← −∞ where a query does not see a key.

impl Consumer<'_> {
    /// Under a block mask: the keys of a stage of K.
    #[inline(always)]
    pub unsafe fn keys<T: Tiles>(&self, stage: u32) -> Keys {
        if T::BLOCK_MASKS && spec::block_mask() {
            // SAFETY: the caller's contract: the stage is full.
            unsafe { self.layout.read_keys(stage) }
        } else {
            Keys::NONE
        }
    }

    /// The first key of a block.
    #[inline(always)]
    pub(super) fn first_key<T: Tiles>(&self, work: WorkTile, block: u32, keys: Keys) -> u32 {
        if T::BLOCK_MASKS && spec::block_mask() {
            keys.first
        } else {
            (work.first_block + block) * T::CONFIG.block_k
        }
    }

    /// All steps on a block's scores between their product and the softmax, which are the same after a misprediction. Returns the row terms that the scores lack.
    #[inline(always)]
    pub fn edit_scores<T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        slot: Ring,
        keys: Keys,
        unit: Option<f32>,
        s: &mut T::Scores,
    ) -> RowTerms {
        let terms = self.edit_by_expression::<T>(work, block, keys, unit, s);
        if T::BLOCK_MASKS && spec::block_mask() {
            self.mask_block_sparse::<T>(work, keys, s);
        } else {
            let band = if spec::lengths() {
                // SAFETY: the tile, which was announced last, before `slot`, is not done with.
                unsafe { self.sequence(work.head, place(slot, 1)) }.band()
            } else {
                // That of all tiles.
                self.band
            };
            self.mask_block::<T>(band, work, block, s);
        }
        terms
    }

    /// S ← −∞ where the mask hides the key, if it hides any of the block's from the warp's rows.
    #[inline(always)]
    fn mask_block<T: Tiles>(&self, band: Band, work: WorkTile, block: u32, s: &mut T::Scores) {
        let block_k = T::CONFIG.block_k;
        let first_key = (work.first_block + block) * block_k;
        let seen = |row| {
            let query = self.packing.query::<T>(row);
            (band.first_key(query), band.end_key(query))
        };
        self.mask_unseen::<T>(work, first_key, seen, s);
    }

    /// The same under a block mask.
    #[inline(always)]
    fn mask_block_sparse<T: Tiles>(&self, work: WorkTile, keys: Keys, s: &mut T::Scores) {
        let seen = |query| {
            if keys.is_full {
                (0, self.band.seqlen_k())
            } else {
                (self.band.first_key(query), self.band.end_key(query))
            }
        };
        self.mask_unseen::<T>(work, keys.first, seen, s);
    }

    /// S ← −∞ of keys from `first_key` on but for those that `seen` says of a row: the first one, and one past the last. Both ascend
    /// with the rows.
    #[inline(always)]
    fn mask_unseen<T: Tiles>(
        &self,
        work: WorkTile,
        first_key: u32,
        seen: impl Fn(u32) -> (u32, u32),
        s: &mut T::Scores,
    ) {
        let TileConfig {
            block_q, block_k, ..
        } = T::CONFIG;
        // Opaque: rows would stay in registers, and in wide tiles there are none to spare.
        let thread = special::opaque(special::thread_idx_x());
        let row = row_of_thread::<T>(thread);
        let first_row = work.q_block * block_q + row;
        // The first row sees the fewest keys to the right, the last row the fewest to the left.
        let right = first_key + block_k > seen(first_row).1;
        let left = seen(first_row + 15).0 > first_key;
        if !(right | left) {
            return;
        }
        let place = fragment::accumulator(thread % 32, 0);
        let own_key = first_key + place.col;
        let visible = [0, 8].map(|below| {
            let (begin, end) = seen(first_row + place.row + below);
            (begin.saturating_sub(own_key), end.saturating_sub(own_key))
        });
        s.for_each_hidden(visible, |x| *x = f32::NEG_INFINITY);
    }
}

// A consumer's scores, where an expression edits them.

/// Whether the special-function unit is the bottleneck: [`Tiles::TANH_BINDS`].
#[inline(always)]
pub fn tanh_binds<T: Tiles>() -> bool {
    T::TANH_BINDS && spec::score() && score::is_capped()
}

impl Consumer<'_> {
    /// The scores that follow are of the tile that was announced last, before `slot`, if they are its first ones.
    ///
    /// # Safety
    /// The tile is not done with.
    #[inline(always)]
    pub(super) unsafe fn begin_scores_of_tile<T: Tiles>(
        &self,
        work: WorkTile,
        slot: Ring,
        are_first: bool,
    ) {
        if !(T::EDITS_SCORES && spec::score() && are_first) {
            return;
        }
        let p = self.p;
        // SAFETY: the caller's contract.
        let sequence = unsafe { self.sequence(work.head, place(slot, 1)) };
        let (head, seqlens) = (sequence.head_idx(work.head), sequence.lengths());
        let thread = special::opaque(special::thread_idx_x());
        let in_tile = row_of_thread::<T>(thread) + fragment::accumulator(thread % 32, 0).row;
        let row = work.q_block * T::CONFIG.block_q + in_tile;
        let given = Given::new(&p.score, &p.scale);
        let tile = ScoreTile::new(sequence.idx(), head, p.shape.group_size, seqlens, row);
        given.begin(ScoreRows::Queries, tile);
    }

    /// S ← the expression of the block's scores without their rows' terms; also returns these terms, if there are any. In 8 bits `unit` is what a score of 1
    /// stands for.
    #[inline(always)]
    fn edit_by_expression<T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        keys: Keys,
        unit: Option<f32>,
        s: &mut T::Scores,
    ) -> RowTerms {
        const { assert!(!T::EDITS_SCORES || T::Scores::N <= score::MOST_FRAGMENTS) };
        if !(T::EDITS_SCORES && spec::score()) {
            return RowTerms::InScores;
        }
        if let Some(unit) = unit {
            for n in 0..T::Scores::N {
                for x in s.fragment_mut(0, n) {
                    *x *= unit;
                }
            }
        }
        if T::BLOCK_MASKS && spec::block_mask() && spec::edit_partial() && keys.is_full {
            // A mask alone, which leaves nothing to the rows.
            return T::ROW_TERMS;
        }
        let first_key = self.first_key::<T>(work, block, keys);
        let lane = special::opaque(special::lane_idx());
        let first_column = first_key + fragment::accumulator(lane, 0).col;
        match T::ROW_TERMS {
            RowTerms::InScores => score::score_block(first_column),
            RowTerms::Apart => score::score_block_apart(first_column),
        }
        edit_fragments(s, 0);
        T::ROW_TERMS
    }
}

// A consumer's weights, where some are dropped.

/// The weights of a block, packed.
type PackedWeights<T> = <<T as Tiles>::Scores as Accumulator>::Packed;

impl Consumer<'_> {
    /// Under a block mask, if weights are dropped: the keys of a stage of K.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    unsafe fn keys_of_weights<T: Tiles>(&self, stage: u32) -> Keys {
        if T::DROPS && spec::dropout() {
            // SAFETY: the caller's contract.
            unsafe { self.keys::<T>(stage) }
        } else {
            Keys::NONE
        }
    }

    /// P of a block of keys, packed, without the weights that are dropped.
    ///
    /// # Safety
    /// All lanes of the warp come here; the tile, which was announced last, before `slot`, is not done with.
    #[inline(always)]
    pub unsafe fn weights<E: Elements, T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        slot: Ring,
        keys: Keys,
        p: &T::Scores,
    ) -> PackedWeights<T> {
        let mut weights = E::pack(p);
        // SAFETY: the caller's contract.
        unsafe { self.drop_weights::<T>(work, block, slot, keys, &mut weights) };
        weights
    }

    /// Weights of a block of keys ← 0 where they are dropped.
    ///
    /// # Safety
    /// As [`Consumer::weights`].
    #[inline(always)]
    unsafe fn drop_weights<T: Tiles>(
        &self,
        work: WorkTile,
        block: u32,
        slot: Ring,
        keys: Keys,
        weights: &mut PackedWeights<T>,
    ) {
        if !(T::DROPS && spec::dropout()) {
            return;
        }
        let p = self.p;
        let first_key = self.first_key::<T>(work, block, keys);
        // SAFETY: the caller's contract.
        let head = unsafe { self.sequence(work.head, place(slot, 1)) }.head(work.head);
        // Opaque, as are rows of masks: registers would not hold what follows from it.
        let thread = special::opaque(special::thread_idx_x());
        let row = row_of_thread::<T>(thread);
        // SAFETY: the caller's contract; the parameters say where seed and offset lie.
        unsafe {
            let dropped = Dropped {
                p: &p.dropout,
                head: head_of(&p.dropout, special::opaque(head)),
                rows: ScoreRows::Queries,
                first_row: work.q_block * T::CONFIG.block_q + row,
                first_column: first_key,
            };
            dropped.clear_packed::<T::Scores>(weights);
        }
    }
}

// Ping-pong scheduling (FlashAttention-3): barriers let consumers begin their products one after the other, so that one's softmax
// runs beside the others' products.
//
// A barrier is complete when its consumer waits and the one before it has arrived. All consumers of a block take the same steps, so
// each waits as often as the one before it arrives; consumer 0 waits once more at the end, as the last consumer arrives once more at
// the beginning.
//
// Where the special-function unit binds, consumers take no turns: one that waited for another's products would leave it idle.

/// The ping-pong barrier of consumer `i` is `PING_PONG_BARRIER + i`.
const PING_PONG_BARRIER: u32 = 1;
/// Threads that a ping-pong barrier counts: those of the consumer that waits and of the one that arrives.
const TWO_CONSUMERS: u32 = 256;

/// Whether consumers begin their products one after the other.
#[inline(always)]
fn takes_turns<T: Tiles>() -> bool {
    T::PING_PONG && !tanh_binds::<T>()
}

impl Consumer<'_> {
    /// Begins the ping-pong: the last consumer lets consumer 0 pass.
    #[inline(always)]
    unsafe fn begin_ping_pong<T: Tiles>(&self) {
        if self.idx + 1 == T::CONSUMERS {
            // SAFETY: the last consumer's warps all come here, once; consumer 0 waits once more than it steps.
            unsafe { self.pass_ping_pong::<T>() };
        }
    }

    /// Waits until this consumer may begin its products.
    #[inline(always)]
    unsafe fn await_ping_pong<T: Tiles>(&self) {
        if takes_turns::<T>() {
            // SAFETY: this consumer's warps all come here, as often as the consumer before it arrives.
            unsafe { barrier::barrier_sync(PING_PONG_BARRIER + self.idx, TWO_CONSUMERS) };
        }
    }

    /// Lets the next consumer begin its products.
    #[inline(always)]
    unsafe fn pass_ping_pong<T: Tiles>(&self) {
        if takes_turns::<T>() {
            let next = if self.idx + 1 == T::CONSUMERS {
                0
            } else {
                self.idx + 1
            };
            // SAFETY: this consumer's warps all come here, as often as the next consumer waits.
            unsafe { barrier::barrier_arrive(PING_PONG_BARRIER + next, TWO_CONSUMERS) };
        }
    }

    /// Ends the ping-pong: consumer 0 waits for the last arrival at its barrier.
    #[inline(always)]
    unsafe fn end_ping_pong<T: Tiles>(&self) {
        if self.idx == 0 {
            // SAFETY: consumer 0's warps all come here, once; the last consumer has arrived for it.
            unsafe { self.await_ping_pong::<T>() };
        }
    }
}

// A consumer's time stamps: see `kernels/stamps.rs`.

impl Consumer<'_> {
    /// A profiled kernel records that the block's first tile begins.
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

    /// The same that a tile ends, and the next one begins.
    ///
    /// # Safety
    /// As [`Consumer::record_begin`].
    #[inline(always)]
    unsafe fn record_next<T: Tiles>(&self, ended: WorkTile, next: WorkTile) {
        // SAFETY: as above.
        unsafe {
            self.record_end::<T>(ended);
            self.record_begin::<T>(next);
        }
    }

    /// The same that a tile ends.
    ///
    /// # Safety
    /// As [`Consumer::record_begin`].
    #[inline(always)]
    pub(super) unsafe fn record_end<T: Tiles>(&self, ended: WorkTile) {
        if T::PROFILES {
            // SAFETY: as above.
            unsafe { self.record(ended).end() };
        }
    }

    /// Where: the first consumer's first thread writes.
    #[inline(always)]
    fn record(&self, work: WorkTile) -> Record {
        // Opaque: no register need hold it from tile to tile.
        let writes = special::opaque(special::thread_idx_x()) == PRODUCER_THREADS;
        let tiles = self.p.schedule.tiles;
        Record::new(self.p.stamps, tiles, work.head, work.q_block, writes)
    }
}
