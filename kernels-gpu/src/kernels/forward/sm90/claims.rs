//! How a block of threads comes by its tiles: by a counter, which the last to ask leaves at 0, as it was found.

use super::Tiles;
use crate::params::TmaForwardParams;
use crate::ptx::{atomic, spec, special};

/// The counter.
#[derive(Clone, Copy)]
pub(super) struct Claims {
    counter: u64,
    /// How many tiles there are.
    tiles: u32,
    /// Whether the first tile is claimed, too.
    all: bool,
}

impl Claims {
    /// Of so many tiles.
    #[inline(always)]
    pub(super) fn new<T: Tiles>(p: &TmaForwardParams, tiles: u32) -> Claims {
        Claims {
            counter: p.tile_counter,
            tiles,
            // Blocks that wait for splits must not wait for one that is not running yet.
            all: T::SPLITS_KV && spec::split_kv(),
        }
    }

    /// Whether blocks claim their first tile, too.
    #[inline(always)]
    pub(super) const fn claims_first(self) -> bool {
        self.all
    }

    /// Whether blocks claim a tile when the one before it ends, and not when that begins: splits are few and long.
    #[inline(always)]
    pub(super) const fn claims_late(self) -> bool {
        self.all
    }

    /// The first tile.
    ///
    /// # Safety
    /// The counter is there; one thread of each block claims, until it gets a tile that is not there.
    #[inline(always)]
    pub(super) unsafe fn first(self) -> u32 {
        if self.all {
            // SAFETY: the caller's contract.
            unsafe { self.next() }
        } else {
            special::block_idx_x()
        }
    }

    /// One more.
    ///
    /// # Safety
    /// As [`Claims::first`].
    #[inline(always)]
    pub(super) unsafe fn next(self) -> u32 {
        let blocks = special::grid_dim_x();
        // SAFETY: the caller's contract.
        unsafe {
            if self.all {
                atomic::atom_inc_u32(self.counter, self.tiles + blocks - 1)
            } else {
                blocks + atomic::atom_inc_u32(self.counter, self.tiles - 1)
            }
        }
    }
}
