//! Multi-head latent attention as it decodes: values are the first columns of the keys (MLA, DeepSeek-V2, Liu et al. 2024, section
//! 2.1; "absorbed": 128 query heads over one row of 576 columns for each key, of which the first 512 are its value).
//!
//! A block of keys is read once and used twice. O of 64 rows has 64 × 512 numbers, as many registers as two warpgroups have for it. So
//! both consumers have the same rows, and each has half of O's columns. A block of keys has an owner, the two consumers alternately from the
//! tile's last block on; a stage of K is always the same consumer's. The owner computes P of the block, and both multiply it:
//!
//! ```text
//! owner of block i                              the other consumer
//! begin S = Q K_iᵀ                              .
//! begin O += P_{i−1} V_{i−1}, its columns       (it owned block i−1)
//! wait for S;  mask it
//! m, P from S                                   .
//! wait for O;  release V_{i−1}, its columns     .
//! P and m to shared memory                      begin S of its next block
//! O += P V_i, its columns                       O += P V_i, its columns
//! release V_i, its columns                      m, P of its next block; release V_i, its columns
//! ```
//!
//! So one consumer's softmax overlaps the other's products (FlashMLA's "seesaw", Li et al. 2025). References m are passed from block to block with
//! P: the consumer that receives P rescales its own O and l if m has grown, so both always use the same m. Each has the l of the blocks that it
//! owned; at a tile's end they tell each other.
//!
//! There is one buffer for P. The consumer that writes the next P has read this one, and it waits for that product before it writes.
//!
//! A block of keys comes and goes in three pieces: the columns of either consumer's values, and those that are no values. Each is released
//! by who reads it last, so the next block's first pieces arrive while this one's last are multiplied.

mod epilogue;
mod producer;

use super::sm90::Tiles;
use super::sm90::consumer::Consumer;
use super::sm90::elements::Elements;
use super::sm90::layout::{Keys, Layout, WorkTile};
use super::sm90::producer::Producer;
use super::sm90::scheduler::Claims;
use crate::attention::score::RowTerms;
use crate::config::{self, MLA_COLUMNS, MLA_EXCHANGE, TileConfig};
use crate::params::{BOX_COLUMNS, ForwardMap};
use crate::ptx::{barrier, mbarrier, shared, special, tma};
use crate::spec::Spec;
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::ring::{Barriers, Ring};
use crate::tile::softmax::{OnlineSoftmax, RowValues, scale_rows};
use crate::tile::warpgroup::{
    self, BoxedTile, WARPGROUP_ROWS, begin_gemm_rs, begin_gemm_ss, begin_gemm_ss_of_parts,
};
use crate::variants::{Kind, TileShape};

/// The tiles of head_dim `D`: flash3's kernel ([`super::sm90::forward`]) with the consumers and the loads of this module.
pub struct MlaTiles<const D: u32>;

impl Tiles for MlaTiles<576> {
    const HEAD_DIM: u32 = 576;
    const SHAPE: TileShape = TileShape::Compact;
    const CONFIG: TileConfig = config::tma_forward_mla(Self::HEAD_DIM);
    const KEY_PIECES: u32 = 3;
    // V lies in the stages of K; in O's place is what the consumers tell each other.
    const V_BYTES: u32 = 0;
    const O_BYTES: u32 = EXCHANGE_BYTES;
    const VALUES: ForwardMap = ForwardMap::K;
    const CAN: Spec = Kind::TmaForwardMla.capabilities(Self::SHAPE, false);
    type Scores = RegisterTile<1, { Self::CONFIG.block_k as usize / 8 }>;
    type Output = RegisterTile<1, { MLA_COLUMNS as usize / 8 }>;
    type Piece = Self::Output;

    #[inline(always)]
    unsafe fn load_tile(p: &mut Producer, work: WorkTile, sees_none: bool, claims: Claims) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { p.load_mla::<Self>(work, sees_none, claims) }
    }

    #[inline(always)]
    unsafe fn load_values(p: &mut Producer, work: WorkTile, sees_none: bool, kv_head_idx: u32) {
        // SAFETY: the caller's contract.
        unsafe { p.load_last_pieces::<Self>(work, sees_none, kv_head_idx) }
    }

    #[inline(always)]
    unsafe fn attend<E: Elements>(c: &Consumer, work: WorkTile, slot: Ring) {
        // SAFETY: the caller's contract.
        unsafe { attend::<E, Self>(c, work, slot) }
    }
}

/// Parts of 64 columns of a consumer's values.
const VALUE_PARTS: u32 = MLA_COLUMNS / BOX_COLUMNS;

/// The pieces of a block of keys, in the order in which its owner multiplies them and they are loaded: from which part of 64 columns on, and
/// how many. First the columns of its own values, which are free first; then those that are no values.
#[inline(always)]
pub(super) fn pieces<T: Tiles>(owner: u32) -> [(u32, u32); 3] {
    let of_values = |consumer| (consumer * VALUE_PARTS, VALUE_PARTS);
    let others = T::HEAD_DIM / BOX_COLUMNS - 2 * VALUE_PARTS;
    [
        of_values(owner),
        (2 * VALUE_PARTS, others),
        of_values(1 - owner),
    ]
}

/// A consumer's part of a tile.
struct Tile<T: Tiles> {
    work: WorkTile,
    /// Behind the tile's slot.
    slot: Ring,
    /// The parity with which the consumer's next block of keys is full.
    keys_parity: u32,
    /// The parity with which the other's next P is full.
    other_parity: u32,
    softmax: OnlineSoftmax,
    s: T::Scores,
    o: T::Output,
    /// 0 until O has been begun.
    accumulate: u32,
}

/// The tiles from this work on.
///
/// # Safety
/// Both consumers come here; the barriers have been made.
#[inline(always)]
unsafe fn attend<E: Elements, T: Tiles>(c: &Consumer, work: WorkTile, slot: Ring) {
    // Each consumer has code of its own: places that depend on which one it is are then known to ptxas, which would else hold them all
    // in registers.
    // SAFETY: the caller's contract.
    unsafe {
        if c.idx == 0 {
            attend_as::<E, T, 0>(c, work, slot);
        } else {
            attend_as::<E, T, 1>(c, work, slot);
        }
    }
}

/// The tiles from this work on, of consumer `I`.
#[inline(always)]
unsafe fn attend_as<E: Elements, T: Tiles, const I: u32>(c: &Consumer, work: WorkTile, slot: Ring) {
    let fresh = OnlineSoftmax::new(c.p.scale.scale_log2);
    let mut q = Ring::start(T::Q_STAGES);
    let mut t = Tile::<T> {
        work,
        slot,
        keys_parity: 0,
        other_parity: 0,
        softmax: fresh,
        s: T::Scores::zero(),
        o: T::Output::zero(),
        accumulate: 0,
    };
    // SAFETY: stages are read when they are full, and released when the products that read them have been waited for; all four warps
    // take the same way.
    unsafe {
        while t.work.blocks != 0 {
            let n = t.work.blocks;
            mbarrier::mbarrier_wait(c.layout.q_ring.full(q.stage), q.parity);
            let mut idx = I;
            if I == 0 {
                c.own_first::<E, T, I>(&mut t);
                idx += 2;
            }
            while idx < n {
                c.own::<E, T, I>(&mut t, idx);
                idx += 2;
            }
            mbarrier::mbarrier_arrive_if(c.layout.q_ring.empty(q.stage), c.leads);
            q.advance();
            if idx == n {
                c.help_last::<E, T, I>(&mut t);
            }
            c.mla_epilogue::<E, T, I>(&mut t);
            t.softmax = fresh;
            t.accumulate = 0;
            c.release_work(t.slot, true);
            t.work = c.next_work::<T>(&mut t.slot);
        }
    }
}

impl Consumer<'_> {
    /// A block of keys: S and P, and both blocks' products with the consumer's columns of V: the one before, whose P the other has computed,
    /// and this one.
    #[inline(always)]
    unsafe fn own<E: Elements, T: Tiles, const I: u32>(&self, t: &mut Tile<T>, idx: u32) {
        // SAFETY: as `attend`.
        unsafe {
            let begun_s = self.begin_scores::<E, T, I>(&mut t.s, &mut t.keys_parity);
            self.await_other::<T, I>(&mut t.other_parity, &mut t.softmax, &mut t.o);
            let v = self.values::<T, I>(1 - I);
            // O += P V
            let p = self.layout.p();
            let begun_o = begin_gemm_ss::<E, _>(&mut t.o, p, v, steps::<T>(), t.accumulate);
            begun_s.wait::<1>();
            self.release_others::<I>();
            self.edit_own::<T>(t.work, t.slot, idx, &mut t.s);
            let alpha = t.softmax.grow(&t.s, RowTerms::InScores);
            let sums = t.softmax.exponentials(&mut t.s, RowTerms::InScores);
            t.softmax.add::<T::Scores>(sums);
            begun_o.wait::<0>();
            self.release_values::<I>(1 - I);
            if let Some(alpha) = alpha {
                scale_rows(&mut t.o, alpha);
            }
            t.accumulate = 1;
            self.multiply_own::<E, T, I>(t);
        }
    }

    /// The same of a tile's first block.
    #[inline(always)]
    unsafe fn own_first<E: Elements, T: Tiles, const I: u32>(&self, t: &mut Tile<T>) {
        // SAFETY: as `attend`.
        unsafe {
            self.begin_scores::<E, T, I>(&mut t.s, &mut t.keys_parity)
                .wait::<0>();
            self.release_others::<I>();
            self.edit_own::<T>(t.work, t.slot, 0, &mut t.s);
            t.softmax.begin(&mut t.s, RowTerms::InScores);
            self.multiply_own::<E, T, I>(t);
        }
    }

    /// The product of a tile's last block with this consumer's columns of V, where the other has computed P.
    #[inline(always)]
    unsafe fn help_last<E: Elements, T: Tiles, const I: u32>(&self, t: &mut Tile<T>) {
        // SAFETY: as `attend`.
        unsafe {
            self.await_other::<T, I>(&mut t.other_parity, &mut t.softmax, &mut t.o);
            let v = self.values::<T, I>(1 - I);
            // O += P V
            begin_gemm_ss::<E, _>(&mut t.o, self.layout.p(), v, steps::<T>(), t.accumulate)
                .wait::<0>();
            self.release_values::<I>(1 - I);
        }
    }

    /// Waits for P of the other consumer's block; O and l then speak of the m that came with it.
    #[inline(always)]
    unsafe fn await_other<T: Tiles, const I: u32>(
        &self,
        parity: &mut u32,
        softmax: &mut OnlineSoftmax,
        o: &mut T::Output,
    ) {
        // SAFETY: as `attend`.
        unsafe {
            mbarrier::mbarrier_wait(self.layout.p_full(1 - I), *parity);
            *parity ^= 1;
            if let Some(alpha) = softmax.follow::<T::Scores>(self.read_m()) {
                scale_rows(o, alpha);
            }
        }
    }

    /// S = Q Kᵀ, piece by piece as they arrive.
    #[inline(always)]
    unsafe fn begin_scores<'s, E: Elements, T: Tiles, const I: u32>(
        &self,
        s: &'s mut T::Scores,
        keys_parity: &mut u32,
    ) -> warpgroup::Pending<'s, T::Scores> {
        let (layout, parity) = (self.layout, *keys_parity);
        *keys_parity ^= 1;
        let await_full = |ring: Barriers| {
            // SAFETY: the barriers have been made.
            unsafe { mbarrier::mbarrier_wait(ring.full(I), parity) }
        };
        // SAFETY: as `attend`.
        unsafe {
            // S = Q Kᵀ
            begin_gemm_ss_of_parts::<E, _, 3>(
                s,
                layout.q::<T>(0, 0),
                layout.k::<T>(I).t(),
                pieces::<T>(I),
                |piece| match piece {
                    0 => await_full(layout.value_ring(I)),
                    1 => await_full(layout.k_ring),
                    _ => await_full(layout.value_ring(1 - I)),
                },
            )
        }
    }

    /// P and m to the other consumer; O += P V.
    #[inline(always)]
    unsafe fn multiply_own<E: Elements, T: Tiles, const I: u32>(&self, t: &mut Tile<T>) {
        let weights = E::pack(&t.s);
        // SAFETY: as `attend`. The other consumer reads P when all four warps have written it, and writes its own when it has read it.
        unsafe {
            warpgroup::store_matrices::<T::Scores>(self.layout.p(), self.row, &weights);
            self.write_rows(|row| self.layout.m(row), t.softmax.references());
            tma::fence_proxy_async();
            barrier::warp_sync();
            mbarrier::mbarrier_arrive_if(self.layout.p_full(I), self.leads);
            let v = self.values::<T, I>(I);
            // O += P V
            begin_gemm_rs::<E, _>(&mut t.o, &weights, v, steps::<T>(), t.accumulate).wait::<0>();
            self.release_values::<I>(I);
        }
        t.accumulate = 1;
    }

    /// This consumer's columns of V, of the block of keys of an owner.
    #[inline(always)]
    const fn values<T: Tiles, const I: u32>(&self, owner: u32) -> BoxedTile {
        self.layout.k::<T>(owner).from_part(I * VALUE_PARTS)
    }

    /// This consumer's columns of V may be overwritten: who has computed S of the block has done so before P.
    #[inline(always)]
    unsafe fn release_values<const I: u32>(&self, owner: u32) {
        let ring = self.layout.value_ring(I);
        // SAFETY: the caller has waited for the product that reads them.
        unsafe { mbarrier::mbarrier_arrive_if(ring.empty(owner), self.leads) };
    }

    /// The columns of the consumer's block that are no values may be overwritten.
    #[inline(always)]
    unsafe fn release_others<const I: u32>(&self) {
        // SAFETY: the caller has waited for S.
        unsafe { mbarrier::mbarrier_arrive_if(self.layout.k_ring.empty(I), self.leads) };
    }

    /// S ← −∞ where a query does not see a key of the tile's block `idx`, counted from the last one down.
    #[inline(always)]
    fn edit_own<T: Tiles>(&self, work: WorkTile, slot: Ring, idx: u32, s: &mut T::Scores) {
        self.edit_scores::<T>(work, work.blocks - 1 - idx, slot, Keys::NONE, None, s);
    }
}

/// Steps of 16 keys of a block.
#[inline(always)]
const fn steps<T: Tiles>() -> u32 {
    T::CONFIG.block_k / 16
}

// What the consumers tell each other by shared memory: P, m and l.

/// Bytes for it.
const EXCHANGE_BYTES: u32 = MLA_EXCHANGE[0] + MLA_EXCHANGE[1] + MLA_EXCHANGE[2];

impl Layout {
    /// The place of P.
    #[inline(always)]
    pub(super) const fn p(self) -> BoxedTile {
        BoxedTile {
            base: self.o,
            rows: WARPGROUP_ROWS,
        }
    }

    /// The barrier that says that P and m of an owner's next block are there. Each owner has one: with one for both, a warp could pass
    /// before those beside it have said so of the block before.
    #[inline(always)]
    const fn p_full(self, owner: u32) -> u32 {
        self.o_ring.full(owner)
    }

    /// Where m of a row lies.
    #[inline(always)]
    pub(super) const fn m(self, row: u32) -> u32 {
        self.o + MLA_EXCHANGE[0] + row * 4
    }

    /// Where a consumer's l of a row lies.
    #[inline(always)]
    pub(super) const fn l(self, consumer: u32, row: u32) -> u32 {
        self.m(WARPGROUP_ROWS) + (consumer * WARPGROUP_ROWS + row) * 4
    }
}

impl Consumer<'_> {
    /// Writes a number for each of the warp's rows to shared memory.
    #[inline(always)]
    pub(super) unsafe fn write_rows(&self, address: impl Fn(u32) -> u32, values: RowValues) {
        let lane = special::lane_idx();
        if lane.is_multiple_of(4) {
            for (half, x) in values[0].into_iter().enumerate() {
                let row = self.row + lane / 4 + half as u32 * 8;
                // SAFETY: the rows' numbers are nobody else's now.
                unsafe { shared::st_shared_f32(address(row), x) };
            }
        }
    }

    /// Reads a number for each of the warp's rows.
    #[inline(always)]
    pub(super) unsafe fn read_rows(&self, address: impl Fn(u32) -> u32) -> RowValues {
        let mut values = [[0.0; 2]; 2];
        for (half, x) in values[0].iter_mut().enumerate() {
            let row = self.row + special::lane_idx() / 4 + half as u32 * 8;
            // SAFETY: the rows' numbers have been written.
            *x = unsafe { shared::ld_shared_f32(address(row)) };
        }
        values
    }

    /// The rows' references, which have come with P.
    #[inline(always)]
    unsafe fn read_m(&self) -> RowValues {
        // SAFETY: P has come.
        unsafe { self.read_rows(|row| self.layout.m(row)) }
    }
}
