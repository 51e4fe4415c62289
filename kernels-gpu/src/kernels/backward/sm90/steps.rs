//! The steps of a tile of keys, as the producer and the semaphore warps go through them: in the order of the band, or as a block mask
//! lists them.

use core::marker::PhantomData;

use super::Tiles;
use super::layout::Layout;
use crate::attention::batch_and_head;
use crate::attention::block_mask::ListedBlock;
use crate::attention::block_order::BlockOrder;
use crate::attention::schedule::{BackwardTile, Direction};
use crate::kernels::block_list::List;
use crate::params::BackwardParams;
use crate::ptx::spec;

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
    block: ListedBlock,
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
            block: ListedBlock::default(),
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
