//! Tiles in registers: the accumulators of a warp, with logical coordinates.

use super::element::Element;
use super::fragment;
use crate::ptx::special;

/// A tile of f32 accumulators that one warp holds: `M` × `N` fragments of 16 × 8.
pub trait Accumulator: Copy {
    /// Fragments down: `16 · M` rows.
    const M: usize;
    /// Fragments across: `8 · N` columns.
    const N: usize;
    /// The same tile, rounded to 16 bits and packed.
    type Packed: Packed;

    /// All elements 0.
    fn zero() -> Self;

    /// The four elements of fragment `(m, n)` that this lane holds.
    fn fragment(&self, m: usize, n: usize) -> [f32; 4];

    /// The same, to change.
    fn fragment_mut(&mut self, m: usize, n: usize) -> &mut [f32; 4];

    /// The tile rounded to `E`.
    #[inline(always)]
    fn pack<E: Element>(&self) -> Self::Packed {
        let mut packed = Self::Packed::zero();
        for m in 0..Self::M {
            for n in 0..Self::N {
                let x = self.fragment(m, n);
                *packed.pairs_mut(m, n) = [E::pack(x[0], x[1]), E::pack(x[2], x[3])];
            }
        }
        packed
    }

    /// Calls `f` with the row and column of every element this lane holds, and the element.
    #[inline(always)]
    fn for_each(&mut self, mut f: impl FnMut(u32, u32, &mut f32)) {
        let lane = special::lane_idx();
        for m in 0..Self::M {
            for n in 0..Self::N {
                let fragment = self.fragment_mut(m, n);
                for idx in 0..4 {
                    let place = fragment::accumulator(lane, idx as u32);
                    f(
                        m as u32 * 16 + place.row,
                        n as u32 * 8 + place.col,
                        &mut fragment[idx],
                    );
                }
            }
        }
    }

    /// S ← −∞ where `keep` does not say that a row sees a column.
    #[inline(always)]
    fn mask(&mut self, keep: impl Fn(u32, u32) -> bool) {
        self.for_each(|row, col, s| {
            if !keep(row, col) {
                *s = f32::NEG_INFINITY;
            }
        });
    }

    /// Calls `hide` with every value of the first fragments across whose column is outside of what `visible` says of the lane's two rows: of columns counted
    /// from the lane's own on, the first one, and one past the last.
    #[inline(always)]
    fn for_each_hidden(&mut self, visible: [(u32, u32); 2], hide: impl Fn(&mut f32)) {
        for n in 0..Self::N {
            for (idx, x) in self.fragment_mut(0, n).iter_mut().enumerate() {
                if is_hidden(visible[idx / 2], n, idx % 2) {
                    hide(x);
                }
            }
        }
    }
}

/// Whether a column of the `n`-th fragment is not visible.
#[inline(always)]
pub fn is_hidden((begin, end): (u32, u32), n: usize, column: usize) -> bool {
    let column = n as u32 * 8 + column as u32;
    column < begin || column >= end
}

/// The accumulators themselves.
#[derive(Clone, Copy)]
pub struct RegisterTile<const M: usize, const N: usize>([[[f32; 4]; N]; M]);

impl<const M: usize, const N: usize> Accumulator for RegisterTile<M, N> {
    const M: usize = M;
    const N: usize = N;
    type Packed = PackedTile<M, N>;

    #[inline(always)]
    fn zero() -> Self {
        RegisterTile([[[0.0; 4]; N]; M])
    }

    #[inline(always)]
    fn fragment(&self, m: usize, n: usize) -> [f32; 4] {
        self.0[m][n]
    }

    #[inline(always)]
    fn fragment_mut(&mut self, m: usize, n: usize) -> &mut [f32; 4] {
        &mut self.0[m][n]
    }
}

impl<const N: usize> RegisterTile<1, N> {
    /// Accumulators of these fragments.
    #[inline(always)]
    pub const fn from_fragments(fragments: [[f32; 4]; N]) -> Self {
        RegisterTile([fragments])
    }

    /// The fragments of a warpgroup's accumulators, of which this warp holds 16 rows.
    #[inline(always)]
    pub fn fragments_mut(&mut self) -> &mut [[f32; 4]; N] {
        &mut self.0[0]
    }
}

/// A tile of 16-bit elements in registers, packed in pairs as the A operand of a product wants them.
pub trait Packed: Copy {
    /// All elements 0.
    fn zero() -> Self;

    /// The pairs of fragment `(m, n)` of the accumulator it was packed from: rows 0 .. 8, and rows 8 .. 16.
    fn pairs(&self, m: usize, n: usize) -> [u32; 2];

    /// The same, to change.
    fn pairs_mut(&mut self, m: usize, n: usize) -> &mut [u32; 2];
}

/// The packed registers themselves.
#[derive(Clone, Copy)]
pub struct PackedTile<const M: usize, const N: usize>([[[u32; 2]; N]; M]);

impl<const M: usize, const N: usize> Packed for PackedTile<M, N> {
    #[inline(always)]
    fn zero() -> Self {
        PackedTile([[[0; 2]; N]; M])
    }

    #[inline(always)]
    fn pairs(&self, m: usize, n: usize) -> [u32; 2] {
        self.0[m][n]
    }

    #[inline(always)]
    fn pairs_mut(&mut self, m: usize, n: usize) -> &mut [u32; 2] {
        &mut self.0[m][n]
    }
}
