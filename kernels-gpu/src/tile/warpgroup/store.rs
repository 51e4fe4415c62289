//! A warp's accumulators on their way out: to shared memory, and to rows of global memory.

use crate::ptx::{global, ldmatrix, shared, shuffle, special};
use crate::tile::element::Element;
use crate::tile::fragment;
use crate::tile::global::GlobalMatrix;
use crate::tile::register::{Accumulator, Packed};
use crate::tile::shared::{LaneRows, SharedTile};

use super::BoxedTile;

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
/// Warp-collective; nothing else touches these rows.
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
/// rows from the first one on, two fragments at a time, and the last of an odd number alone.
///
/// # Safety
/// Warp-collective; nothing else touches these columns.
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
    if C::N % 2 == 1 {
        let (n, last) = (C::N as u32 / 2, packed.pairs(0, C::N - 1));
        // SAFETY: the caller's contract. Only the first 16 lanes' rows are written.
        unsafe { ldmatrix::stmatrix_x2_trans(rows.address(n, col16), last) };
    }
}

/// Writes a warp's 16 rows of accumulators, rounded to `E`, to rows `first_row ..` of a matrix, as far as it has rows and
/// columns.
///
/// # Safety
/// Warp-collective; the matrix lies where it says.
#[inline(always)]
pub unsafe fn store_rows<E: Element, C: Accumulator>(
    target: GlobalMatrix,
    first_row: u32,
    acc: &C,
) {
    let place = |row, chunk| {
        let row = first_row + row;
        (target.rows.chunk(row, chunk), row < target.rows.len)
    };
    // SAFETY: the caller's contract.
    unsafe { store_rows_to::<E, C>(target.chunks, acc, place) }
}

/// The same to rows that lie anywhere: `place` says of a row, from 0 on, where a chunk of 16 bytes lies, and whether there is such a row. A
/// row has this many chunks.
///
/// A lane holds pairs of every fragment; the four lanes that share a row exchange them, so that each writes whole chunks, of every
/// fourth fragment.
///
/// # Safety
/// Warp-collective; rows that there are lie where `place` says.
#[inline(always)]
pub unsafe fn store_rows_to<E: Element, C: Accumulator>(
    chunks: u32,
    acc: &C,
    place: impl Fn(u32, u32) -> (u64, bool),
) {
    let lane = special::lane_idx();
    let own = fragment::accumulator(lane, 0);
    let packed = acc.pack::<E>();
    for half in 0..2 {
        let (mut address, exists) = place(own.row + half as u32 * 8, lane % 4);
        for n in 0..C::N / 4 {
            let pairs = [0, 1, 2, 3].map(|i| packed.pairs(0, 4 * n + i)[half]);
            let inside = exists && n as u32 * 4 + lane % 4 < chunks;
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
