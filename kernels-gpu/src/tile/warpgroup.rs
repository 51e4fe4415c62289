//! Tiles of a warpgroup: shared memory as the TMA fills it and `wgmma` reads it, and the products of such tiles.
//!
//! A product is begun by one function and ended by [`Pending::wait`]; in between its accumulators must not be used.

mod operand;
mod store;

use super::register::{Accumulator, Packed, RegisterTile};
use crate::ptx::warpgroup::{setmaxnreg_dec, setmaxnreg_inc};
use crate::ptx::wgmma::{Major, Wgmma, WgmmaElement, wgmma_commit_group, wgmma_fence};
use crate::ptx::{barrier, shuffle};

pub use operand::{BoxedOperand, BoxedTile, Transposed};
pub use store::{store, store_matrices, store_matrices_transposed, store_rows, store_rows_to};

/// Rows of a warpgroup's product.
pub const WARPGROUP_ROWS: u32 = 64;
/// Bytes of the inner dimension that a product takes in one step: 16 elements of 16 bits, 32 of 8.
pub const STEP_BYTES: u32 = 32;
/// Steps of a part of 128 bytes.
const STEPS_OF_A_PART: u32 = 4;
/// Threads of a warpgroup.
const WARPGROUP_THREADS: u32 = 128;

/// Whether `x` holds in any thread of the warpgroup, which meets at barrier `id` for it.
///
/// # Safety
/// All four warps of the warpgroup reach it; no other thread arrives at the barrier.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn any(id: u32, x: bool) -> bool {
    // SAFETY: the caller's contract. The vote does not change the value: through it, ptxas treats the branch as warp-uniform.
    unsafe { shuffle::vote_any(barrier::barrier_red_or(id, WARPGROUP_THREADS, x)) }
}

/// Releases each thread's registers above this number, for [`take_registers`] of other warpgroups; 0: keeps all.
///
/// # Safety
/// As [`setmaxnreg_dec`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn release_registers(n: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        match n {
            0 => {}
            24 => setmaxnreg_dec::<24>(),
            40 => setmaxnreg_dec::<40>(),
            56 => setmaxnreg_dec::<56>(),
            _ => unreachable!("no table of tiles has it"),
        }
    }
}

/// Waits until each thread has this many registers; 0: does not wait.
///
/// # Safety
/// As [`setmaxnreg_inc`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn take_registers(n: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        match n {
            0 => {}
            152 => setmaxnreg_inc::<152>(),
            160 => setmaxnreg_inc::<160>(),
            216 => setmaxnreg_inc::<216>(),
            224 => setmaxnreg_inc::<224>(),
            232 => setmaxnreg_inc::<232>(),
            240 => setmaxnreg_inc::<240>(),
            _ => unreachable!("no table of tiles has it"),
        }
    }
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
    /// As `wgmma` takes them.
    type Fragments: Wgmma;

    /// Accumulators without a value, for a product that drops what they held: [`Wgmma::undefined`].
    fn undefined() -> Self;

    /// The accumulators.
    fn fragments_mut(&mut self) -> &mut Self::Fragments;

    /// [`Pending::wait`], of whose product this tile is the accumulators.
    ///
    /// # Safety
    /// As [`Pending::wait`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn wait<const LEFT: u32>(&mut self) {
        // SAFETY: the caller's contract.
        unsafe { self.fragments_mut().wait::<LEFT>() }
    }
}

impl<const N: usize> WarpgroupTile for RegisterTile<1, N>
where
    [[f32; 4]; N]: Wgmma,
{
    type Fragments = [[f32; 4]; N];

    #[inline(always)]
    fn undefined() -> Self {
        RegisterTile::from_fragments(Wgmma::undefined())
    }

    #[inline(always)]
    fn fragments_mut(&mut self) -> &mut [[f32; 4]; N] {
        RegisterTile::fragments_mut(self)
    }
}

/// Begins C = A B, or C += A B where `accumulate` is 1, over `16 · steps` columns of A, in 8 bits `32 · steps`; both in shared memory. [`BoxedTile::t`] is a tile's transpose.
///
/// # Safety
/// All four warps of the warpgroup reach it; the tiles have arrived, and stay until the product is waited for, as the
/// accumulators do. A transposed A has 64 rows.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn begin_gemm_ss<E: WgmmaElement, C: WarpgroupTile>(
    c: &mut C,
    a: impl BoxedOperand,
    b: impl BoxedOperand,
    steps: u32,
    accumulate: u32,
) -> Pending<'_, C> {
    // SAFETY: the caller's contract.
    unsafe {
        wgmma_fence();
        for k in 0..steps {
            multiply_ss::<E, C, _, _>(c, a, b, k, if k == 0 { accumulate } else { 1 });
        }
        wgmma_commit_group();
    }
    Pending(c)
}

/// Begins C = A B, over some parts of 64 columns of A: from which one on, and how many. `before` is called with
/// a number from 0 on before each of these is multiplied, to wait until it has arrived.
///
/// # Safety
/// As [`begin_gemm_ss`], of each part when `before` returns.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn begin_gemm_ss_of_parts<E: WgmmaElement, C: WarpgroupTile, const PIECES: usize>(
    c: &mut C,
    a: BoxedTile,
    b: Transposed,
    parts: [(u32, u32); PIECES],
    mut before: impl FnMut(usize),
) -> Pending<'_, C> {
    // SAFETY: the caller's contract.
    unsafe {
        for (idx, (first, n)) in parts.into_iter().enumerate() {
            before(idx);
            // Behind each wait: ptxas would else put a fence of its own there, and let no two products run at once.
            wgmma_fence();
            let (a, b) = (a.from_part(first), b.0.from_part(first).t());
            for k in 0..n * STEPS_OF_A_PART {
                multiply_ss::<E, C, _, _>(c, a, b, k, (idx > 0 || k > 0) as u32);
            }
        }
        wgmma_commit_group();
    }
    Pending(c)
}

/// Begins C = A B, or C += A B where `accumulate` is 1: A in registers, B in shared memory.
///
/// # Safety
/// As [`begin_gemm_ss`]; A stays, too.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn begin_gemm_rs<'a, E: WgmmaElement, C: WarpgroupTile>(
    c: &'a mut C,
    a: &'a impl Packed,
    b: impl BoxedOperand,
    steps: u32,
    accumulate: u32,
) -> Pending<'a, C> {
    // SAFETY: the caller's contract.
    unsafe {
        wgmma_fence();
        for k in 0..steps {
            let (left, right) = (a.pairs(0, 2 * k as usize), a.pairs(0, 2 * k as usize + 1));
            let a = [left[0], left[1], right[0], right[1]];
            let accumulate = if k == 0 { accumulate } else { 1 };
            multiply_rs::<E, C, _>(c, a, b, k, accumulate);
        }
        wgmma_commit_group();
    }
    Pending(c)
}

/// The `k`-th 16 columns of A times as many rows of B.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
unsafe fn multiply_ss<E: WgmmaElement, C: WarpgroupTile, A: BoxedOperand, B: BoxedOperand>(
    c: &mut C,
    a: A,
    b: B,
    k: u32,
    accumulate: u32,
) {
    const K: u32 = Major::K as u32;
    const MN: u32 = Major::Mn as u32;
    let (c, a, b) = (c.fragments_mut(), a.as_left(k), b.as_right(k));
    // SAFETY: as `begin_gemm_ss`.
    unsafe {
        match const { (A::IS_TRANSPOSED, B::IS_TRANSPOSED) } {
            (false, false) => c.multiply_ss::<E, K, MN>(a, b, accumulate),
            (false, true) => c.multiply_ss::<E, K, K>(a, b, accumulate),
            (true, false) => c.multiply_ss::<E, MN, MN>(a, b, accumulate),
            (true, true) => c.multiply_ss::<E, MN, K>(a, b, accumulate),
        }
    }
}

/// The `k`-th 16 columns of A, in registers, times as many rows of B.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
unsafe fn multiply_rs<E: WgmmaElement, C: WarpgroupTile, B: BoxedOperand>(
    c: &mut C,
    a: [u32; 4],
    b: B,
    k: u32,
    accumulate: u32,
) {
    let (c, b) = (c.fragments_mut(), b.as_right(k));
    // SAFETY: as `begin_gemm_rs`.
    unsafe {
        match const { B::IS_TRANSPOSED } {
            false => c.multiply_rs::<E, { Major::Mn as u32 }>(a, b, accumulate),
            true => c.multiply_rs::<E, { Major::K as u32 }>(a, b, accumulate),
        }
    }
}
