//! A consumer's scales, where Q, K and V have 8 bits.
//!
//! A scale for all keys of a head goes into the softmax's scale and into the factor of O. Scales of blocks of keys come in with each block: S of the block is
//! multiplied by that of its keys, and its P V by that of its values, before it is added to O.

use super::Tiles;
use super::consumer::Consumer;
use super::layout::{Keys, WorkTile, place};
use crate::params::SCALE_ROWS;
use crate::ptx::math::fma;
use crate::ptx::{global, spec};
use crate::tile::register::Accumulator;
use crate::tile::ring::Ring;
use crate::tile::softmax::OnlineSoftmax;

/// Whether scales are of blocks.
#[inline(always)]
pub fn are_of_blocks<T: Tiles>() -> bool {
    T::SCALE_BLOCKS && spec::scale_blocks()
}

/// The scales of a tile's keys and values.
pub trait KeyScales: Copy {
    /// Those of the tile that was announced last, before `slot`, and its softmax, which has seen no score yet. `fresh` is that of any tile where there are no
    /// scales.
    ///
    /// # Safety
    /// The tile is not done with.
    unsafe fn of_tile<T: Tiles>(
        c: &Consumer,
        fresh: OnlineSoftmax,
        work: WorkTile,
        slot: Ring,
    ) -> (Self, OnlineSoftmax);

    /// That of a block of keys, or of its values, among `scales`; of no meaning where a head has one. `keys` says under a block mask which keys these are.
    ///
    /// # Safety
    /// The scales lie there.
    unsafe fn of_block<T: Tiles>(
        self,
        c: &Consumer,
        scales: u64,
        work: WorkTile,
        block: u32,
        keys: impl FnOnce() -> Keys,
    ) -> f32;

    /// S of a block times its scale; returns what a score then stands for, if it is to be multiplied by that where an expression edits it.
    fn scale_scores<T: Tiles>(
        softmax: &OnlineSoftmax,
        of_keys: f32,
        s: &mut T::Scores,
    ) -> Option<f32>;

    /// An element of O, and that of a block's P V.
    fn add(sum: f32, x: f32, of_values: f32) -> f32;
}

/// All keys of a head have one.
#[derive(Clone, Copy)]
pub struct OfHead;

impl KeyScales for OfHead {
    #[inline(always)]
    unsafe fn of_tile<T: Tiles>(
        c: &Consumer,
        fresh: OnlineSoftmax,
        work: WorkTile,
        slot: Ring,
    ) -> (Self, OnlineSoftmax) {
        // SAFETY: the caller's contract.
        (OfHead, unsafe { c.softmax_of_tile::<T>(fresh, work, slot) })
    }

    #[inline(always)]
    unsafe fn of_block<T: Tiles>(
        self,
        _: &Consumer,
        _: u64,
        _: WorkTile,
        _: u32,
        _: impl FnOnce() -> Keys,
    ) -> f32 {
        1.0
    }

    #[inline(always)]
    fn scale_scores<T: Tiles>(softmax: &OnlineSoftmax, _: f32, _: &mut T::Scores) -> Option<f32> {
        softmax.unit()
    }

    #[inline(always)]
    fn add(sum: f32, x: f32, _: f32) -> f32 {
        sum + x
    }
}

/// Each block of [`SCALE_ROWS`] keys has one.
#[derive(Clone, Copy)]
pub struct OfBlocks {
    /// That of the sequence's first block.
    first: u32,
}

impl KeyScales for OfBlocks {
    /// The unit of the softmax has the scale of the consumer's queries, which are of one block.
    #[inline(always)]
    unsafe fn of_tile<T: Tiles>(
        c: &Consumer,
        _: OnlineSoftmax,
        work: WorkTile,
        slot: Ring,
    ) -> (Self, OnlineSoftmax) {
        let descales = &c.p.descales;
        let scale_log2 = c.p.scale.scale_log2;
        // SAFETY: the caller's contract; the parameters say where the scales lie.
        unsafe {
            let [sequence, head] = c.place_of_scales(work, slot);
            let of_q = descales.strides_q;
            let q = of_q.first(sequence, head) + of_q.block(c.first_row::<T>(work));
            let q = global::ld_global_f32(descales.q + u64::from(q) * 4);
            let softmax = match T::EDITS_SCORES && spec::score() {
                true => OnlineSoftmax::of_e4m3(scale_log2, q, 1.0, T::SPECULATES),
                false => OnlineSoftmax::of_e4m3_exponents(scale_log2 * q, 1.0),
            };
            let first = descales.strides_k.first(sequence, head);
            (OfBlocks { first }, softmax)
        }
    }

    #[inline(always)]
    unsafe fn of_block<T: Tiles>(
        self,
        c: &Consumer,
        scales: u64,
        work: WorkTile,
        block: u32,
        keys: impl FnOnce() -> Keys,
    ) -> f32 {
        const { assert!(!T::SCALE_BLOCKS || SCALE_ROWS.is_multiple_of(T::CONFIG.block_k)) };
        let first_key = c.first_key::<T>(work, block, keys());
        let idx = self.first + c.p.descales.strides_k.block(first_key);
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_f32(scales + u64::from(idx) * 4) }
    }

    #[inline(always)]
    fn scale_scores<T: Tiles>(
        softmax: &OnlineSoftmax,
        of_keys: f32,
        s: &mut T::Scores,
    ) -> Option<f32> {
        let unit = softmax.unit()? * of_keys;
        for n in 0..T::Scores::N {
            for x in s.fragment_mut(0, n) {
                *x *= unit;
            }
        }
        None
    }

    #[inline(always)]
    fn add(sum: f32, x: f32, of_values: f32) -> f32 {
        fma(x, of_values, sum)
    }
}

impl Consumer<'_> {
    /// The softmax of a tile that has seen no score yet: of the tile that was announced last, before `slot`. `fresh` is that of any tile where there are no
    /// scales.
    ///
    /// # Safety
    /// The tile is not done with.
    #[inline(always)]
    pub(super) unsafe fn softmax_of_tile<T: Tiles>(
        &self,
        fresh: OnlineSoftmax,
        work: WorkTile,
        slot: Ring,
    ) -> OnlineSoftmax {
        if !T::TRANSPOSES {
            return fresh;
        }
        let descales = &self.p.descales;
        // SAFETY: the caller's contract.
        let [sequence, head] = unsafe { self.place_of_scales(work, slot) };
        let idx = descales.strides_k.first(sequence, head);
        let [q, k, v] = [descales.q, descales.k, descales.v].map(|scales| match scales {
            0 => 1.0,
            // SAFETY: the parameters say where the scales lie.
            _ => unsafe { global::ld_global_f32(scales + u64::from(idx) * 4) },
        });
        let unit = q * k;
        let scale_log2 = if T::EDITS_SCORES && spec::score() {
            // Scores are what they stand for when an expression has edited them.
            self.p.scale.scale_log2
        } else {
            self.p.scale.scale_log2 * unit
        };
        OnlineSoftmax::of_e4m3(scale_log2, unit, v, T::SPECULATES)
    }

    /// The sequence and the head of keys of the tile that was announced last, before `slot`.
    ///
    /// # Safety
    /// The tile is not done with.
    #[inline(always)]
    unsafe fn place_of_scales(&self, work: WorkTile, slot: Ring) -> [u32; 2] {
        let pack = self.packing.pack(self.p, work.head);
        let sequence = if spec::lengths() {
            // SAFETY: the caller's contract.
            unsafe { self.sequence(work.head, place(slot, 1)) }.idx()
        } else {
            pack.batch_idx
        };
        [sequence, pack.kv_head_idx]
    }
}
