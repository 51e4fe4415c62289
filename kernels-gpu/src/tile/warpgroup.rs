//! Tiles of a warpgroup: shared memory as the TMA fills it and `wgmma` reads it, and the products of such tiles.
//!
//! A product is begun by one function and ended by [`Pending::wait`]; in between its accumulators are nobody's.

mod operand;
mod store;

use super::element::Element;
use super::register::{Accumulator, Packed, RegisterTile};
use crate::ptx::wgmma::{Descriptor, Major, Wgmma, wgmma_commit_group, wgmma_fence};
use crate::ptx::{barrier, shuffle};

pub use operand::{BoxedTile, Left};
pub use store::{store, store_matrices, store_matrices_transposed, store_rows, store_rows_to};

/// Rows of a warpgroup's product.
pub const WARPGROUP_ROWS: u32 = 64;
/// Steps of 16 columns of a part of 64.
const STEPS_OF_A_PART: u32 = 4;
/// Threads of a warpgroup.
const WARPGROUP_THREADS: u32 = 128;

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

    /// Begins `self = A Bᵀ`, both stored by rows, over some parts of 64 columns: from which one on, and how many. `before` is called with
    /// a number from 0 on before each of these is multiplied, to wait until it has arrived.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`], of each part when `before` returns.
    unsafe fn begin_product_of_parts<E: Element, const PIECES: usize>(
        &mut self,
        a: BoxedTile,
        b: BoxedTile,
        parts: [(u32, u32); PIECES],
        before: impl FnMut(usize),
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
        unsafe { self.begin_accumulate_ss::<E>(Left::Columns(a), b, steps, 0) }
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

    /// Begins `self = A B`, or `self += A B` where `accumulate` is 1: A in registers, B stored by rows.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`]; A stays, too.
    unsafe fn begin_accumulate<'a, E: Element, P: Packed>(
        &'a mut self,
        a: &'a P,
        b: BoxedTile,
        steps: u32,
        accumulate: u32,
    ) -> Pending<'a, Self>;

    /// The same with A in shared memory.
    ///
    /// # Safety
    /// As [`WarpgroupTile::begin_product`].
    unsafe fn begin_accumulate_ss<E: Element>(
        &mut self,
        a: Left,
        b: BoxedTile,
        steps: u32,
        accumulate: u32,
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
    unsafe fn begin_product_of_parts<E: Element, const PIECES: usize>(
        &mut self,
        a: BoxedTile,
        b: BoxedTile,
        parts: [(u32, u32); PIECES],
        mut before: impl FnMut(usize),
    ) -> Pending<'_, Self> {
        // SAFETY: the caller's contract.
        unsafe {
            for (idx, (first, n)) in parts.into_iter().enumerate() {
                before(idx);
                // Behind each wait: ptxas would else put a fence of its own there, and let no two products run at once.
                wgmma_fence();
                let (a, b) = (a.from_part(first), b.from_part(first));
                for k in 0..n * STEPS_OF_A_PART {
                    self.fragments_mut()
                        .multiply_ss::<E, { Major::K as u32 }, { Major::K as u32 }>(
                            a.along_columns(k),
                            b.along_columns(k),
                            (idx > 0 || k > 0) as u32,
                        );
                }
            }
            wgmma_commit_group();
        }
        Pending(self)
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
    unsafe fn begin_accumulate<'a, E: Element, P: Packed>(
        &'a mut self,
        a: &'a P,
        b: BoxedTile,
        steps: u32,
        accumulate: u32,
    ) -> Pending<'a, Self> {
        // SAFETY: the caller's contract.
        unsafe {
            wgmma_fence();
            for k in 0..steps {
                let (left, right) = (a.pairs(0, 2 * k as usize), a.pairs(0, 2 * k as usize + 1));
                self.fragments_mut().multiply_rs::<E, { Major::Mn as u32 }>(
                    [left[0], left[1], right[0], right[1]],
                    b.along_rows(k),
                    if k == 0 { accumulate } else { 1 },
                );
            }
            wgmma_commit_group();
        }
        Pending(self)
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn begin_accumulate_ss<E: Element>(
        &mut self,
        a: Left,
        b: BoxedTile,
        steps: u32,
        accumulate: u32,
    ) -> Pending<'_, Self> {
        // SAFETY: the caller's contract.
        unsafe {
            wgmma_fence();
            for k in 0..steps {
                let (acc, b) = (self.fragments_mut(), b.along_rows(k));
                let accumulate = if k == 0 { accumulate } else { 1 };
                match a {
                    Left::Rows(a) => {
                        acc.multiply_ss::<E, { Major::K as u32 }, { Major::Mn as u32 }>(
                            a.along_columns(k),
                            b,
                            accumulate,
                        );
                    }
                    Left::Columns(a) => {
                        acc.multiply_ss::<E, { Major::Mn as u32 }, { Major::Mn as u32 }>(
                            a.along_rows(k),
                            b,
                            accumulate,
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
