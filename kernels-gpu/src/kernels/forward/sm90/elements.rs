//! Elements of 16 and of 8 bits: what differs in the loop of a consumer, and where its rows of O go.
//!
//! In 8 bits (e4m3, FlashAttention-3, section 3.3) the tensor cores want both operands with the inner dimension contiguous. Keys are the inner dimension of
//! P V, so V is transposed on its way: [`super::transposer`]. An accumulator has two neighbouring columns of a row in a lane, a left operand of 8 bits four. So
//! P stays where it is, and its columns are taken in another order; the rows of V follow it:
//!
//! ```text
//! place in 16 keys      0  1  2  3   4  5  6  7   8  9 10 11  12 13 14 15
//! key                   0  1  8  9   2  3 10 11   4  5 12 13   6  7 14 15
//! lane of the quad           0            1            2            3
//! ```

use crate::kernels::merge::combine::SplitQuery;
use crate::params::CombineParams;
use crate::ptx::convert::cvt_e4m3x4;
use crate::ptx::wgmma::WgmmaElement;
use crate::ptx::{global, spec, special};
use crate::tile::element::{Bf16, E4m3, Element, F16};
use crate::tile::fragment;
use crate::tile::global::GlobalMatrix;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::warpgroup::{self, BoxedOperand, BoxedTile, Transposed};

/// The elements of Q, K, V and P, and of O.
pub trait Elements: WgmmaElement + Copy + 'static {
    /// P as the left operand of P V.
    fn pack<S: Accumulator>(p: &S) -> S::Packed;

    /// A stage of V as the right operand.
    fn values(v: BoxedTile) -> impl BoxedOperand;

    /// Whether O has 16 bits, and may go through shared memory.
    fn has_16_bit_output() -> bool;

    /// Bytes of an element of O.
    fn output_bytes() -> u32;

    /// Chunks of 16 bytes of a row of O of so many columns.
    fn chunks(columns: u32) -> u32;

    /// [`warpgroup::store`] of O.
    ///
    /// # Safety
    /// As there; O has 16 bits.
    unsafe fn store<O: Accumulator>(tile: BoxedTile, first_row: u32, o: &O);

    /// [`warpgroup::store_rows`] of O.
    ///
    /// # Safety
    /// As there.
    unsafe fn store_rows<O: Accumulator>(target: GlobalMatrix, first_row: u32, o: &O);

    /// [`warpgroup::store_rows_to`] of O.
    ///
    /// # Safety
    /// As there; O has 16 bits.
    unsafe fn store_rows_to<O: Accumulator>(
        chunks: u32,
        o: &O,
        place: impl Fn(u32, u32) -> (u64, bool),
    );

    /// [`SplitQuery::merge`].
    ///
    /// # Safety
    /// As there; O has 16 bits.
    unsafe fn merge<const PIECES: usize, const IN_FLIGHT: usize>(
        row: SplitQuery,
        p: &CombineParams,
    );
}

impl<E: Element> Elements for E {
    #[inline(always)]
    fn pack<S: Accumulator>(p: &S) -> S::Packed {
        p.pack::<E>()
    }

    #[inline(always)]
    fn values(v: BoxedTile) -> impl BoxedOperand {
        v
    }

    #[inline(always)]
    fn has_16_bit_output() -> bool {
        true
    }

    #[inline(always)]
    fn output_bytes() -> u32 {
        2
    }

    #[inline(always)]
    fn chunks(columns: u32) -> u32 {
        columns / 8
    }

    #[inline(always)]
    unsafe fn store<O: Accumulator>(tile: BoxedTile, first_row: u32, o: &O) {
        // SAFETY: the caller's contract.
        unsafe { warpgroup::store::<E, O>(tile, first_row, o) }
    }

    #[inline(always)]
    unsafe fn store_rows<O: Accumulator>(target: GlobalMatrix, first_row: u32, o: &O) {
        // SAFETY: the caller's contract.
        unsafe { warpgroup::store_rows::<E, O>(target, first_row, o) }
    }

    #[inline(always)]
    unsafe fn store_rows_to<O: Accumulator>(
        chunks: u32,
        o: &O,
        place: impl Fn(u32, u32) -> (u64, bool),
    ) {
        // SAFETY: the caller's contract.
        unsafe { warpgroup::store_rows_to::<E, O>(chunks, o, place) }
    }

    #[inline(always)]
    unsafe fn merge<const PIECES: usize, const IN_FLIGHT: usize>(
        row: SplitQuery,
        p: &CombineParams,
    ) {
        // SAFETY: the caller's contract.
        unsafe { row.merge::<E, PIECES, IN_FLIGHT>(p) }
    }
}

/// O has the type that the constants name.
impl Elements for E4m3 {
    /// Four columns of a row in a register: of two fragments beside each other. The first half of the packed registers is used.
    #[inline(always)]
    fn pack<S: Accumulator>(p: &S) -> S::Packed {
        let mut packed = S::Packed::zero();
        for n in 0..S::N / 2 {
            let (left, right) = (p.fragment(0, 2 * n), p.fragment(0, 2 * n + 1));
            *packed.pairs_mut(0, n) = [
                cvt_e4m3x4([left[0], left[1], right[0], right[1]]),
                cvt_e4m3x4([left[2], left[3], right[2], right[3]]),
            ];
        }
        packed
    }

    #[inline(always)]
    fn values(v: BoxedTile) -> impl BoxedOperand {
        Transposed(v)
    }

    #[inline(always)]
    fn has_16_bit_output() -> bool {
        !spec::o_f32()
    }

    #[inline(always)]
    fn output_bytes() -> u32 {
        if spec::o_f32() { 4 } else { 2 }
    }

    #[inline(always)]
    fn chunks(columns: u32) -> u32 {
        if spec::o_f32() {
            columns / 4
        } else {
            columns / 8
        }
    }

    #[inline(always)]
    unsafe fn store<O: Accumulator>(tile: BoxedTile, first_row: u32, o: &O) {
        // SAFETY: the caller's contract.
        unsafe {
            if spec::o_f16() {
                warpgroup::store::<F16, O>(tile, first_row, o);
            } else {
                warpgroup::store::<Bf16, O>(tile, first_row, o);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_rows<O: Accumulator>(target: GlobalMatrix, first_row: u32, o: &O) {
        // SAFETY: the caller's contract.
        unsafe {
            if spec::o_f32() {
                store_rows_of_f32(target, first_row, o);
            } else if spec::o_f16() {
                warpgroup::store_rows::<F16, O>(target, first_row, o);
            } else {
                warpgroup::store_rows::<Bf16, O>(target, first_row, o);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_rows_to<O: Accumulator>(
        chunks: u32,
        o: &O,
        place: impl Fn(u32, u32) -> (u64, bool),
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if spec::o_f16() {
                warpgroup::store_rows_to::<F16, O>(chunks, o, place);
            } else {
                warpgroup::store_rows_to::<Bf16, O>(chunks, o, place);
            }
        }
    }

    #[inline(always)]
    unsafe fn merge<const PIECES: usize, const IN_FLIGHT: usize>(
        row: SplitQuery,
        p: &CombineParams,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if spec::o_f16() {
                row.merge::<F16, PIECES, IN_FLIGHT>(p);
            } else {
                row.merge::<Bf16, PIECES, IN_FLIGHT>(p);
            }
        }
    }
}

/// Writes a warp's 16 rows of accumulators to rows `first_row ..` of a matrix of f32, as far as it has rows and columns.
///
/// # Safety
/// Warp-collective; the matrix lies where it says.
#[inline(always)]
unsafe fn store_rows_of_f32<O: Accumulator>(target: GlobalMatrix, first_row: u32, o: &O) {
    let place = fragment::accumulator(special::lane_idx(), 0);
    for half in 0..2 {
        let row = first_row + place.row + half as u32 * 8;
        let address = target.rows.chunk(row, 0) + u64::from(place.col) * 4;
        for n in 0..O::N {
            let x = o.fragment(0, n);
            let pair = [x[2 * half], x[2 * half + 1]].map(f32::to_bits);
            let inside = row < target.rows.len && n as u32 * 8 + place.col < target.chunks * 4;
            // SAFETY: the caller's contract.
            unsafe { global::st_global_x2_if(address + n as u64 * 32, pair, inside) };
        }
    }
}
