//! The arithmetic of results over parts of the keys: the weight of a part, and the L of all parts.
//!
//! A part is known by its O and its L, the logarithm of its sum of exponentials. With m the largest L of the parts, a part weighs
//! exp(L − m), and all of them together have L = m + log Σ exp(L − m) (Flash-Decoding, Dao et al. 2023).

use core::f32::consts::{LN_2, LOG2_E};

use crate::params::SplitKv;
use crate::ptx::math::{ex2_approx, fma, lg2_approx, max, rcp_approx};
use crate::ptx::{global, shuffle, spec, special};
use crate::tile::element::Element;

/// exp(L − m). A part that saw no key has weight 0, also if no part saw any.
#[inline(always)]
pub(crate) fn weight(lse: f32, most: f32) -> f32 {
    if lse == f32::NEG_INFINITY {
        0.0
    } else {
        ex2_approx((lse - most) * LOG2_E)
    }
}

/// 1 / Σ of the weights; 0 where nothing has weight.
#[inline(always)]
pub(crate) fn inverse(sum: f32) -> f32 {
    if sum > 0.0 { rcp_approx(sum) } else { 0.0 }
}

/// m + log Σ of the weights; −∞ where nothing has weight.
#[inline(always)]
pub(crate) fn lse_of_all(sum: f32, most: f32) -> f32 {
    if sum > 0.0 {
        fma(lg2_approx(sum), LN_2, most)
    } else {
        f32::NEG_INFINITY
    }
}

/// L to base 2, for exponentials exp2(S − L) of the backward pass: of a row that has nothing +∞, so that they are 0.
#[inline(always)]
pub(crate) fn lse_log2(lse: f32) -> f32 {
    if lse == f32::NEG_INFINITY {
        f32::INFINITY
    } else {
        lse * LOG2_E
    }
}

/// L of a row with a sink, a term exp(sink) in the sum of exponentials, and the factor of its O: as if merged with a part
/// whose O is 0 and whose L is the sink. A sink of −∞ changes nothing.
#[inline(always)]
pub(crate) fn with_sink(lse: f32, sink: f32) -> (f32, f32) {
    let most = max(lse, sink);
    let of_keys = weight(lse, most);
    let sum = of_keys + weight(sink, most);
    (lse_of_all(sum, most), of_keys * inverse(sum))
}

/// The sink of a head.
///
/// # Safety
/// `sinks` has one for the head.
#[inline(always)]
pub(crate) unsafe fn sink_of(sinks: u64, head_idx: u32) -> f32 {
    // SAFETY: the caller's contract.
    unsafe { global::ld_global_f32(sinks + u64::from(head_idx) * 4) }
}

/// Contiguous columns of a lane in each piece of a row.
const LANE_COLUMNS: u32 = 4;

/// Columns of a piece, which a warp reads at once.
pub(crate) const PIECE: u32 = 32 * LANE_COLUMNS;

/// A lane's part of a row: some columns in each piece.
type LaneColumns<const PIECES: usize> = [[f32; LANE_COLUMNS as usize]; PIECES];

/// Where the results of a row's splits lie.
#[derive(Clone, Copy)]
pub(crate) struct SplitRow<'a> {
    /// The results of all rows.
    pub(crate) split: &'a SplitKv,
    /// Which row, of those of lse.
    pub(crate) row: u64,
    /// How many splits it has.
    pub(crate) n: u32,
    /// Columns.
    pub(crate) head_dim: u32,
    /// The sinks of all heads, where there are some, and the row's head.
    pub(crate) sinks: u64,
    pub(crate) head_idx: u32,
}

impl SplitRow<'_> {
    /// Merges the row's splits in a warp, of which so many are on their way at a time; O goes to the row at `target`, of 16-bit elements, and L to the caller:
    ///
    /// ```text
    /// m ← max over splits of L_s
    /// w_s ← exp(L_s − m)
    /// O ← Σ w_s O_s / Σ w_s,   L ← m + log Σ w_s
    /// ```
    ///
    /// Where there are sinks, the row's enters here: no split has it.
    ///
    /// The order of the sums is that of the splits, whoever adds them up.
    ///
    /// # Safety
    /// All lanes of a warp come here with the same row. Its splits have been written, as this thread knows; the target may be written.
    #[inline(always)]
    pub(crate) unsafe fn merge_to<E: Element, const PIECES: usize, const IN_FLIGHT: usize>(
        self,
        target: u64,
    ) -> f32 {
        const { assert!(32 % IN_FLIGHT == 0) };
        let mut sums = [[0.0; LANE_COLUMNS as usize]; PIECES];
        let mut weights = 0.0;
        // SAFETY: the caller's contract.
        unsafe {
            // On its way while the maximum is looked for.
            let mut loaded = self.load::<PIECES, IN_FLIGHT>(0);
            let lse = self.lse_of(special::lane_idx());
            let most = self.largest_lse(lse);
            // A lane weighs one of 32 splits; none of those that there are not.
            let (mut first, mut own) = (0, weight(lse, most));
            loop {
                for (idx, o) in loaded.iter().enumerate() {
                    let weight = shuffle::shuffle_idx_f32(own, first % 32 + idx as u32);
                    weights += weight;
                    for piece in 0..PIECES {
                        let sum = &mut sums[piece];
                        *sum = [0, 1, 2, 3].map(|i| fma(weight, o[piece][i], sum[i]));
                    }
                }
                first += IN_FLIGHT as u32;
                if first >= self.n {
                    break;
                }
                loaded = self.load::<PIECES, IN_FLIGHT>(first);
                if first % 32 == 0 {
                    own = weight(self.lse_of(first + special::lane_idx()), most);
                }
            }
            let (mut inverse, mut lse) = (inverse(weights), lse_of_all(weights, most));
            if spec::sinks() {
                let (with_sink, factor) = with_sink(lse, sink_of(self.sinks, self.head_idx));
                lse = with_sink;
                inverse *= factor;
            }
            for (piece, sum) in sums.iter().enumerate() {
                let x = sum.map(|x| x * inverse);
                let packed = [E::pack(x[0], x[1]), E::pack(x[2], x[3])];
                let column = column(piece);
                let address = target + u64::from(column) * 2;
                global::st_global_x2_if(address, packed, column < self.head_dim);
            }
            lse
        }
    }

    /// L of a split; −∞ where there is no such split.
    #[inline(always)]
    unsafe fn lse_of(self, idx: u32) -> f32 {
        if idx >= self.n {
            return f32::NEG_INFINITY;
        }
        let row = u64::from(idx) * self.split.rows + self.row;
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_f32(self.split.lse + row * 4) }
    }

    /// The largest L, in all lanes, where a lane has the one of its own number.
    #[inline(always)]
    unsafe fn largest_lse(self, own: f32) -> f32 {
        let mut most = own;
        let mut idx = 32 + special::lane_idx();
        // SAFETY: all lanes of the warp come here.
        unsafe {
            while idx < self.n {
                most = max(most, self.lse_of(idx));
                idx += 32;
            }
            for mask in [16, 8, 4, 2, 1] {
                most = max(most, shuffle::shuffle_bfly_f32(most, mask));
            }
        }
        most
    }

    /// A lane's columns of O, of some splits from `first` on; 0 where there is no such split or column.
    #[inline(always)]
    unsafe fn load<const PIECES: usize, const IN_FLIGHT: usize>(
        self,
        first: u32,
    ) -> [LaneColumns<PIECES>; IN_FLIGHT] {
        let mut loaded = [[[0.0; LANE_COLUMNS as usize]; PIECES]; IN_FLIGHT];
        for (idx, o) in loaded.iter_mut().enumerate() {
            let split = first + idx as u32;
            let row = u64::from(split) * self.split.rows + self.row;
            let row = self.split.o + row * u64::from(self.head_dim) * 4;
            for (piece, o) in o.iter_mut().enumerate() {
                let column = column(piece);
                // Not `&&`: one branch.
                if (split < self.n) & (column < self.head_dim) {
                    // SAFETY: the caller's contract.
                    *o = unsafe { global::ld_global_f32x4(row + u64::from(column) * 4) };
                }
            }
        }
        loaded
    }
}

/// A lane's first column in a piece.
#[inline(always)]
fn column(piece: usize) -> u32 {
    piece as u32 * PIECE + special::lane_idx() * LANE_COLUMNS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_a_term_of_the_sum() {
        let close =
            |given: f32, wanted: f64, unit: f64| (f64::from(given) - wanted).abs() <= 1e-6 * unit;
        for (lse, sink) in [
            (0.0, 0.0),
            (3.0, -2.0),
            (-7.5, 4.0),
            (-300.0, 300.0),
            (300.0, -300.0),
            (1e30, -1e30),
            (-1e30, 1e30),
        ] {
            let (all, factor) = with_sink(lse, sink);
            let (l, s) = (f64::from(lse), f64::from(sink));
            let wanted = l.max(s) + (-(l - s).abs()).exp().ln_1p();
            assert!(
                close(all, wanted, 1.0 + wanted.abs()),
                "{lse} {sink}: {all}"
            );
            assert!(
                close(factor, 1.0 / (1.0 + (s - l).exp()), 1.0),
                "{lse} {sink}: {factor}"
            );
        }
    }

    #[test]
    fn a_row_without_keys_has_its_sink_and_a_sink_of_minus_infinity_changes_nothing() {
        let none = f32::NEG_INFINITY;
        assert_eq!(with_sink(none, -3.5), (-3.5, 0.0));
        assert_eq!(with_sink(2.25, none), (2.25, 1.0));
        assert_eq!(with_sink(none, none), (none, 0.0));
    }
}
