//! The next work of a block of threads, as its producer announces it to the other roles.

use super::Tiles;
use super::layout::Layout;
use crate::attention::block_mask::SparseBlock;
use crate::attention::block_order::BlockOrder;
use crate::attention::schedule::{BackwardTile, Direction, HeadSplits, QueryHeads};
use crate::attention::{batch_and_head, divide};
use crate::kernels::block_sparse::list::List;
use crate::params::BackwardParams;
use crate::ptx::spec;
use core::marker::PhantomData;

/// A tile of keys, as the producer tells the others of it.
#[derive(Clone, Copy)]
pub(super) struct WorkTile {
    pub(super) tile: BackwardTile,
    /// How many query blocks it meets, of all query heads together; at least 1.
    pub(super) steps: u32,
}

/// The head of k and v, given a split of the query heads: see [`BackwardParams::n_head_splits`].
#[inline(always)]
pub(super) fn kv_head(p: &BackwardParams, head_idx: u32) -> u32 {
    if spec::head_splits() {
        divide(head_idx, p.n_head_splits)
    } else {
        head_idx
    }
}

/// The query heads that a tile of this KV head, or of this split of one, meets.
#[inline(always)]
pub(super) fn query_heads(p: &BackwardParams, head_idx: u32) -> QueryHeads {
    let heads = p.shape.group_size;
    if spec::head_splits() {
        let splits = HeadSplits {
            n: p.n_head_splits,
            n_larger: p.n_larger_head_splits,
            heads,
        };
        splits.query_heads(head_idx)
    } else {
        QueryHeads {
            first: head_idx * heads,
            n: heads,
        }
    }
}

/// Rows of dQ to which all tiles have added: [`converted_rows`] of them are converted at once.
#[derive(Clone, Copy)]
pub(super) struct DqRows {
    /// Which of the head's.
    pub(super) block: u32,
    /// Which (batch, query head).
    pub(super) head: u32,
}

/// The next work of a block of threads, as the words of a slot: three numbers and their meaning. An enum with fields would be taken
/// apart and put together again in every role.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// The tile of keys; of a conversion, which of the head's rows.
    block: u32,
    head: u32,
    steps: u32,
    kind: u32,
}

/// [`Work`]: all steps of a tile of keys, from its last query block down.
const DOWN: u32 = 0;
/// [`Work`]: the same, from its first query block up.
const UP: u32 = 1;
/// [`Work`]: f32 rows of dQ to the output type.
const CONVERT: u32 = 2;
/// [`Work`]: nothing more.
const END: u32 = 3;

impl Work {
    /// All steps of a tile of keys.
    #[inline(always)]
    pub(super) fn key_tile(work: WorkTile) -> Work {
        let WorkTile { tile, steps } = work;
        let kind = match tile.direction {
            Direction::Down => DOWN,
            Direction::Up => UP,
        };
        Work {
            block: tile.k_block,
            head: tile.head,
            steps,
            kind,
        }
    }

    /// Rows of dQ to be converted.
    #[inline(always)]
    pub(super) fn convert(rows: DqRows) -> Work {
        Work {
            block: rows.block,
            head: rows.head,
            steps: 0,
            kind: CONVERT,
        }
    }

    /// Nothing more.
    pub(super) const END: Work = Work {
        block: 0,
        head: 0,
        steps: 0,
        kind: END,
    };

    /// As a slot holds it.
    #[inline(always)]
    pub(super) fn words(self) -> [u32; 4] {
        [self.block, self.head, self.steps, self.kind]
    }

    /// From a slot.
    #[inline(always)]
    pub(super) fn from_words([block, head, steps, kind]: [u32; 4]) -> Work {
        Work {
            block,
            head,
            steps,
            kind,
        }
    }

    /// Whether there is nothing more.
    #[inline(always)]
    pub(super) fn is_end(self) -> bool {
        self.kind == END
    }

    /// Whether rows of dQ are to be converted.
    #[inline(always)]
    pub(super) fn is_conversion(self) -> bool {
        self.kind == CONVERT
    }

    /// The rows of a conversion.
    #[inline(always)]
    pub(super) fn rows(self) -> DqRows {
        DqRows {
            block: self.block,
            head: self.head,
        }
    }

    /// The tile of keys, where it is one.
    #[inline(always)]
    pub(super) fn tile(self) -> WorkTile {
        let direction = if self.kind == UP {
            Direction::Up
        } else {
            Direction::Down
        };
        let tile = BackwardTile {
            k_block: self.block,
            head: self.head,
            direction,
        };
        WorkTile {
            tile,
            steps: self.steps,
        }
    }
}

// The steps of a tile of keys, as the producer and the semaphore warps go through them: in the order of the band, or as a block mask
// lists them.

/// Where a tile is in its steps.
pub(super) struct Steps<'a, T> {
    order: BlockOrder,
    listed: Listed<'a>,
    tiles: PhantomData<T>,
}

/// The same under a block mask: heads of the group one after the other, each one's list in the tile's direction.
struct Listed<'a> {
    p: &'a BackwardParams,
    tile: BackwardTile,
    /// Which query head of those that share the keys.
    head: u32,
    /// Blocks of the head's list that are left, this step's among them.
    left: u32,
    /// Place of this step's in the list.
    at: u32,
    /// This step's.
    block: SparseBlock,
}

impl<'a, T: Tiles> Steps<'a, T> {
    /// The first step; `order` is the band's.
    ///
    /// # Safety
    /// Under a block mask, the lists have been made.
    #[inline(always)]
    pub(super) unsafe fn begin(
        p: &'a BackwardParams,
        tile: BackwardTile,
        order: BlockOrder,
    ) -> Self {
        let mut listed = Listed {
            p,
            tile,
            head: 0,
            left: 0,
            at: 0,
            block: SparseBlock::default(),
        };
        if T::BLOCK_MASKS && spec::block_mask() {
            // SAFETY: the caller's contract.
            unsafe {
                listed.enter();
                listed.settle();
            }
        }
        Steps {
            order,
            listed,
            tiles: PhantomData,
        }
    }

    /// How many steps there are.
    ///
    /// # Safety
    /// As [`Steps::begin`].
    #[inline(always)]
    pub(super) unsafe fn n(&self) -> u32 {
        if !(T::BLOCK_MASKS && spec::block_mask()) {
            return self.order.steps();
        }
        // Not `BlockLists::len_of_group`: with it ptxas has the producer spill at head_dim 96 and 128.
        let (mut n, mut head) = (0, 0);
        while head < self.listed.p.shape.group_size {
            // SAFETY: the caller's contract.
            n += unsafe { self.listed.list(head).len() };
            head += 1;
        }
        n
    }

    /// Which query head of those that share the keys.
    #[inline(always)]
    pub(super) fn head(&self) -> u32 {
        if T::BLOCK_MASKS && spec::block_mask() {
            self.listed.head
        } else {
            self.order.head
        }
    }

    /// Which query block.
    #[inline(always)]
    pub(super) fn block(&self) -> u32 {
        if T::BLOCK_MASKS && spec::block_mask() {
            self.listed.block.block
        } else {
            self.order.block
        }
    }

    /// Under a block mask: writes whether all pairs are visible to the step's stage.
    ///
    /// # Safety
    /// The stage is empty.
    #[inline(always)]
    pub(super) unsafe fn write_is_full(&self, layout: Layout, stage: u32) {
        if T::BLOCK_MASKS && spec::block_mask() {
            // SAFETY: the caller's contract.
            unsafe { layout.write_mask_word(stage, self.listed.block.is_full as u32) };
        }
    }

    /// How many tiles add to this step's block of dQ before this one.
    #[inline(always)]
    pub(super) fn rank(&self, block_q: u32, block_k: u32) -> u32 {
        if T::BLOCK_MASKS && spec::block_mask() {
            // SAFETY: the ranks have been made.
            unsafe { self.listed.rank() }
        } else {
            self.order.rank(block_q, block_k)
        }
    }

    /// Goes on to the next step.
    ///
    /// # Safety
    /// As [`Steps::begin`].
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self) {
        if T::BLOCK_MASKS && spec::block_mask() {
            // SAFETY: the caller's contract.
            unsafe {
                self.listed.leave();
                self.listed.settle();
            }
        } else {
            self.order.advance();
        }
    }
}

impl Listed<'_> {
    /// The tile's list of a query head of the group.
    #[inline(always)]
    fn list(&self, head: u32) -> List {
        let (batch_idx, kv_head_idx) = batch_and_head(self.tile.head, self.p.shape.heads_k);
        let head_idx = kv_head_idx * self.p.shape.group_size + head;
        self.p.blocks.list(batch_idx, head_idx, self.tile.k_block)
    }

    /// Goes on to the next head that has blocks left, and reads its next one.
    #[inline(always)]
    unsafe fn settle(&mut self) {
        // SAFETY: as `Steps::begin`.
        unsafe {
            while self.left == 0 {
                self.head += 1;
                if self.head >= self.p.shape.group_size {
                    return;
                }
                self.enter();
            }
            self.block = self.list(self.head).block(self.at);
        }
    }

    /// Begins the list of a head.
    #[inline(always)]
    unsafe fn enter(&mut self) {
        // SAFETY: as `Steps::begin`.
        self.left = unsafe { self.list(self.head).len() };
        self.at = match self.tile.direction {
            Direction::Up => 0,
            Direction::Down => self.left.wrapping_sub(1),
        };
    }

    /// Is done with a block of the list.
    #[inline(always)]
    fn leave(&mut self) {
        self.left -= 1;
        self.at = match self.tile.direction {
            Direction::Up => self.at + 1,
            Direction::Down => self.at.wrapping_sub(1),
        };
    }

    /// How many tiles add to this step's block of dQ before this one.
    #[inline(always)]
    unsafe fn rank(&self) -> u32 {
        let (batch_idx, kv_head_idx) = batch_and_head(self.tile.head, self.p.shape.heads_k);
        let head_idx = kv_head_idx * self.p.shape.group_size + self.head;
        // SAFETY: as `Steps::begin`.
        unsafe {
            let lists = &self.p.blocks;
            lists.rank(batch_idx, head_idx, self.block, self.tile.direction)
        }
    }
}
