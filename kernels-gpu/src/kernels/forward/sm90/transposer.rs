//! The transposers: two or three warps that turn blocks of V, as they come from memory, into the right operand of 8-bit products, whose
//! rows are the columns of V.
//!
//! `ldmatrix.trans` moves pairs of bytes: a lane gets two neighbouring columns of two neighbouring keys. Byte permutes part the two
//! columns and join the keys of two such registers, and `stmatrix` stores them. What comes out has the keys in the order of P's
//! registers: see [`super::elements`].

use super::Tiles;
use super::layout::{Layout, WorkTile};
use crate::config::TMA_SLOTS;
use crate::ptx::convert::prmt_pair;
use crate::ptx::ldmatrix::{ldmatrix_x4_trans, stmatrix_x4};
use crate::ptx::{barrier, mbarrier, special, tma};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::BoxedTile;

/// Keys of a unit of work, and its columns: of four matrices of 8 × 16 bytes.
const UNIT: [u32; 2] = [16, 32];
/// Columns of a part of V, and keys of a part of its transpose.
const PART: u32 = 128;

/// Orders of bytes, the lowest first: of two registers with two columns of two keys each, the first column, and the second.
const COLUMNS: [u32; 2] = [0x6420, 0x7531];

/// The whole of the work of one of its warps.
///
/// # Safety
/// Each of [`Tiles::TRANSPOSERS`] warps does it; the barriers have been made.
#[inline(always)]
pub unsafe fn transpose<T: Tiles>(layout: Layout, warp: u32) {
    let mut slot = Ring::start(TMA_SLOTS);
    let (mut raw, mut v) = (Ring::start(T::RAW_V_STAGES), Ring::start(T::KV_STAGES));
    let lane = special::lane_idx();
    let (leads, places) = ((lane == 0) as u32, Places::new(lane));
    // SAFETY: stages are read when they are full and written when they are empty; all lanes of a warp take the same way.
    unsafe {
        loop {
            mbarrier::mbarrier_wait(layout.work_ring.full(slot.stage), slot.parity);
            let WorkTile { blocks, .. } = layout.read_work::<T>(slot.stage);
            if blocks == 0 {
                return;
            }
            barrier::warp_sync();
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), leads);
            slot.advance();
            let mut block = 0;
            while block < blocks {
                layout.raw_v_ring.await_full(raw);
                layout.v_ring.await_empty(v);
                let (from, to) = (layout.loaded_v::<T>(raw.stage), layout.v::<T>(v.stage));
                transpose_block::<T>(&places, warp, from, to);
                tma::fence_proxy_async();
                barrier::warp_sync();
                mbarrier::mbarrier_arrive_if(layout.v_ring.full(v.stage), leads);
                mbarrier::mbarrier_arrive_if(layout.raw_v_ring.empty(raw.stage), leads);
                raw.advance();
                v.advance();
                block += 1;
            }
        }
    }
}

/// Units of a block: of keys, and of columns.
const fn units<T: Tiles>() -> [u32; 2] {
    [T::CONFIG.block_k / UNIT[0], T::VALUE_DIM / UNIT[1]]
}

/// Units that a warp has loaded before it stores the first of them, of keys and of columns: four, as shared memory is slow to answer.
/// Where the columns have no four units, four of keys: three of columns at once were 2 to 5 % slower at head_dim 192.
const fn at_once<T: Tiles>() -> [u32; 2] {
    match units::<T>() {
        [_, 2] => [2, 2],
        [_, columns] if columns.is_multiple_of(4) => [1, 4],
        _ => [4, 1],
    }
}

/// A warp's share of a block: every so many keys of it.
#[inline(always)]
unsafe fn transpose_block<T: Tiles>(places: &Places, warp: u32, from: BoxedTile, to: BoxedTile) {
    let [keys, columns] = const { units::<T>() };
    let [keys_at_once, columns_at_once] = const { at_once::<T>() };
    // Warps have whole groups of units.
    const {
        let ([keys, columns], [keys_at_once, columns_at_once]) = (units::<T>(), at_once::<T>());
        assert!(
            !T::TRANSPOSES
                || keys.is_multiple_of(keys_at_once) && columns.is_multiple_of(columns_at_once)
        );
    }
    let mut key = warp * keys_at_once;
    while key < keys {
        for turn in 0..columns / columns_at_once {
            let unit = |idx: u32| {
                (
                    key + idx / columns_at_once,
                    turn * columns_at_once + idx % columns_at_once,
                )
            };
            let mut loaded = [[0; 4]; 4];
            // SAFETY: the caller's contract.
            unsafe {
                for idx in 0..keys_at_once * columns_at_once {
                    loaded[idx as usize] = places.load(from, unit(idx));
                }
                for idx in 0..keys_at_once * columns_at_once {
                    places.store(to, unit(idx), loaded[idx as usize]);
                }
            }
        }
        key += T::TRANSPOSERS * keys_at_once;
    }
}

/// Where a lane points, within a unit.
struct Places {
    /// The row of V, and which 16 columns of 32.
    from: [u32; 2],
    /// The row of the transpose.
    to: u32,
    /// The orders of bytes of the first matrix that is stored of 16 columns, and of the second.
    orders: [u32; 2],
}

impl Places {
    /// Eight rows of the transpose that are stored at once lie in different banks: rows of a matrix are the even columns up to the eighth and the odd ones from
    /// there on, or the other way round.
    #[inline(always)]
    fn new(lane: u32) -> Places {
        let (matrix, row) = (lane / 8, lane % 8);
        let swaps = |row: u32| row / 4;
        let [even, odd] = COLUMNS;
        Places {
            from: [matrix % 2 * 8 + row, matrix / 2],
            to: matrix / 2 * 16 + 2 * row + ((matrix % 2) ^ swaps(row)),
            orders: match swaps(lane / 4) {
                0 => [even, odd],
                _ => [odd, even],
            },
        }
    }

    /// A unit of V, columns beside each other.
    ///
    /// # Safety
    /// Warp-collective; V has arrived.
    #[inline(always)]
    unsafe fn load(&self, from: BoxedTile, (key, column): (u32, u32)) -> [u32; 4] {
        let chunk = column * 2 + self.from[1];
        let source = from
            .part(column * UNIT[1] / PART)
            .chunk(key * UNIT[0] + self.from[0], chunk % 8);
        // SAFETY: the caller's contract.
        unsafe { ldmatrix_x4_trans(source) }
    }

    /// The unit into the transpose.
    ///
    /// # Safety
    /// Warp-collective; nothing else touches its place.
    #[inline(always)]
    unsafe fn store(&self, to: BoxedTile, (key, column): (u32, u32), x: [u32; 4]) {
        let target = to
            .part(key * UNIT[0] / PART)
            .chunk(column * UNIT[1] + self.to, key % 8);
        let [first, second] = self.orders;
        let rows = [
            prmt_pair(x[0], x[1], first),
            prmt_pair(x[0], x[1], second),
            prmt_pair(x[2], x[3], first),
            prmt_pair(x[2], x[3], second),
        ];
        // SAFETY: the caller's contract.
        unsafe { stmatrix_x4(target, rows) };
    }
}
