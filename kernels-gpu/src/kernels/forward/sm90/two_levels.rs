//! A consumer's loop where sums over the keys have two levels.
//!
//! Tensor cores sum products of 8-bit numbers with 14 bits (docs/src/fp8.md). A sum over all keys would lose what is 2¹³ times smaller than itself, and every cut makes
//! it smaller: O would be 2 % too small after 2 thousand keys whose values have one sign, and 18 % after 16 thousand. So a block of keys has a sum of its own, which
//! begins at 0, and is added to O in f32.
//!
//! That takes registers. So a consumer's steps follow each other, and P V has those of S, which P has left: a piece of O's columns at a time, where it has not
//! enough. While one consumer computes the softmax, the tensor cores have the other's products.
//!
//! ```text
//! S = Q K_iᵀ                               where scales are of blocks, times that of K_i
//! m ← the rows' maxima;  O ← diag(α) O     where a score has outgrown m
//! P ← exp(S − m);  l ← l + rowsum P
//! O ← O + P V_i                            of two levels, piece by piece; P V_i times the scale of V_i
//! ```

use super::Tiles;
use super::consumer::{Consumer, Finished};
use super::descale::KeyScales;
use super::elements::Elements;
use super::layout::{WorkTile, place};
use crate::ptx::mbarrier;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::ring::Ring;
use crate::tile::softmax::{OnlineSoftmax, scale_rows};
use crate::tile::warpgroup::{BoxedTile, STEP_BYTES, WarpgroupTile, begin_gemm_rs};

/// The tiles from this work on, if there is one.
///
/// # Safety
/// As the consumers.
#[inline(always)]
pub unsafe fn attend<E: Elements, T: Tiles, D: KeyScales>(
    c: &Consumer,
    mut work: WorkTile,
    mut slot: Ring,
) {
    let (layout, descales) = (c.layout, &c.p.descales);
    let mut q = Ring::start(T::Q_STAGES);
    let (mut k, mut v) = (Ring::start(T::KV_STAGES), Ring::start(T::KV_STAGES));
    let mut o_place = Ring::start(1);
    let fresh = OnlineSoftmax::new(c.p.scale.scale_log2);
    // SAFETY: stages are read when they are full, and released when the products that read them have been waited for;
    // all four warps take the same way.
    unsafe {
        while work.blocks != 0 {
            c.record_begin::<T>(work);
            c.release_work(slot, true);
            let (scales, mut softmax) = D::of_tile::<T>(c, fresh, work, slot);
            c.begin_scores_of_tile::<T>(work, slot, true);
            let mut o = T::Output::zero();
            mbarrier::mbarrier_wait(layout.q_ring.full(q.stage), q.parity);
            let mut block = work.blocks;
            while block > 0 {
                block -= 1;
                mbarrier::mbarrier_wait(layout.k_ring.full(k.stage), k.parity);
                let mut s = T::Scores::undefined();
                // S = Q Kᵀ
                let begun_s = c.begin_own_scores::<E, T>(&mut s, q, k);
                // Read while the product runs.
                let of_stage = || c.keys::<T>(k.stage);
                let of_keys = scales.of_block::<T>(c, descales.k, work, block, of_stage);
                begun_s.wait::<0>();
                let keys = c.keys::<T>(k.stage);
                c.release::<T>(&mut k, q, block);
                let unit = D::scale_scores::<T>(&softmax, of_keys, &mut s);
                let terms = c.edit_scores::<T>(work, block, slot, keys, unit, &mut s);
                if let Some(alpha) = softmax.grow(&s, terms) {
                    scale_rows(&mut o, alpha);
                }
                // Read early: else ptxas lets the sums wait for it, until the next piece wants registers, too.
                let of_values = scales.of_block::<T>(c, descales.v, work, block, || keys);
                let sums = softmax.exponentials(&mut s, terms);
                softmax.add::<T::Scores>(sums);
                let p = c.weights::<E, T>(work, block, slot, keys, &s);
                mbarrier::mbarrier_wait(layout.v_ring.full(v.stage), v.parity);
                for idx in 0..T::VALUE_PIECES {
                    let values = layout.v::<T>(v.stage);
                    add_product::<E, T, D>(&mut o, idx, &p, values, of_values);
                }
                mbarrier::mbarrier_arrive_if(layout.v_ring.empty(v.stage), c.leads);
                v.advance();
            }
            q.advance();
            let ended = Finished { work, softmax };
            work = c.next_work::<T>(&mut slot);
            c.epilogue::<E, T>(&ended, place(slot, 2), &mut o_place, &mut o);
            c.record_end::<T>(ended.work);
        }
    }
}

/// The `idx`-th piece of O's columns += that of P V, of P packed and a stage of V, transposed: a row for each column. Where scales are of blocks, times that of
/// these values.
///
/// # Safety
/// As [`begin_gemm_rs`].
#[inline(always)]
unsafe fn add_product<E: Elements, T: Tiles, D: KeyScales>(
    o: &mut T::Output,
    idx: usize,
    p: &impl Packed,
    v: BoxedTile,
    of_values: f32,
) {
    let steps = const { T::CONFIG.block_k * T::ELEMENT_BYTES / STEP_BYTES };
    let v = E::values(v.from_row((idx * T::Piece::N * 8) as u32));
    let mut piece = T::Piece::undefined();
    // SAFETY: the caller's contract.
    unsafe { begin_gemm_rs::<E, _>(&mut piece, p, v, steps, 0).wait::<0>() };
    for n in 0..T::Piece::N {
        let (sums, x) = (
            o.fragment_mut(0, idx * T::Piece::N + n),
            piece.fragment(0, n),
        );
        for at in 0..x.len() {
            sums[at] = D::add(sums[at], x[at], of_values);
        }
    }
}
