//! The elements of a kernel's tensors, and their products on tensor cores: 16-bit elements by [`super::matmul`], f32 by [`super::tf32`].

use core::ops::IndexMut;

use super::element::{Element, F32};
use super::global::GlobalRows;
use super::matmul::{self, LeftOperand, Registers, RightOperand};
use super::register::{Accumulator, Packed};
use super::shared::SharedTile;
use super::{copy, tf32};
use crate::params::TensorView;
use crate::ptx::global;

/// Elements of q, k, v, o and their gradients, to a kernel for several types. Operands of products are fragments as [`super::matmul`] has them; tiles
/// lie in shared memory in rows of such elements.
pub trait Products: Copy + 'static {
    /// Bytes of an element.
    const BYTES: u32;
    /// Elements of a chunk of 16 bytes.
    const PER_CHUNK: u32 = 16 / Self::BYTES;
    /// Fragments beside each other of which a lane holds 16 bytes in a tile that it [holds](Self::Held).
    const FRAGMENTS_PER_CHUNK: usize = Self::PER_CHUNK as usize / 4;

    /// The elements of a chunk, as numbers.
    type Chunk: Copy + IndexMut<usize, Output = f32>;

    /// A warp's accumulators, as they become the left operand of another product.
    type Held<C: Accumulator>: Copy;

    /// All elements 0.
    fn zero<C: Accumulator>() -> Self::Held<C>;

    /// Accumulators, rounded to an element.
    fn hold<C: Accumulator>(acc: &C) -> Self::Held<C>;

    /// The four elements of fragment `(m, n)` that this lane holds.
    fn fragment<C: Accumulator>(held: &Self::Held<C>, m: usize, n: usize) -> [f32; 4];

    /// Fragment `(m, n)` ← elements, rounded.
    fn set_fragment<C: Accumulator>(held: &mut Self::Held<C>, m: usize, n: usize, x: [f32; 4]);

    /// Elements of fragment `(m, n)` ← 0 where all bits of `mask` are 1: 16 for each, of the upper pair and the lower one.
    fn clear<C: Accumulator>(held: &mut Self::Held<C>, m: usize, n: usize, mask: [u32; 2]);

    /// The `i`-th 16 bytes of the `m`-th fragments below each other.
    fn chunk<C: Accumulator>(held: &Self::Held<C>, m: usize, i: usize) -> [u32; 4];

    /// The same, to change.
    fn set_chunk<C: Accumulator>(held: &mut Self::Held<C>, m: usize, i: usize, chunk: [u32; 4]);

    /// `A[m][k]` from a tile that the warp holds.
    fn left<C: Accumulator>(held: Self::Held<C>) -> impl LeftOperand;

    /// `A[m][k]` from `tile[k][16 · first_col16 + m]`.
    fn left_transposed(tile: SharedTile, first_col16: u32) -> impl LeftOperand;

    /// `B[k][n]` from `tile[k][16 · first_col16 + n]`.
    fn right(tile: SharedTile, first_col16: u32) -> impl RightOperand;

    /// C += A B over this many columns of A, both in shared memory.
    ///
    /// # Safety
    /// Warp-collective; the operands' tiles have been written and are visible to the warp. Both take columns of A and rows of B in one order: both as
    /// stored, or by [`left_transposed`](Self::left_transposed) and [`right`](Self::right).
    unsafe fn gemm_ss<C: Accumulator>(
        c: &mut C,
        a: impl LeftOperand,
        b: impl RightOperand,
        columns: u32,
    );

    /// C += A B over this many columns of A, which the warp holds; B by [`right`](Self::right).
    ///
    /// # Safety
    /// As [`gemm_ss`](Self::gemm_ss).
    #[inline(always)]
    unsafe fn gemm_rs<C: Accumulator, A: Accumulator>(
        c: &mut C,
        a: Self::Held<A>,
        b: impl RightOperand,
        columns: u32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { Self::gemm_ss(c, Self::left::<A>(a), b, columns) }
    }

    /// Writes a tile that the warp holds to rows `first_row ..` and columns `first_col ..` of a tile.
    ///
    /// # Safety
    /// The tile is large enough, and nothing else touches this part of it.
    unsafe fn store_held<C: Accumulator>(
        tile: SharedTile,
        first_row: u32,
        first_col: u32,
        held: &Self::Held<C>,
    );

    /// The sum of the products of two chunks' elements.
    fn dot(a: [u32; 4], b: [u32; 4]) -> f32;

    /// The elements of a chunk.
    fn unpack_chunk(chunk: [u32; 4]) -> Self::Chunk;

    /// The chunk of elements, each rounded.
    fn pack_chunk(elements: Self::Chunk) -> [u32; 4];

    /// The bits of an element in global memory.
    ///
    /// # Safety
    /// It lies there.
    unsafe fn load_bits(address: u64) -> u32;

    /// Writes the low bits of a word, as many as an element has.
    ///
    /// # Safety
    /// An element lies there, which nothing else touches.
    unsafe fn store_bits(address: u64, bits: u32);

    /// An element of these bits.
    #[inline(always)]
    fn of_bits(bits: u32) -> f32 {
        Self::unpack_chunk([bits, 0, 0, 0])[0]
    }

    /// The bits of a number, rounded to an element; those above them may be anything.
    #[inline(always)]
    fn bits(x: f32) -> u32 {
        let mut elements = Self::unpack_chunk([0; 4]);
        elements[0] = x;
        Self::pack_chunk(elements)[0]
    }
}

impl<E: Element> Products for E {
    const BYTES: u32 = 2;

    type Chunk = [f32; 8];

    type Held<C: Accumulator> = C::Packed;

    #[inline(always)]
    fn zero<C: Accumulator>() -> C::Packed {
        C::Packed::zero()
    }

    #[inline(always)]
    fn hold<C: Accumulator>(acc: &C) -> C::Packed {
        acc.pack::<E>()
    }

    #[inline(always)]
    fn fragment<C: Accumulator>(held: &C::Packed, m: usize, n: usize) -> [f32; 4] {
        let [upper, lower] = held.pairs(m, n).map(E::unpack);
        [upper[0], upper[1], lower[0], lower[1]]
    }

    #[inline(always)]
    fn set_fragment<C: Accumulator>(held: &mut C::Packed, m: usize, n: usize, x: [f32; 4]) {
        *held.pairs_mut(m, n) = [E::pack(x[0], x[1]), E::pack(x[2], x[3])];
    }

    #[inline(always)]
    fn clear<C: Accumulator>(held: &mut C::Packed, m: usize, n: usize, mask: [u32; 2]) {
        let pairs = held.pairs_mut(m, n);
        *pairs = [pairs[0] & !mask[0], pairs[1] & !mask[1]];
    }

    #[inline(always)]
    fn chunk<C: Accumulator>(held: &C::Packed, m: usize, i: usize) -> [u32; 4] {
        let (left, right) = (held.pairs(m, 2 * i), held.pairs(m, 2 * i + 1));
        [left[0], left[1], right[0], right[1]]
    }

    #[inline(always)]
    fn set_chunk<C: Accumulator>(held: &mut C::Packed, m: usize, i: usize, chunk: [u32; 4]) {
        *held.pairs_mut(m, 2 * i) = [chunk[0], chunk[1]];
        *held.pairs_mut(m, 2 * i + 1) = [chunk[2], chunk[3]];
    }

    #[inline(always)]
    fn left<C: Accumulator>(held: C::Packed) -> impl LeftOperand {
        Registers(held)
    }

    #[inline(always)]
    fn left_transposed(tile: SharedTile, first_col16: u32) -> impl LeftOperand {
        matmul::left_transposed(tile, first_col16)
    }

    #[inline(always)]
    fn right(tile: SharedTile, first_col16: u32) -> impl RightOperand {
        matmul::right(tile, first_col16)
    }

    #[inline(always)]
    unsafe fn gemm_ss<C: Accumulator>(
        c: &mut C,
        a: impl LeftOperand,
        b: impl RightOperand,
        columns: u32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { matmul::gemm::<E, C>(c, a, b, columns as usize / 16) }
    }

    #[inline(always)]
    unsafe fn store_held<C: Accumulator>(
        tile: SharedTile,
        first_row: u32,
        first_col: u32,
        held: &C::Packed,
    ) {
        // SAFETY: the caller's contract.
        unsafe { copy::store_packed::<C>(tile, first_row, first_col, held) }
    }

    #[inline(always)]
    fn dot(a: [u32; 4], b: [u32; 4]) -> f32 {
        let mut sum = 0.0;
        for i in 0..4 {
            let (a, b) = (E::unpack(a[i]), E::unpack(b[i]));
            sum += a[0] * b[0] + a[1] * b[1];
        }
        sum
    }

    #[inline(always)]
    fn unpack_chunk(chunk: [u32; 4]) -> [f32; 8] {
        let [a, b, c, d] = chunk.map(E::unpack);
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }

    #[inline(always)]
    fn pack_chunk(x: [f32; 8]) -> [u32; 4] {
        [
            E::pack(x[0], x[1]),
            E::pack(x[2], x[3]),
            E::pack(x[4], x[5]),
            E::pack(x[6], x[7]),
        ]
    }

    #[inline(always)]
    unsafe fn load_bits(address: u64) -> u32 {
        // SAFETY: the caller's contract.
        u32::from(unsafe { global::ld_global_u16(address) })
    }

    #[inline(always)]
    unsafe fn store_bits(address: u64, bits: u32) {
        // SAFETY: the caller's contract.
        unsafe { global::st_global_u16(address, bits as u16) }
    }
}

/// The rows of a head's tensor of elements `E`.
#[inline(always)]
pub fn rows<E: Products>(
    tensor: &TensorView,
    batch_idx: u32,
    head_idx: u32,
    len: u32,
) -> GlobalRows {
    GlobalRows::of_elements(tensor, batch_idx, head_idx, len, E::BYTES)
}

/// Accumulators are elements already.
impl Products for F32 {
    const BYTES: u32 = 4;

    type Chunk = [f32; 4];

    type Held<C: Accumulator> = C;

    #[inline(always)]
    fn zero<C: Accumulator>() -> C {
        C::zero()
    }

    #[inline(always)]
    fn hold<C: Accumulator>(acc: &C) -> C {
        *acc
    }

    #[inline(always)]
    fn fragment<C: Accumulator>(held: &C, m: usize, n: usize) -> [f32; 4] {
        held.fragment(m, n)
    }

    #[inline(always)]
    fn set_fragment<C: Accumulator>(held: &mut C, m: usize, n: usize, x: [f32; 4]) {
        *held.fragment_mut(m, n) = x;
    }

    #[inline(always)]
    fn clear<C: Accumulator>(held: &mut C, m: usize, n: usize, mask: [u32; 2]) {
        let x = held.fragment_mut(m, n);
        for idx in 0..4 {
            if mask[idx / 2] & 1 << (16 * (idx % 2)) != 0 {
                x[idx] = 0.0;
            }
        }
    }

    #[inline(always)]
    fn chunk<C: Accumulator>(held: &C, m: usize, i: usize) -> [u32; 4] {
        held.fragment(m, i).map(f32::to_bits)
    }

    #[inline(always)]
    fn set_chunk<C: Accumulator>(held: &mut C, m: usize, i: usize, chunk: [u32; 4]) {
        *held.fragment_mut(m, i) = chunk.map(f32::from_bits);
    }

    #[inline(always)]
    fn left<C: Accumulator>(held: C) -> impl LeftOperand {
        tf32::Accumulated(held)
    }

    #[inline(always)]
    fn left_transposed(tile: SharedTile, first_col16: u32) -> impl LeftOperand {
        tf32::elements(tile, first_col16)
    }

    #[inline(always)]
    fn right(tile: SharedTile, first_col16: u32) -> impl RightOperand {
        tf32::elements(tile, first_col16)
    }

    #[inline(always)]
    unsafe fn gemm_ss<C: Accumulator>(
        c: &mut C,
        a: impl LeftOperand,
        b: impl RightOperand,
        columns: u32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { tf32::gemm(c, a, b, (columns / tf32::STEP) as usize) }
    }

    #[inline(always)]
    unsafe fn store_held<C: Accumulator>(
        tile: SharedTile,
        first_row: u32,
        first_col: u32,
        held: &C,
    ) {
        // SAFETY: the caller's contract.
        unsafe { tf32::store_shared(tile, first_row, first_col, held) }
    }

    #[inline(always)]
    fn dot(a: [u32; 4], b: [u32; 4]) -> f32 {
        let mut sum = 0.0;
        for i in 0..4 {
            sum += f32::from_bits(a[i]) * f32::from_bits(b[i]);
        }
        sum
    }

    #[inline(always)]
    fn unpack_chunk(chunk: [u32; 4]) -> [f32; 4] {
        chunk.map(f32::from_bits)
    }

    #[inline(always)]
    fn pack_chunk(x: [f32; 4]) -> [u32; 4] {
        x.map(f32::to_bits)
    }

    #[inline(always)]
    unsafe fn load_bits(address: u64) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { global::ld_global_u32(address) }
    }

    #[inline(always)]
    unsafe fn store_bits(address: u64, bits: u32) {
        // SAFETY: the caller's contract.
        unsafe { global::st_global_u32(address, bits) }
    }
}
