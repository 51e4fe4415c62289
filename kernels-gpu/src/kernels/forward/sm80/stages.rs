//! What the steps of a tile copy, and S of a step: the order of copies, barriers and the first product.
//!
//! Where a warp has whole rows, K and V of the next block arrive while this one is multiplied. One barrier a step both publishes
//! what has arrived and says that the other stage may be overwritten.
//!
//! Where warps divide the columns, there is one stage of each. V of a block arrives while S is made of K, and K of the next one from then on: two
//! barriers a step, of which the second also stands between parts of S and their sum.

use super::{Block, Blocks, columns};
use crate::ptx::{barrier, cp_async};
use crate::tile::copy::{self, Extent};
use crate::tile::matmul::{left, right_transposed};
use crate::tile::products::Products;
use crate::tile::register::Accumulator;
use crate::tile::shared::SharedTile;

/// A block of keys and values, and the step whose stage it is in.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    /// The step.
    pub(super) step: u32,
    /// The block.
    pub(super) block: u32,
}

/// What is copied of a block.
#[derive(Clone, Copy)]
enum Part {
    Keys,
    Values,
    Both,
}

/// What a step begins with.
const fn first_part<T: Blocks>() -> Part {
    if T::WARPS_ACROSS > 1 {
        Part::Keys
    } else {
        Part::Both
    }
}

/// Begins the copies with which the first step begins; the caller commits the group.
///
/// # Safety
/// Nobody reads the stage.
#[inline(always)]
pub(super) unsafe fn load_first<T: Blocks, X: Extent, const PAGES: bool>(
    block: &Block,
    first: Staged,
) {
    // SAFETY: the caller's contract.
    unsafe { load::<T, X, PAGES>(block, first, const { first_part::<T>() }) }
}

/// Begins copies of a block: out of pages, where `PAGES` says so.
#[inline(always)]
unsafe fn load<T: Blocks, X: Extent, const PAGES: bool>(block: &Block, of: Staged, part: Part) {
    let rows = const { T::FOOTPRINT.block_k };
    let parts = match part {
        Part::Keys => 0..1,
        Part::Values => 1..2,
        Part::Both => 0..2,
    };
    let tiles = [block.k_tile, block.v_tile].map(|tile| stage::<T>(tile, of.step));
    let (sources, first_row) = ([block.k, block.v], of.block * rows);
    // SAFETY: the caller knows that nobody reads this stage, and under `Whole` that the block lies in the sequence.
    unsafe {
        if PAGES {
            let pages = block.pages;
            pages.load(tiles, sources, parts, first_row, rows, block.team);
            return;
        }
        for i in parts {
            copy::load::<X>(tiles[i], sources[i], first_row, rows, block.team);
        }
    }
}

/// The stage of step `i`.
#[inline(always)]
pub(super) fn stage<T: Blocks>(tile: SharedTile, i: u32) -> SharedTile {
    let stage_bytes = const { T::FOOTPRINT.block_k * T::ROW_BYTES };
    SharedTile {
        base: tile.base + i % const { T::STAGES } * stage_bytes,
        ..tile
    }
}

/// S = Q Kᵀ of block `this`, when V has arrived, too, or will have at the barrier before its product. Begins the copies of `next`. `X` and `N` say
/// whether they may reach behind the sequence's end.
///
/// # Safety
/// The copies of the step before, or [`load_first`], have been committed; all warps come here.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub(super) unsafe fn scores<E: Products, T: Blocks, X: Extent, N: Extent, const PAGES: bool>(
    block: &Block,
    this: Staged,
    next: Option<Staged>,
) -> T::Scores {
    let divides_columns = const { T::WARPS_ACROSS > 1 };
    // SAFETY: the caller's contract. The first barrier stands between the arrival of K and its use, and between the last use of the
    // place that is filled behind it and that; so does the second.
    unsafe {
        cp_async::cp_async_wait_group::<0>();
        barrier::barrier_sync_all();
        if divides_columns {
            load::<T, X, PAGES>(block, this, Part::Values);
        } else if let Some(next) = next {
            load::<T, N, PAGES>(block, next, Part::Both);
        }
        cp_async::cp_async_commit_group();

        let mut s = T::Scores::zero();
        let q = left(block.q_tile, block.warp_row).from_column16(block.warp_column / 16);
        let k = right_transposed(stage::<T>(block.k_tile, this.step), 0)
            .from_column16(block.warp_column / 16);
        E::multiply_add(&mut s, q, k, T::WARP_COLUMNS);
        if divides_columns {
            columns::send::<T>(block, &s);
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
            if let Some(next) = next {
                load::<T, N, PAGES>(block, next, Part::Keys);
            }
            cp_async::cp_async_commit_group();
            columns::sum::<T>(block, &mut s);
        }
        s
    }
}
