//! Copies of tiles: global to shared memory (asynchronous), shared to global.

use super::fragment;
use super::global::GlobalMatrix;
use super::products::Products;
use super::register::{Accumulator, Packed};
use super::shared::SharedTile;
use crate::ptx::{barrier, cp_async, global, shared, special};

/// Whether a tile may reach beyond the sequence's end.
pub trait Extent {
    /// True where rows must be compared with the sequence's length.
    const CHECKED: bool;
}

/// All rows of the tile lie in the sequence.
pub struct Whole;

/// Rows behind the end are filled with zeros when read, left alone when written.
pub struct BoundsChecked;

impl Extent for Whole {
    const CHECKED: bool = false;
}

impl Extent for BoundsChecked {
    const CHECKED: bool = true;
}

/// Threads that copy a tile together, and how the tile is shared out: each takes the same chunk of every
/// `threads / chunks_per_row`-th row.
#[derive(Clone, Copy)]
pub struct Team {
    /// This thread's number in the team.
    pub thread: u32,
    /// How many threads.
    pub threads: u32,
}

/// Begins the copy of rows `first_row .. first_row + rows` to `tile`; columns that `source` does not have become 0
/// ([`GlobalMatrix::has_chunk`]). The caller commits the group.
///
/// # Safety
/// `tile` holds `rows` rows and nothing reads it until the copies have been waited for; `source` is a tensor of 16-byte
/// aligned rows; under [`Whole`], all rows exist.
#[inline(always)]
pub unsafe fn load<X: Extent>(
    tile: SharedTile,
    source: GlobalMatrix,
    first_row: u32,
    rows: u32,
    team: Team,
) {
    let chunks_per_row = tile.row_bytes / 16;
    let (row, chunk) = (team.thread / chunks_per_row, team.thread % chunks_per_row);
    let rows_at_once = team.threads / chunks_per_row;
    let step = u64::from(rows_at_once).wrapping_mul(source.rows.row_bytes);
    let has_chunk = source.has_chunk(chunk);
    let mut address = source.rows.chunk(first_row + row, chunk);
    for i in 0..rows / rows_at_once {
        let has_row = !X::CHECKED || first_row + row + i * rows_at_once < source.rows.len;
        // Not `&&`: one branch.
        let inside = has_chunk & has_row;
        // An address outside is not read, but stays a valid one: that of the tensor's first row.
        let from = if inside { address } else { source.rows.base };
        // SAFETY: the caller's contract.
        unsafe {
            cp_async::cp_async_cg_16(
                tile.chunk(row + i * rows_at_once, chunk),
                from,
                if inside { 16 } else { 0 },
            );
        }
        address = address.wrapping_add(step);
    }
}

/// Begins the copy of the part of `source` that begins at `(first_row, first_chunk)` to all `rows` rows of `tile`;
/// what lies behind the matrix's rows or columns becomes 0. The caller commits the group.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub unsafe fn load_part(
    tile: SharedTile,
    source: GlobalMatrix,
    first_row: u32,
    first_chunk: u32,
    rows: u32,
    team: Team,
) {
    let chunks_per_row = tile.row_bytes / 16;
    let (row, chunk) = (team.thread / chunks_per_row, team.thread % chunks_per_row);
    let rows_at_once = team.threads / chunks_per_row;
    for i in 0..rows / rows_at_once {
        let row = row + i * rows_at_once;
        let (from_row, from_chunk) = (first_row + row, first_chunk + chunk);
        let inside = source.contains(from_row, from_chunk);
        // An address outside is not read, but stays a valid one: that of the matrix itself.
        let from = if inside {
            source.rows.chunk(from_row, from_chunk)
        } else {
            source.rows.base
        };
        // SAFETY: the caller's contract.
        unsafe {
            cp_async::cp_async_cg_16(tile.chunk(row, chunk), from, if inside { 16 } else { 0 })
        };
    }
}

/// Writes a warp's accumulators, rounded to `E`, to rows `first_row ..` and columns `first_col ..` of a tile.
///
/// # Safety
/// The tile is large enough, and nothing else touches this part of it.
#[inline(always)]
pub unsafe fn store_shared<E: Products, C: Accumulator>(
    tile: SharedTile,
    first_row: u32,
    first_col: u32,
    acc: &C,
) {
    let held = E::hold(acc);
    // SAFETY: the caller's contract.
    unsafe { E::store_held::<C>(tile, first_row, first_col, &held) }
}

/// As [`store_shared`], of a tile of 16-bit elements that is packed already.
///
/// # Safety
/// As [`store_shared`].
#[inline(always)]
pub unsafe fn store_packed<C: Accumulator>(
    tile: SharedTile,
    first_row: u32,
    first_col: u32,
    packed: &C::Packed,
) {
    let place = fragment::accumulator(special::lane_idx(), 0);
    for m in 0..C::M {
        for n in 0..C::N {
            let pairs = packed.pairs(m, n);
            let (row, col) = (
                first_row + m as u32 * 16 + place.row,
                first_col + n as u32 * 8 + place.col,
            );
            // SAFETY: the caller's contract.
            unsafe {
                shared::st_shared_u32(tile.pair(row, col), pairs[0]);
                shared::st_shared_u32(tile.pair(row + 8, col), pairs[1]);
            }
        }
    }
}

/// Copies `rows` rows of `tile`, from `tile_row` on, to rows `first_row ..` of `target`, those inside the sequence, and of these the columns that
/// `target` has.
///
/// # Safety
/// The rows of the tile have been written and are visible to the team; `target` is as in [`load`].
#[inline(always)]
pub unsafe fn store(
    target: GlobalMatrix,
    first_row: u32,
    tile: SharedTile,
    tile_row: u32,
    rows: u32,
    team: Team,
) {
    let chunks_per_row = tile.row_bytes / 16;
    let (row, chunk) = (team.thread / chunks_per_row, team.thread % chunks_per_row);
    let rows_at_once = team.threads / chunks_per_row;
    let has_chunk = target.has_chunk(chunk);
    for i in 0..rows / rows_at_once {
        let row = row + i * rows_at_once;
        // SAFETY: the caller's contract.
        unsafe {
            let chunk_of_tile = shared::ld_shared_x4(tile.chunk(tile_row + row, chunk));
            let inside = has_chunk & (first_row + row < target.rows.len);
            let to = target.rows.chunk(first_row + row, chunk);
            global::st_global_x4_if(to, chunk_of_tile, inside);
        }
    }
}

/// Copies `rows` rows of `tile` to the part of `target` that begins at `(first_row, first_chunk)`, as far as the
/// matrix has rows and columns.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn store_part(
    target: GlobalMatrix,
    first_row: u32,
    first_chunk: u32,
    tile: SharedTile,
    rows: u32,
    team: Team,
) {
    let chunks_per_row = tile.row_bytes / 16;
    let (row, chunk) = (team.thread / chunks_per_row, team.thread % chunks_per_row);
    let rows_at_once = team.threads / chunks_per_row;
    for i in 0..rows / rows_at_once {
        let row = row + i * rows_at_once;
        let (to_row, to_chunk) = (first_row + row, first_chunk + chunk);
        // SAFETY: the caller's contract.
        unsafe {
            let chunk_of_tile = shared::ld_shared_x4(tile.chunk(row, chunk));
            let inside = target.contains(to_row, to_chunk);
            global::st_global_x4_if(target.rows.chunk(to_row, to_chunk), chunk_of_tile, inside);
        }
    }
}

/// Bytes from one fragment of accumulators to the next in global memory: 16 of each lane, side by side.
const FRAGMENT_BYTES: u64 = 32 * 16;

/// A warp's accumulators, which [`store_accumulators`] has written.
///
/// # Safety
/// The same lane of a warp wrote them.
#[inline(always)]
pub unsafe fn load_accumulators<C: Accumulator>(address: u64) -> C {
    let mut acc = C::zero();
    let mut from = address + u64::from(special::lane_idx() * 16);
    for m in 0..C::M {
        for n in 0..C::N {
            // SAFETY: the caller's contract.
            *acc.fragment_mut(m, n) = unsafe { global::ld_global_f32x4(from) };
            from += FRAGMENT_BYTES;
        }
    }
    acc
}

/// Writes a warp's accumulators to global memory as they lie in registers: fragment by fragment, lanes side by side.
///
/// # Safety
/// The memory has room for them; nothing else uses it.
#[inline(always)]
pub unsafe fn store_accumulators<C: Accumulator>(address: u64, acc: &C) {
    let mut to = address + u64::from(special::lane_idx() * 16);
    for m in 0..C::M {
        for n in 0..C::N {
            // SAFETY: the caller's contract.
            unsafe { global::st_global_f32x4(to, acc.fragment(m, n)) };
            to += FRAGMENT_BYTES;
        }
    }
}

/// Writes a warp's own rows of accumulators to global memory, through its own rows of a tile: whole chunks of 16
/// bytes instead of pairs.
///
/// # Safety
/// As [`store_shared`] and [`store`]; warp-collective.
#[inline(always)]
pub unsafe fn store_through<E: Products, C: Accumulator>(
    target: GlobalMatrix,
    first_row: u32,
    tile: SharedTile,
    tile_row: u32,
    acc: &C,
) {
    let team = Team {
        thread: special::lane_idx(),
        threads: 32,
    };
    // SAFETY: the caller's contract; the warp's lanes meet between reading what lay there before, writing and reading.
    unsafe {
        barrier::warp_sync();
        store_shared::<E, C>(tile, tile_row, 0, acc);
        barrier::warp_sync();
        store(target, first_row, tile, tile_row, C::M as u32 * 16, team);
    }
}
