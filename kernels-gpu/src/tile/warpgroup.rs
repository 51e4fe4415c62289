//! Tiles of a warpgroup: shared memory as the TMA fills it and `wgmma` reads it, and the products of such tiles.
//!
//! A product is begun by one function and ended by [`Pending::wait`]; in between its accumulators are nobody's.

mod operand;

use super::element::Element;
use super::fragment;
use super::global::GlobalMatrix;
use super::register::{Accumulator, Packed, RegisterTile};
use super::shared::{LaneRows, SharedTile};
use crate::ptx::wgmma::{Descriptor, Major, Wgmma, wgmma_commit_group, wgmma_fence};
use crate::ptx::{barrier, global, ldmatrix, shared, shuffle, special};

pub use operand::{BoxedTile, Left};

/// Rows of a warpgroup's product.
pub const WARPGROUP_ROWS: u32 = 64;
/// Threads of a warpgroup.
const WARPGROUP_THREADS: u32 = 128;

/// Writes a warp's accumulators, rounded to `E`, to rows `first_row ..` of a tile.
///
/// # Safety
/// Nobody else touches these rows.
#[inline(always)]
pub unsafe fn store<E: Element, C: Accumulator>(tile: BoxedTile, first_row: u32, acc: &C) {
    let place = fragment::accumulator(special::lane_idx(), 0);
    let packed = acc.pack::<E>();
    for n in 0..C::N {
        let pairs = packed.pairs(0, n);
        let (part, col) = (tile.part(n as u32 / 8), n as u32 % 8 * 8 + place.col);
        // SAFETY: the caller's contract.
        unsafe {
            shared::st_shared_u32(part.pair(first_row + place.row, col), pairs[0]);
            shared::st_shared_u32(part.pair(first_row + place.row + 8, col), pairs[1]);
        }
    }
}

/// Writes a warp's 16 rows of packed accumulators to rows `first_row ..` of a tile, two fragments at a time.
///
/// # Safety
/// Warp-collective; nobody else touches these rows.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn store_matrices<C: Accumulator>(tile: BoxedTile, first_row: u32, packed: &C::Packed) {
    let place = fragment::rows_then_columns(special::lane_idx());
    for n in 0..C::N / 2 {
        let part = tile.part(n as u32 / 4);
        let rows = LaneRows::new(part, first_row + place.row, place.col);
        let (left, right) = (packed.pairs(0, 2 * n), packed.pairs(0, 2 * n + 1));
        // SAFETY: the caller's contract.
        unsafe {
            ldmatrix::stmatrix_x4(
                rows.address(0, n as u32 % 4),
                [left[0], left[1], right[0], right[1]],
            );
        }
    }
}

/// Writes a warp's 16 rows of packed accumulators to columns `16 · col16 ..` of 64 columns of a tile, of which it becomes the
/// rows from the first one on, two fragments at a time.
///
/// # Safety
/// Warp-collective; nobody else touches these columns.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn store_matrices_transposed<C: Accumulator>(
    part: SharedTile,
    col16: u32,
    packed: &C::Packed,
) {
    let place = fragment::columns_then_rows(special::lane_idx());
    let rows = LaneRows::new(part, place.row, place.col);
    for n in 0..C::N / 2 {
        let (left, right) = (packed.pairs(0, 2 * n), packed.pairs(0, 2 * n + 1));
        // SAFETY: the caller's contract.
        unsafe {
            ldmatrix::stmatrix_x4_trans(
                rows.address(n as u32, col16),
                [left[0], left[1], right[0], right[1]],
            );
        }
    }
}

/// Writes a warp's 16 rows of accumulators, rounded to `E`, to rows `first_row ..` of a matrix, as far as it has rows and
/// columns.
///
/// A lane holds pairs of every fragment; the four lanes that share a row exchange them, so that each writes whole chunks
/// of 16 bytes, of every fourth fragment.
///
/// # Safety
/// Warp-collective; the matrix lies where it says.
#[inline(always)]
pub unsafe fn store_rows<E: Element, C: Accumulator>(
    target: GlobalMatrix,
    first_row: u32,
    acc: &C,
) {
    let lane = special::lane_idx();
    let place = fragment::accumulator(lane, 0);
    let packed = acc.pack::<E>();
    for half in 0..2 {
        let row = first_row + place.row + half as u32 * 8;
        let mut address = target.rows.chunk(row, lane % 4);
        for n in 0..C::N / 4 {
            let pairs = [0, 1, 2, 3].map(|i| packed.pairs(0, 4 * n + i)[half]);
            let inside = target.contains(row, n as u32 * 4 + lane % 4);
            // SAFETY: the caller's contract.
            unsafe { global::st_global_x4_if(address, transpose(pairs), inside) };
            address += 64;
        }
    }
}

/// Of four lanes side by side, each with a row of a 4 × 4 matrix, gives each its column.
#[inline(always)]
unsafe fn transpose(x: [u32; 4]) -> [u32; 4] {
    // SAFETY: warp-collective, as the caller promises.
    unsafe {
        let ([a, b], [c, d]) = (exchange([x[0], x[1]], 1), exchange([x[2], x[3]], 1));
        let ([a, c], [b, d]) = (exchange([a, c], 2), exchange([b, d], 2));
        [a, b, c, d]
    }
}

/// Of two lanes whose numbers differ in `bit`, each with a row of a 2 × 2 matrix, gives each its column.
#[inline(always)]
unsafe fn exchange([left, right]: [u32; 2], bit: u32) -> [u32; 2] {
    let lower = special::lane_idx() & bit == 0;
    // SAFETY: warp-collective, as the caller promises.
    let got = unsafe { shuffle::shuffle_bfly_u32(if lower { right } else { left }, bit) };
    if lower { [left, got] } else { [got, right] }
}

/// Whether `x` holds in any thread of the warpgroup, which meets at barrier `id` for it.
///
/// # Safety
/// All four warps of the warpgroup reach it; nobody else comes to the barrier.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn any(id: u32, x: bool) -> bool {
    // SAFETY: the caller's contract. The vote does not change the value: through it, ptxas treats the branch as warp-uniform.
    unsafe { shuffle::vote_any(barrier::barrier_red_or(id, WARPGROUP_THREADS, x)) }
}

/// A product that has been begun. It borrows its accumulators, and A where that is in registers: until it is waited for,
/// they are the tensor cores'.
#[must_use = "nobody may touch the accumulators before the product has been waited for"]
pub struct Pending<'a, T>(&'a mut T);

impl<T: WarpgroupTile> Pending<'_, T> {
    /// Waits until all products begun but the last `LEFT` are done, among them this one: the accumulators are the thread's
    /// again.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn wait<const LEFT: u32>(self) {
        // SAFETY: the caller's contract.
        unsafe { self.0.wait::<LEFT>() }
    }
}

/// The accumulators of a warpgroup's product: 64 rows, of which each warp holds 16.
pub trait WarpgroupTile: Accumulator + Sized {
    /// Accumulators without a value, for a product that drops what they held: [`Wgmma::undefined`].
    fn undefined() -> Self;

    /// Begins `self = A Bᵀ`, both stored by rows, over `16 · steps` columns.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach it; the tiles have arrived, and stay until the product is waited for, as the
    /// accumulators do.
    unsafe fn begin_product<E: Element>(
        &mut self,
        a: BoxedTile,
        b: BoxedTile,
        steps: u32,
    ) -> Pending<'_, Self>;

    /// `self = A Bᵀ` as [`WarpgroupTile::begin_product`], waited for with everything that was begun before.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn product<E: Element>(&mut self, a: BoxedTile, b: BoxedTile, steps: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            self.begin_product::<E>(a, b, steps).wait::<0>();
        }
    }

    /// Begins `self = Aᵀ B`, both stored by rows, over `16 · steps` rows; A has 64 columns.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn begin_product_transposed<E: Element>(
        &mut self,
        a: BoxedTile,
        b: BoxedTile,
        steps: u32,
    ) -> Pending<'_, Self> {
        // SAFETY: the caller's contract.
        unsafe { self.begin_addition_ss::<E>(Left::Columns(a), b, steps, 0) }
    }

    /// Begins `self = Aᵀ Bᵀ`, both stored by rows, over `16 · steps` rows of A and columns of B; A has 64 columns.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`].
    unsafe fn begin_product_of_columns<E: Element>(
        &mut self,
        a: BoxedTile,
        b: BoxedTile,
        steps: u32,
    ) -> Pending<'_, Self>;

    /// Begins `self = A B`, or `self += A B` where `add` is 1: A in registers, B stored by rows.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`]; A stays, too.
    unsafe fn begin_addition<'a, E: Element, P: Packed>(
        &'a mut self,
        a: &'a P,
        b: BoxedTile,
        steps: u32,
        add: u32,
    ) -> Pending<'a, Self>;

    /// The same with A in shared memory.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`].
    unsafe fn begin_addition_ss<E: Element>(
        &mut self,
        a: Left,
        b: BoxedTile,
        steps: u32,
        add: u32,
    ) -> Pending<'_, Self>;

    /// [`Pending::wait`], of whose product this tile is the accumulators.
    ///
    /// # Safety
    /// As [`Pending::wait`].
    unsafe fn wait<const LEFT: u32>(&mut self);
}

impl<const N: usize> RegisterTile<1, N>
where
    [[f32; 4]; N]: Wgmma,
{
    /// Begins `self = A Bᵀ`, B stored by rows: `a` gives the `k`-th 16 of A's inner dimension, stored as `MAJOR` says.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn begin_by_rows<E: Element, const MAJOR: u32>(
        &mut self,
        a: impl Fn(u32) -> Descriptor,
        b: BoxedTile,
        steps: u32,
    ) -> Pending<'_, Self> {
        // SAFETY: the caller's contract.
        unsafe {
            wgmma_fence();
            for k in 0..steps {
                self.fragments_mut()
                    .multiply_ss::<E, MAJOR, { Major::K as u32 }>(
                        a(k),
                        b.along_columns(k),
                        (k > 0) as u32,
                    );
            }
            wgmma_commit_group();
        }
        Pending(self)
    }
}

impl<const N: usize> WarpgroupTile for RegisterTile<1, N>
where
    [[f32; 4]; N]: Wgmma,
{
    #[inline(always)]
    fn undefined() -> Self {
        RegisterTile::from_fragments(Wgmma::undefined())
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn begin_product<E: Element>(
        &mut self,
        a: BoxedTile,
        b: BoxedTile,
        steps: u32,
    ) -> Pending<'_, Self> {
        // SAFETY: the caller's contract.
        unsafe { self.begin_by_rows::<E, { Major::K as u32 }>(|k| a.along_columns(k), b, steps) }
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn begin_product_of_columns<E: Element>(
        &mut self,
        a: BoxedTile,
        b: BoxedTile,
        steps: u32,
    ) -> Pending<'_, Self> {
        // SAFETY: the caller's contract.
        unsafe { self.begin_by_rows::<E, { Major::Mn as u32 }>(|k| a.along_rows(k), b, steps) }
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn begin_addition<'a, E: Element, P: Packed>(
        &'a mut self,
        a: &'a P,
        b: BoxedTile,
        steps: u32,
        add: u32,
    ) -> Pending<'a, Self> {
        // SAFETY: the caller's contract.
        unsafe {
            wgmma_fence();
            for k in 0..steps {
                let (left, right) = (a.pairs(0, 2 * k as usize), a.pairs(0, 2 * k as usize + 1));
                self.fragments_mut().multiply_rs::<E, { Major::Mn as u32 }>(
                    [left[0], left[1], right[0], right[1]],
                    b.along_rows(k),
                    if k == 0 { add } else { 1 },
                );
            }
            wgmma_commit_group();
        }
        Pending(self)
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn begin_addition_ss<E: Element>(
        &mut self,
        a: Left,
        b: BoxedTile,
        steps: u32,
        add: u32,
    ) -> Pending<'_, Self> {
        // SAFETY: the caller's contract.
        unsafe {
            wgmma_fence();
            for k in 0..steps {
                let (acc, b) = (self.fragments_mut(), b.along_rows(k));
                let add = if k == 0 { add } else { 1 };
                match a {
                    Left::Rows(a) => {
                        acc.multiply_ss::<E, { Major::K as u32 }, { Major::Mn as u32 }>(
                            a.along_columns(k),
                            b,
                            add,
                        );
                    }
                    Left::Columns(a) => {
                        acc.multiply_ss::<E, { Major::Mn as u32 }, { Major::Mn as u32 }>(
                            a.along_rows(k),
                            b,
                            add,
                        );
                    }
                }
            }
            wgmma_commit_group();
        }
        Pending(self)
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn wait<const LEFT: u32>(&mut self) {
        // SAFETY: the caller's contract.
        unsafe { self.fragments_mut().wait::<LEFT>() }
    }
}
