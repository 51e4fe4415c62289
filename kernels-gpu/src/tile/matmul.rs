//! The product of two tiles, on tensor cores: `acc += A · B`, from shared memory or registers.
//!
//! One loop serves all products of attention; what differs is how fragments of A and B are read, which the operand
//! types say: as stored, or transposed on the way.

use super::element::Element;
use super::fragment::{columns_then_rows, rows_then_columns};
use super::register::{Accumulator, Packed};
use super::shared::{LaneRows, SharedTile};
use crate::ptx::convert::prmt_signs;
use crate::ptx::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};
use crate::ptx::special;

/// The left operand: gives 16 × 16 fragments.
pub trait LeftOperand: Copy {
    /// Fragment at rows `16 · m` and columns `16 · k`.
    ///
    /// # Safety
    /// Warp-collective; the tile has been written and lies where the operand was told.
    unsafe fn fragment(&self, m: usize, k: usize) -> [u32; 4];
}

/// The right operand: gives fragments of 16 rows (along the product's inner dimension) and 16 columns.
pub trait RightOperand: Copy {
    /// Fragments for columns `16 · n .. 16 · n + 8` and the next eight, rows `16 · k`.
    ///
    /// # Safety
    /// As [`LeftOperand::fragment`].
    unsafe fn fragments(&self, n: usize, k: usize) -> [[u32; 2]; 2];
}

/// A matrix stored row by row, `M[row][col]`, whose row `first_row` and column `16 · first_col16` come first.
#[derive(Clone, Copy)]
pub struct Stored {
    lane: LaneRows,
    first_col16: u32,
}

/// A matrix of which the transpose is stored row by row.
#[derive(Clone, Copy)]
pub struct Transposed {
    lane: LaneRows,
    first_col16: u32,
}

/// `A[m][k]` from `tile[first_row + m][k]`.
#[inline(always)]
pub fn left(tile: SharedTile, first_row: u32) -> Stored {
    let place = rows_then_columns(special::lane_idx());
    Stored {
        lane: LaneRows::new(tile, first_row + place.row, place.col),
        first_col16: 0,
    }
}

/// `A[m][k]` from `tile[k][16 · first_col16 + m]`.
#[inline(always)]
pub fn left_transposed(tile: SharedTile, first_col16: u32) -> Transposed {
    let place = columns_then_rows(special::lane_idx());
    Transposed {
        lane: LaneRows::new(tile, place.row, place.col),
        first_col16,
    }
}

/// `B[k][n]` from `tile[k][16 · first_col16 + n]`.
#[inline(always)]
pub fn right(tile: SharedTile, first_col16: u32) -> Transposed {
    let place = rows_then_columns(special::lane_idx());
    Transposed {
        lane: LaneRows::new(tile, place.row, place.col),
        first_col16,
    }
}

/// `B[k][n]` from `tile[first_row + n][k]`.
#[inline(always)]
pub fn right_transposed(tile: SharedTile, first_row: u32) -> Stored {
    let place = columns_then_rows(special::lane_idx());
    Stored {
        lane: LaneRows::new(tile, first_row + place.row, place.col),
        first_col16: 0,
    }
}

impl Stored {
    /// The columns from `16 · column16` on.
    #[inline(always)]
    pub fn from_column16(self, column16: u32) -> Self {
        let first_col16 = self.first_col16 + column16;
        Stored {
            first_col16,
            ..self
        }
    }
}

impl LeftOperand for Stored {
    #[inline(always)]
    unsafe fn fragment(&self, m: usize, k: usize) -> [u32; 4] {
        // SAFETY: the caller's contract.
        unsafe { ldmatrix_x4(self.lane.address(m as u32, self.first_col16 + k as u32)) }
    }
}

impl LeftOperand for Transposed {
    #[inline(always)]
    unsafe fn fragment(&self, m: usize, k: usize) -> [u32; 4] {
        // SAFETY: the caller's contract.
        unsafe { ldmatrix_x4_trans(self.lane.address(k as u32, self.first_col16 + m as u32)) }
    }
}

impl RightOperand for Transposed {
    #[inline(always)]
    unsafe fn fragments(&self, n: usize, k: usize) -> [[u32; 2]; 2] {
        // SAFETY: the caller's contract.
        let [a, b, c, d] =
            unsafe { ldmatrix_x4_trans(self.lane.address(k as u32, self.first_col16 + n as u32)) };
        [[a, b], [c, d]]
    }
}

impl RightOperand for Stored {
    #[inline(always)]
    unsafe fn fragments(&self, n: usize, k: usize) -> [[u32; 2]; 2] {
        // SAFETY: the caller's contract.
        let [a, b, c, d] =
            unsafe { ldmatrix_x4(self.lane.address(n as u32, self.first_col16 + k as u32)) };
        [[a, b], [c, d]]
    }
}

/// A left operand whose elements below 0 count as 0.
#[derive(Clone, Copy)]
pub struct PositivePart<A>(pub A);

impl<A: LeftOperand> LeftOperand for PositivePart<A> {
    #[inline(always)]
    unsafe fn fragment(&self, m: usize, k: usize) -> [u32; 4] {
        // SAFETY: the caller's contract.
        let pairs = unsafe { self.0.fragment(m, k) };
        pairs.map(|pair| pair & !prmt_signs::<0xbb99>(pair, 0))
    }
}

/// A tile held in registers, as the accumulator of an earlier product had it.
#[derive(Clone, Copy)]
pub struct Registers<P>(pub P);

impl<P: Packed> LeftOperand for Registers<P> {
    #[inline(always)]
    unsafe fn fragment(&self, m: usize, k: usize) -> [u32; 4] {
        let (left, right) = (self.0.pairs(m, 2 * k), self.0.pairs(m, 2 * k + 1));
        [left[0], left[1], right[0], right[1]]
    }
}

/// Fragments of one row of a matrix, loaded before: column `16 · k` first.
#[derive(Clone, Copy)]
pub struct Loaded<const STEPS: usize>(pub [[u32; 4]; STEPS]);

impl<const STEPS: usize> LeftOperand for Loaded<STEPS> {
    #[inline(always)]
    unsafe fn fragment(&self, _: usize, k: usize) -> [u32; 4] {
        self.0[k]
    }
}

/// How elements of a kind are multiplied.
pub trait Arithmetic {
    /// A fragment as it is multiplied.
    type Fragment<const N: usize>: Copy;

    /// That of a fragment as operands give it.
    fn operand<const N: usize>(x: [u32; N]) -> Self::Fragment<N>;

    /// `acc += a · b`.
    ///
    /// # Safety
    /// Warp-collective.
    unsafe fn multiply_add(acc: &mut [f32; 4], a: Self::Fragment<4>, b: Self::Fragment<2>);
}

impl<E: Element> Arithmetic for E {
    type Fragment<const N: usize> = [u32; N];

    #[inline(always)]
    fn operand<const N: usize>(x: [u32; N]) -> [u32; N] {
        x
    }

    #[inline(always)]
    unsafe fn multiply_add(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: the caller's contract.
        unsafe { E::mma(acc, a, b) }
    }
}

/// C += A B over this many steps of the instruction along A's columns.
///
/// # Safety
/// Warp-collective; the operands' tiles have been written and are visible to the warp.
#[inline(always)]
pub unsafe fn gemm<P: Arithmetic, C: Accumulator>(
    c: &mut C,
    a: impl LeftOperand,
    b: impl RightOperand,
    steps: usize,
) {
    for k in 0..steps {
        // SAFETY: the caller's contract, here and below.
        let a = fragments_of_column::<P, C>(|m| unsafe { a.fragment(m, k) });
        for n in 0..C::N / 2 {
            // SAFETY: as above.
            let b = unsafe { b.fragments(n, k) }.map(P::operand);
            for m in 0..C::M {
                for half in 0..2 {
                    // SAFETY: as above.
                    unsafe { P::multiply_add(c.fragment_mut(m, 2 * n + half), a[m], b[half]) };
                }
            }
        }
    }
}

/// The most fragments that a warp has below each other.
const MAX_M: usize = 4;

/// The fragments below each other in one column of A. A function of its own: written into the loop above, the same
/// lines make ptxas spill five times as much at head_dim 64.
#[inline(always)]
fn fragments_of_column<P: Arithmetic, C: Accumulator>(
    fragment: impl Fn(usize) -> [u32; 4],
) -> [P::Fragment<4>; MAX_M] {
    let mut fragments = [P::operand([0; 4]); MAX_M];
    for (m, place) in fragments.iter_mut().enumerate().take(C::M) {
        *place = P::operand(fragment(m));
    }
    fragments
}
