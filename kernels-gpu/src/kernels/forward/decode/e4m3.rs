//! K and V in 8 bits, `e4m3`, each with a scale for its sequence, page or block of keys and its head.
//!
//! Elements become `f16` on their way to the tensor cores, which is exact. So does Q, whose rows are multiplied by powers of 2 such
//! that `f16` has room for them. Q in 8 bits needs no powers of 2: its rows' scales are multiplied onto their scores. A key's scale
//! is multiplied onto its scores. A value's is multiplied onto its probabilities, in units of the greatest scale so far, so that
//! `f16` has room for these, too; where the unit grows, O is multiplied like where m grows.
//!
//! A register that `ldmatrix` gives holds four elements where it would hold two. Of K these are four columns of one key: Q is read with its
//! columns in the same order. Of V, transposed, they are two columns of two keys: of a pair of fragments of O, one has the even columns, the
//! other the odd ones.

use super::cache::{Cache, Stage};
use super::scheduler::{PackedRow, Tile};
use super::{MAX_STEPS, ROWS, Tiles};
use crate::config;
use crate::params::ForwardParams;
use crate::ptx::convert::{cvt_f16x2_e4m3x2, prmt};
use crate::ptx::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};
use crate::ptx::math::{max, rcp_approx};
use crate::ptx::{cp_async, global, shared, spec, special};
use crate::tile::element::{Element, F16};
use crate::tile::fragment::{self, columns_then_rows, rows_then_columns};
use crate::tile::global::GlobalRows;
use crate::tile::matmul::{LeftOperand, Registers};
use crate::tile::register::Accumulator;
use crate::tile::shared::LaneRows;
use crate::tile::softmax::quad_max;
use core::marker::PhantomData;

/// K and V in `e4m3`, for queries of type `E`, or in `e4m3`, too.
pub struct E4m3<E> {
    q: [[u32; 4]; MAX_STEPS],
    /// The factors of the scores of the lane's two rows.
    unscale: [f32; 2],
    /// The factor of O: the greatest scale of V so far, or the least positive number.
    unit: f32,
    element: PhantomData<E>,
}

/// The exponent, without the bias, of the greatest element of a row of Q in `f16`: products with K fit an f32 however many there are, and
/// elements down to 2⁻²⁸ of the greatest keep all their bits.
const Q_EXPONENT: u32 = 14;

/// The power of 2 by which a row's greatest element gets the exponent [`Q_EXPONENT`], and its inverse; both are normal numbers.
#[inline(always)]
fn scale_of_row(most: f32) -> [f32; 2] {
    let exponent = most.to_bits() >> 23 & 0xff;
    let least = Q_EXPONENT + 1;
    let exponent = if exponent > least { exponent } else { least };
    let scale = 127 + Q_EXPONENT + 127 - exponent;
    [scale, 254 - scale].map(|exponent| f32::from_bits(exponent << 23))
}

impl<E: Element> Cache for E4m3<E> {
    const STAGES: u32 = config::DECODE_E4M3_STAGES;
    const ELEMENT_BYTES: u32 = 1;
    const SCALES_BYTES: u32 = 2 * ROWS * 4;
    const INTERLEAVES: bool = true;

    #[inline(always)]
    fn wait_for_q() {
        cp_async::cp_async_wait_group::<{ config::DECODE_E4M3_STAGES - 1 }>();
    }

    #[inline(always)]
    fn wait_for_step() {
        cp_async::cp_async_wait_group::<{ config::DECODE_E4M3_STAGES - 2 }>();
    }

    #[inline(always)]
    unsafe fn begin<T: Tiles>(_: &ForwardParams, _: Tile, _: Stage) {}

    #[inline(always)]
    unsafe fn new<T: Tiles>(p: &ForwardParams, tile: Tile, _: Stage) -> Self {
        // SAFETY: the caller's contract.
        let [upper, lower] = unsafe {
            [0, 8].map(|row| match spec::q_e4m3() {
                true => row_of_q_e4m3::<T>(p, tile, row),
                false => row_of_q::<E, T>(p, tile, row),
            })
        };
        let mut q = [[0; 4]; MAX_STEPS];
        for (k, q) in q.iter_mut().enumerate().take(T::HEAD_DIM as usize / 16) {
            let ([a, c], [b, d]) = (upper.0[k], lower.0[k]);
            *q = [a, b, c, d];
        }
        E4m3 {
            q,
            unscale: [upper.1, lower.1],
            unit: f32::MIN_POSITIVE,
            element: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn scores<T: Tiles>(&self, stage: Stage) -> T::Scores {
        let mut s = T::Scores::zero();
        let place = columns_then_rows(special::lane_idx());
        let rows = LaneRows::new(stage.k, place.row, place.col);
        for pair in 0..T::HEAD_DIM as usize / 32 {
            // SAFETY: the caller's contract: keys 0 .. 8 with two times 16 columns, then keys 8 .. 16.
            unsafe {
                let keys = ldmatrix_x4(rows.address(0, pair as u32));
                let keys = keys.map(|x| [cvt_f16x2_e4m3x2(x), cvt_f16x2_e4m3x2(x >> 16)]);
                for n in 0..2 {
                    F16::mma(s.fragment_mut(0, n), self.q[2 * pair], keys[2 * n]);
                    F16::mma(s.fragment_mut(0, n), self.q[2 * pair + 1], keys[2 * n + 1]);
                }
            }
        }
        for n in 0..T::Scores::N {
            // SAFETY: the caller's contract.
            let scales = unsafe { scales_of_columns(stage.scales, n) };
            for (idx, s) in s.fragment_mut(0, n).iter_mut().enumerate() {
                *s *= scales[idx % 2] * self.unscale[idx / 2];
            }
        }
        s
    }

    #[inline(always)]
    unsafe fn add<T: Tiles>(&mut self, o: &mut T::Output, mut p: T::Scores, stage: Stage) {
        // SAFETY: the caller's contract.
        let scales = [0, 1].map(|n| unsafe { scales_of_columns(stage.scales + ROWS * 4, n) });
        let of_lane = scales
            .iter()
            .flatten()
            .fold(0.0, |most, scale| max(most, scale.abs()));
        // SAFETY: warp-collective, as promised. All lanes get the same: together four have all of a chunk's scales.
        let most = unsafe { quad_max(of_lane) };
        if most > self.unit {
            let factor = self.unit / most;
            for n in 0..T::Output::N {
                for x in o.fragment_mut(0, n) {
                    *x *= factor;
                }
            }
            self.unit = most;
        }
        let inverse = rcp_approx(self.unit);
        for (n, scales) in scales.into_iter().enumerate() {
            for (idx, p) in p.fragment_mut(0, n).iter_mut().enumerate() {
                *p *= scales[idx % 2] * inverse;
            }
        }
        let p = Registers(p.pack::<F16>());
        let place = rows_then_columns(special::lane_idx());
        let rows = LaneRows::new(stage.v, place.row, place.col);
        // SAFETY: the caller's contract: of 16 columns values 0 .. 8, and values 8 .. 16; of the next 16 likewise.
        unsafe {
            let p = p.fragment(0, 0);
            for pair in 0..T::HEAD_DIM as usize / 32 {
                let values = ldmatrix_x4_trans(rows.address(0, pair as u32));
                // The even columns in the lower half, the odd ones in the upper half.
                let values = values.map(prmt::<0x3120>);
                for block in 0..2 {
                    let of_block = [values[2 * block], values[2 * block + 1]];
                    let n = 2 * (2 * pair + block);
                    F16::mma(o.fragment_mut(0, n), p, of_block.map(cvt_f16x2_e4m3x2));
                    let odd = of_block.map(|x| cvt_f16x2_e4m3x2(x >> 16));
                    F16::mma(o.fragment_mut(0, n + 1), p, odd);
                }
            }
        }
    }

    #[inline(always)]
    fn finish<T: Tiles>(&self, o: &mut T::Output) {
        for n in 0..T::Output::N {
            for x in o.fragment_mut(0, n) {
                *x *= self.unit;
            }
        }
    }
}

/// The query of the lane's row of the tile, `row` further down, and where its columns lie in Q: of each 16 four side by side.
/// Nothing, if the sequence does not have the row.
#[inline(always)]
fn find_row(p: &ForwardParams, tile: Tile, row: u32, element_bytes: u32) -> Option<(u32, u64)> {
    let place = fragment::accumulator(special::lane_idx(), 0);
    let PackedRow { head_idx, query } = tile.place(p, place.row + row);
    let source = GlobalRows::of_elements(&p.q, tile.sequence, head_idx, 0, element_bytes);
    let first = source.chunk(tile.rows_q.first + query, 0);
    let columns = u64::from(2 * place.col * element_bytes);
    (query < tile.rows_q.len).then_some((query, first + columns))
}

/// The lane's columns of the row that [`find_row`] finds, times a power of 2, each four as two pairs. And the power's inverse.
///
/// # Safety
/// As [`Cache::new`].
#[inline(always)]
unsafe fn row_of_q<E: Element, T: Tiles>(
    p: &ForwardParams,
    tile: Tile,
    row: u32,
) -> ([[u32; 2]; MAX_STEPS], f32) {
    let steps = T::HEAD_DIM as usize / 16;
    let mut pairs = [[0; 2]; MAX_STEPS];
    if let Some((_, from)) = find_row(p, tile, row, 2) {
        for (k, pairs) in pairs.iter_mut().enumerate().take(steps) {
            if spec::pad_columns() && k as u32 * 16 >= p.shape.head_dim {
                break;
            }
            // SAFETY: the query is the sequence's; four columns of each 16 lie in its row.
            *pairs = unsafe { global::ld_global_x2(from + k as u64 * 32) };
        }
    }
    let mut most = 0.0;
    for pairs in pairs.iter().take(steps) {
        for [a, b] in pairs.map(E::unpack) {
            most = max(most, max(a.abs(), b.abs()));
        }
    }
    // SAFETY: warp-collective, as promised.
    let [scale, inverse] = scale_of_row(unsafe { quad_max(most) });
    for pairs in pairs.iter_mut().take(steps) {
        *pairs = pairs.map(|pair| {
            let [a, b] = E::unpack(pair);
            F16::pack(a * scale, b * scale)
        });
    }
    (pairs, inverse)
}

/// The same of Q in `e4m3`, as it is, and its scale; 0 for a row that the sequence does not have.
///
/// # Safety
/// As [`Cache::new`].
#[inline(always)]
unsafe fn row_of_q_e4m3<T: Tiles>(
    p: &ForwardParams,
    tile: Tile,
    row: u32,
) -> ([[u32; 2]; MAX_STEPS], f32) {
    let steps = T::HEAD_DIM as usize / 16;
    let mut pairs = [[0; 2]; MAX_STEPS];
    let Some((query, from)) = find_row(p, tile, row, 1) else {
        return (pairs, 0.0);
    };
    let strides = p.descales.strides_q;
    let mut scale = strides.first(tile.sequence, tile.kv_head_idx);
    if spec::scale_blocks() {
        scale += strides.block(query);
    }
    // SAFETY: the query is the sequence's; four columns of each 16 lie in its row, and the parameters say where its scale lies.
    unsafe {
        let scale = global::ld_global_f32(p.descales.q + u64::from(scale) * 4);
        for (k, pairs) in pairs.iter_mut().enumerate().take(steps) {
            if spec::pad_columns() && k as u32 * 16 >= p.shape.head_dim {
                break;
            }
            let four = global::ld_global_u32(from + k as u64 * 16);
            *pairs = [cvt_f16x2_e4m3x2(four), cvt_f16x2_e4m3x2(four >> 16)];
        }
        (pairs, scale)
    }
}

/// The scales of the two keys whose scores fragment `n` has in this lane.
///
/// # Safety
/// They lie there.
#[inline(always)]
unsafe fn scales_of_columns(scales: u32, n: usize) -> [f32; 2] {
    let col = fragment::accumulator(special::lane_idx(), 0).col + n as u32 * 8;
    // SAFETY: the caller's contract.
    unsafe { shared::ld_shared_x2(scales + col * 4) }.map(f32::from_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_q_fit_f16_whatever_their_size() {
        for exponent in 1..=254 {
            for mantissa in [0, 0x7f_ffff] {
                let most = f32::from_bits(exponent << 23 | mantissa);
                let [scale, inverse] = scale_of_row(most);
                assert_eq!(scale * inverse, 1.0);
                assert!(scale.is_normal() && inverse.is_normal());
                assert!(most * scale < 32768.0, "{most}");
                // The least numbers may come out smaller, as no greater factor has a normal inverse.
                assert!(most * scale >= 16384.0 || exponent <= Q_EXPONENT, "{most}");
            }
        }
        assert_eq!(scale_of_row(0.0).map(f32::is_normal), [true; 2]);
    }
}
