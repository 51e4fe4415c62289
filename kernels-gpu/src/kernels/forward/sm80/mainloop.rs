//! The copies of a tile's steps, and S of a step: the order of copies, barriers and the first product.
//!
//! Where a warp has whole rows, K and V of the next block arrive while this one is multiplied. One barrier a step both publishes
//! what has arrived and says that the other stage may be overwritten.
//!
//! Where warps divide the columns, there is one stage of each. V of a block arrives while S is made of K, and K of the next one from then on: two
//! barriers a step, of which the second also stands between parts of S and their sum.

use super::{Block, Blocks, add_values};
use crate::attention::block_mask::SparseBlock;
use crate::attention::score::ScoreRows;
use crate::kernels::block_sparse::list::List;
use crate::kernels::common::dropout::{Dropped, head_of};
use crate::kernels::forward::value_of_head;
use crate::params::ForwardParams;
use crate::ptx::{barrier, cp_async, shared, spec, special};

use crate::tile::copy::{self, BoundsChecked, Extent};
use crate::tile::global::GlobalMatrix;
use crate::tile::matmul::{left, right_transposed};
use crate::tile::products::Products;
use crate::tile::register::Accumulator;
use crate::tile::shared::SharedTile;
use crate::tile::softmax::{OnlineSoftmax, RowValues};

/// A block of keys and values, and the step whose stage it is in.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    /// The step.
    pub(super) step: u32,
    /// The block.
    pub(super) block: u32,
}

/// The part of a block that is copied.
#[derive(Clone, Copy)]
enum Part {
    Keys,
    Values,
    Both,
}

/// The start of a step.
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
/// Nothing reads the stage.
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
    let rows = const { T::CONFIG.block_k };
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
    let stage_bytes = const { T::CONFIG.block_k * T::ROW_BYTES };
    SharedTile {
        base: tile.base + i % const { T::STAGES } * stage_bytes,
        ..tile
    }
}

/// S = Q Kᵀ of block `this`, when V has arrived, too, or will have at the barrier before its product. Begins the copies of `next`. `X` and `N` say
/// whether they may reach beyond the sequence's end.
///
/// # Safety
/// The copies of the step before, or [`load_first`], have been committed; all warps come here.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub(super) unsafe fn scores<E: Products, T: Blocks, X: Extent, N: Extent, const PAGES: bool>(
    block: &Block,
    p: &ForwardParams,
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
        // S = Q Kᵀ
        E::gemm_ss(&mut s, q, k, T::WARP_COLUMNS);
        if divides_columns {
            send_scores::<T>(block, &s);
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
            if let Some(next) = next {
                load::<T, N, PAGES>(block, next, Part::Keys);
            }
            cp_async::cp_async_commit_group();
            sum_scores::<T>(block, &mut s);
        }
        if spec::head_scale() {
            let factor = value_of_head(p.head_scale, p.shape.heads_q, block.head);
            s.for_each(|_, _, x| *x *= factor);
        }
        s
    }
}

// The loop over KV blocks under a block mask.

/// The loop over the blocks of keys that a block mask leaves the tile, from the last one down.
///
/// # Safety
/// As [`super::forward`]; the list has been made.
#[inline(always)]
pub(super) unsafe fn attend_block_sparse<E: Products, T: Blocks>(
    block: &Block,
    p: &ForwardParams,
    list: List,
) -> (T::Output, RowValues) {
    let block_k = const { T::CONFIG.block_k };
    let mut o = T::Output::zero();
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    // SAFETY: as `attend`; the list has the blocks.
    unsafe {
        let mut n = list.len();
        // As the list holds it: bytes that a structure does not use would be copied through local memory.
        let mut words = SparseBlock::default().words();
        if n > 0 {
            let listed = list.block(n - 1);
            words = listed.words();
            let first = Staged {
                step: n - 1,
                block: listed.block,
            };
            load_first::<T, BoundsChecked, false>(block, first);
        }
        cp_async::cp_async_commit_group();
        if n == 0 {
            // No step waits for the copies of Q, over which O is about to be written.
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
        }
        while n > 0 {
            n -= 1;
            let listed = SparseBlock::from_words(words);
            if n > 0 {
                words = list.block(n - 1).words();
            }
            let next = SparseBlock::from_words(words).block;
            let next = (n > 0).then(|| Staged {
                step: n - 1,
                block: next,
            });
            let this = Staged {
                step: n,
                block: listed.block,
            };
            let mut s = scores::<E, T, BoundsChecked, BoundsChecked, false>(block, p, this, next);
            if spec::score() && !(spec::edit_partial() && listed.is_full) {
                block.edit_scores(p, listed.block * block_k, &mut s);
            }
            let (k_first, seqlen_k) = (listed.block * block_k, block.band.seqlen_k());
            if !listed.is_full || k_first + block_k > seqlen_k {
                let q_first = block.queries.first + block.warp_row;
                s.mask(|row, col| listed.keep(&block.band, q_first + row, k_first + col));
            }
            softmax.update(&mut s, &mut o);
            add_values::<E, T>(block, p, n, k_first, &s, &mut o);
        }
        let lse = softmax.finalize(&mut o);
        (o, lse)
    }
}

// Warps that have the same rows, and divide the columns: of Q, K, V and O each has as many. What a warp's columns of Q and K give of S is a
// part of a sum, which all of them need. So each leaves its own in shared memory, and adds up those of all in the same order: they have the
// same S to the last bit, and so the same P, m and l.

/// Bytes from one fragment to the next, with the lanes' parts contiguous.
const FRAGMENT_BYTES: u32 = 32 * 16;

/// Leaves this warp's part of S for the others that have its rows.
///
/// # Safety
/// They have read its earlier contents.
#[inline(always)]
unsafe fn send_scores<T: Blocks>(block: &Block, s: &T::Scores) {
    let mut address = place::<T>(block, block.team.thread / 32);
    for m in 0..T::Scores::M {
        for n in 0..T::Scores::N {
            let fragment = s.fragment(m, n).map(f32::to_bits);
            // SAFETY: the caller's contract.
            unsafe { shared::st_shared_x4(address, fragment) };
            address += FRAGMENT_BYTES;
        }
    }
}

/// S ← the sum of the parts of all warps that have its rows.
///
/// # Safety
/// All of them have, and a barrier stands between.
#[inline(always)]
unsafe fn sum_scores<T: Blocks>(block: &Block, s: &mut T::Scores) {
    *s = T::Scores::zero();
    let first = block.team.thread / 32 / T::WARPS_ACROSS * T::WARPS_ACROSS;
    for of_rows in 0..T::WARPS_ACROSS {
        let mut address = place::<T>(block, first + of_rows);
        for m in 0..T::Scores::M {
            for n in 0..T::Scores::N {
                // SAFETY: the caller's contract.
                let part = unsafe { shared::ld_shared_x4(address) };
                let sums = s.fragment_mut(m, n);
                for idx in 0..4 {
                    sums[idx] += f32::from_bits(part[idx]);
                }
                address += FRAGMENT_BYTES;
            }
        }
    }
}

/// Writes the tile's O, of which each warp has its columns, to memory, through the place of Q.
///
/// # Safety
/// A barrier stands behind the last use of Q; all warps come here.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub(super) unsafe fn store_columns<E: Products, T: Blocks>(
    block: &Block,
    o: GlobalMatrix,
    output: &T::Output,
) {
    let (tile, rows) = (block.q_tile, block.queries);
    // SAFETY: the caller's contract; the barrier stands between what warps write and what all of them read.
    unsafe {
        copy::store_shared::<E, _>(tile, block.warp_row, block.warp_column, output);
        barrier::barrier_sync_all();
        let block_q = const { T::CONFIG.block_q };
        copy::store(o, rows.first, tile, 0, block_q, block.team);
    }
}

/// Where this lane's first fragment of a warp's part lies.
#[inline(always)]
fn place<T: Blocks>(block: &Block, warp: u32) -> u32 {
    let bytes = (T::Scores::M * T::Scores::N) as u32 * FRAGMENT_BYTES;
    block.exchange + warp * bytes + special::lane_idx() * 16
}

// flash2's weights, where some are dropped.

impl Block {
    /// Which weights of keys from `first_key` on are dropped.
    ///
    /// # Safety
    /// The parameters say where seed and offset lie.
    #[inline(always)]
    pub(super) unsafe fn dropped<'p>(&self, p: &'p ForwardParams, first_key: u32) -> Dropped<'p> {
        let head = self.head_of_all(p);
        Dropped {
            p: &p.dropout,
            // SAFETY: the caller's contract.
            head: unsafe { head_of(&p.dropout, special::opaque(head)) },
            rows: ScoreRows::Queries,
            first_row: self.queries.first + self.warp_row,
            first_column: first_key,
        }
    }
}
