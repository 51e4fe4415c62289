//! Products of f32 tiles on tensor cores, which multiply tf32: f32's exponent and ten bits of mantissa.
//!
//! Operands are those of [`super::matmul`], where 16 columns of two bytes are 8 of four: `ldmatrix` reads a row's 16 bytes as four elements, just as a
//! fragment of tf32 has them, so Q Kᵀ takes its operands from there. What lies transposed `ldmatrix` cannot give, since it moves pairs of bytes. There, and
//! for accumulators that become an operand, the columns of A, and so the rows of B, are taken in the order 0, 2, 4, 6, 1, 3, 5, 7: then a lane's
//! accumulators are its part of A, and the rows that a warp reads of B lie in banks of their own under [`SharedTile`]'s swizzle.
//!
//! Operands are rounded to tf32, an error of 2⁻¹¹. Kernels that are compiled with [`FullPrecision`](crate::spec::Constant::FullPrecision) split each into
//! its nearest tf32 and the rest, and multiply all but rest by rest (3xTF32: NVIDIA CUTLASS, example 27): the error is 2⁻²². Tensor cores cut sums off
//! instead of rounding them; a sum of many steps would lose more than that. So each step has a sum of its own, which is added in f32, rounded
//! to nearest (Ootomo and Yokota 2022, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
//! performance", section 4).

use super::fragment;
use super::matmul::{self, Arithmetic, LeftOperand, RightOperand};
use super::register::Accumulator;
use super::shared::{LaneRows, SharedTile};
use crate::config::F32_BYTES;
use crate::ptx::convert::{TF32_BITS, cvt_tf32};
use crate::ptx::mma::mma_m16n8k8_tf32;
use crate::ptx::{shared, spec, special};

/// Columns of A, and rows of B, of a step.
pub const STEP: u32 = 8;

/// A matrix of which the transpose is stored row by row, read element by element: `A[m][k]` from `tile[k][16 · first_col16 + m]`, `B[k][n]` from
/// `tile[k][16 · first_col16 + n]`, with rows `k` in the order of accumulators.
#[derive(Clone, Copy)]
pub struct Elements {
    /// The lane's rows of a step, for the left and the right half of A's columns; an address is of the lane's column of eight.
    rows: [LaneRows; 2],
    row_bytes: u32,
    first_col16: u32,
}

/// That matrix.
#[inline(always)]
pub fn elements(tile: SharedTile, first_col16: u32) -> Elements {
    let lane = special::lane_idx();
    let (row, col) = (lane % 4 * 2, lane / 4);
    let tile_of_column = SharedTile {
        base: tile.base + col % 4 * F32_BYTES,
        ..tile
    };
    Elements {
        rows: [0, 1].map(|half| LaneRows::new(tile_of_column, row + half, col / 4)),
        row_bytes: tile.row_bytes,
        first_col16,
    }
}

impl Elements {
    /// The lane's elements of the step's rows in eight columns, and in the next eight.
    #[inline(always)]
    unsafe fn of_columns(&self, n: usize, k: usize) -> [[u32; 2]; 2] {
        let below = k as u32 * STEP * self.row_bytes;
        // Eight columns are 32 bytes, as 16 of two bytes are.
        let col8 = (self.first_col16 + n as u32) * 2;
        let element = |rows: LaneRows, col8| {
            // SAFETY: the tile has been written, as the operand's user says.
            unsafe { shared::ld_shared_u32(rows.address(0, col8) + below) }
        };
        [col8, col8 + 1].map(|col8| self.rows.map(|rows| element(rows, col8)))
    }
}

impl LeftOperand for Elements {
    #[inline(always)]
    unsafe fn fragment(&self, m: usize, k: usize) -> [u32; 4] {
        // SAFETY: the caller's contract.
        let [upper, lower] = unsafe { self.of_columns(m, k) };
        [upper[0], lower[0], upper[1], lower[1]]
    }
}

impl RightOperand for Elements {
    #[inline(always)]
    unsafe fn fragments(&self, n: usize, k: usize) -> [[u32; 2]; 2] {
        // SAFETY: the caller's contract.
        unsafe { self.of_columns(n, k) }
    }
}

/// A tile in registers, as the accumulator of an earlier product has it.
#[derive(Clone, Copy)]
pub struct Accumulated<C>(pub C);

impl<C: Accumulator> LeftOperand for Accumulated<C> {
    #[inline(always)]
    unsafe fn fragment(&self, m: usize, k: usize) -> [u32; 4] {
        let [upper_even, upper_odd, lower_even, lower_odd] = self.0.fragment(m, k);
        [upper_even, lower_even, upper_odd, lower_odd].map(f32::to_bits)
    }
}

/// Operands are rounded.
struct Rounded;

impl Arithmetic for Rounded {
    type Fragment<const N: usize> = [u32; N];

    #[inline(always)]
    fn operand<const N: usize>(x: [u32; N]) -> [u32; N] {
        x.map(|x| cvt_tf32(f32::from_bits(x)))
    }

    #[inline(always)]
    unsafe fn multiply_add(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: the caller's contract.
        unsafe { mma_m16n8k8_tf32(acc, a, b) };
    }
}

/// Operands are sums of two: see the module's documentation.
struct Split;

/// A fragment in two parts.
#[derive(Clone, Copy)]
struct Parts<const N: usize> {
    big: [u32; N],
    small: [u32; N],
}

impl Arithmetic for Split {
    type Fragment<const N: usize> = Parts<N>;

    #[inline(always)]
    fn operand<const N: usize>(x: [u32; N]) -> Parts<N> {
        let big = x.map(|x| cvt_tf32(f32::from_bits(x)) & TF32_BITS);
        let mut small = big;
        for idx in 0..N {
            small[idx] = cvt_tf32(f32::from_bits(x[idx]) - f32::from_bits(big[idx]));
        }
        Parts { big, small }
    }

    #[inline(always)]
    unsafe fn multiply_add(acc: &mut [f32; 4], a: Parts<4>, b: Parts<2>) {
        let mut sum = [0.0; 4];
        // SAFETY: the caller's contract. The small products come first, while the sum is small.
        unsafe {
            mma_m16n8k8_tf32(&mut sum, a.small, b.big);
            mma_m16n8k8_tf32(&mut sum, a.big, b.small);
            mma_m16n8k8_tf32(&mut sum, a.big, b.big);
        }
        for idx in 0..4 {
            acc[idx] += sum[idx];
        }
    }
}

/// C += A B over `8 · steps` columns of A, as exact as the kernel is compiled to be.
///
/// # Safety
/// Warp-collective; the operands' tiles have been written and are visible to the warp. Both take columns of A and rows of B in the same order.
#[inline(always)]
pub unsafe fn gemm<C: Accumulator>(
    c: &mut C,
    a: impl LeftOperand,
    b: impl RightOperand,
    steps: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if spec::full_precision() {
            matmul::gemm::<Split, C>(c, a, b, steps);
        } else {
            matmul::gemm::<Rounded, C>(c, a, b, steps);
        }
    }
}

/// Writes a warp's accumulators to rows `first_row ..` and columns `first_col ..` of a tile.
///
/// # Safety
/// The tile is large enough, and nothing else touches this part of it.
#[inline(always)]
pub unsafe fn store_shared<C: Accumulator>(
    tile: SharedTile,
    first_row: u32,
    first_col: u32,
    acc: &C,
) {
    let place = fragment::accumulator(special::lane_idx(), 0);
    for m in 0..C::M {
        for n in 0..C::N {
            let [a, b, c, d] = acc.fragment(m, n).map(f32::to_bits);
            let row = first_row + m as u32 * 16 + place.row;
            let col = first_col + n as u32 * 8 + place.col;
            let pair = |row| tile.chunk(row, col / 4) + col % 4 * F32_BYTES;
            // SAFETY: the caller's contract.
            unsafe {
                shared::st_shared_x2(pair(row), [a, b]);
                shared::st_shared_x2(pair(row + 8), [c, d]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Of the words that a warp reads together, each lies in a bank of its own.
    #[test]
    fn elements_of_a_warp_meet_in_no_bank() {
        for row_bytes in [128, 256, 512] {
            let tile = SharedTile { base: 0, row_bytes };
            for (first, half) in [(0, 0), (8, 0), (0, 1), (8, 1)] {
                let banks: HashSet<_> = (0..32)
                    .map(|lane| {
                        let (row, col) = (lane % 4 * 2 + half, lane / 4 + first);
                        (tile.chunk(row, col / 4) + col % 4 * 4) / 4 % 32
                    })
                    .collect();
                assert_eq!(banks.len(), 32, "row_bytes {row_bytes}");
            }
        }
    }
}
