//! Time stamps: a profiled kernel records, for each tile, which block of threads worked on it, where and when. The rows of
//! [`crate::variants::PROFILED`] do, for `ferroflash profile`; in the rows of the list there is no code for it.
//!
//! The tiles of a block do not overlap, though the work on them does where a kernel is pipelined. What counts as a tile's time:
//!
//! | kernel | begins | ends |
//! |---|---|---|
//! | flash2 forward | when the block has found its tile | when its first warp has written O and L |
//! | flash3 forward | when the first consumer has the tile's Q; a block's first tile, when the consumer has been told of it | when that consumer has the next tile's Q, whose first product runs beside this one's last; of a block's last tile, when O has been handed over |
//! | flash2 backward | when the block has claimed it | when its first warp has written its part of dV |
//! | flash3 backward | when the first consumer has its K and V | when that consumer's dV and dK are on their way out |
//!
//! One thread writes: the first one, of flash3 the first consumer's first. It stores the beginning when a tile begins and holds nothing until its end, so no registers are
//! taken from the products.

use core::marker::PhantomData;

use crate::params::Stamp;
use crate::ptx::{global, special};

/// Tiles `T`, whose kernels record them.
pub struct Profiled<T>(PhantomData<T>);

/// Where a tile's record goes, and whether this thread writes it.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    address: u64,
    /// The record's values for the tile.
    head: u32,
    tile: u32,
    writes: bool,
}

impl Record {
    /// The record of a head's tile, with this many tiles of each head; the record of the first head's first tile is at `stamps`.
    #[inline(always)]
    pub(crate) fn new(stamps: u64, tiles: u32, head: u32, tile: u32, writes: bool) -> Record {
        let place = u64::from(head) * u64::from(tiles) + u64::from(tile);
        Record {
            address: stamps + place * Stamp::N_BYTES,
            head,
            tile,
            writes,
        }
    }

    /// The tile begins.
    ///
    /// # Safety
    /// There are as many records as tiles, and this is the block's tile.
    #[inline(always)]
    pub(crate) unsafe fn begin(self) {
        let who = [
            special::block_idx_x(),
            special::sm_id(),
            self.head,
            self.tile,
        ];
        // SAFETY: the caller's contract.
        unsafe {
            global::st_global_x4_if(self.address, who, self.writes);
            global::st_global_x4_if(self.address + 16, now(), self.writes);
        }
    }

    /// It ends.
    ///
    /// # Safety
    /// As [`Record::begin`].
    #[inline(always)]
    pub(crate) unsafe fn end(self) {
        // SAFETY: the caller's contract.
        unsafe { global::st_global_x4_if(self.address + 32, now(), self.writes) };
    }
}

/// The words of a [`crate::params::Moment`].
#[inline(always)]
fn now() -> [u32; 4] {
    let (ns, cycles) = (special::global_timer(), special::clock64());
    [
        ns as u32,
        (ns >> 32) as u32,
        cycles as u32,
        (cycles >> 32) as u32,
    ]
}
