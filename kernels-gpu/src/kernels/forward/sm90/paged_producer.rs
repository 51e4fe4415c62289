//! K and V out of pages: see [`crate::attention::pages`].
//!
//! The maps of K and V that the launch is given describe the pool, a page as its batch entry. Of a sequence's last page only some rows are
//! the sequence's; its own maps, which the list's kernel has made, end behind them. So what lies there is read as 0, whatever it is.
//!
//! A tile takes as many copies as it has boxes. Each box's page is looked up before the copies of the box in front of it begin, the first
//! one's before the tile's place is empty, so that nothing waits for the table.

use super::Tiles;
use super::layout::{Layout, WorkTile, place};
use super::producer::{NO_ROW, Parts, Producer, load_keys, maps_of_sequence};
use super::scheduler::{Pack, PackGqa};
use crate::attention::lengths::ListedTile;
use crate::attention::pages::{PageRow, n_slots};
use crate::config::TMA_SLOTS;
use crate::kernels::varlen;
use crate::params::{MAX_ROWS, TmaForwardParams};
use crate::ptx::{global, mbarrier, spec};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::BoxedTile;

/// The pages of a sequence.
#[derive(Clone, Copy, Default)]
pub struct SequencePages {
    /// The address of the first tensor map of the pool.
    pub pool: u64,
    /// The number of its first entry of the table.
    entry: u32,
    /// Its first row in its pages.
    first: u32,
    /// How many pages it has, those in front of its first row among them.
    n: u32,
}

/// A place in a sequence's pages, and which page of the pool that is.
#[derive(Clone, Copy)]
pub struct Found {
    place: PageRow,
    page: u32,
}

impl SequencePages {
    /// Of a tile's sequence; `pool` is the address of the launch's first tensor map.
    #[inline(always)]
    pub fn new(p: &TmaForwardParams, pool: u64, tile: ListedTile) -> SequencePages {
        SequencePages {
            pool,
            entry: tile.sequence * p.pages.columns,
            first: tile.k_first,
            n: n_slots(tile.k_first + tile.seqlen_k, p.pages.page_size),
        }
    }

    /// Looks the page of a row of the sequence up; no page, where there are none.
    ///
    /// # Safety
    /// The table has an entry for each of the sequence's pages.
    #[inline(always)]
    pub unsafe fn look_up(self, p: &TmaForwardParams, row: u32) -> Found {
        if !spec::pages() {
            let place = PageRow { slot: 0, row };
            return Found { place, page: 0 };
        }
        let place = PageRow::of_row(self.first + row, p.pages.page_size);
        // SAFETY: the caller's contract.
        let page = unsafe { self.page(p, place) };
        Found { place, page }
    }

    /// The page of a place; of one behind the sequence's last page, any.
    #[inline(always)]
    unsafe fn page(self, p: &TmaForwardParams, place: PageRow) -> u32 {
        if place.slot >= self.n {
            return 0;
        }
        // SAFETY: the caller's contract: the table has the entry.
        unsafe { global::ld_global_u32(p.pages.table + u64::from(self.entry + place.slot) * 4) }
    }

    /// Fills these parts of a tile, the only ones of their barrier, with the sequence's rows from what was found on. `maps` are the addresses of the
    /// sequence's map, and of the pool's.
    ///
    /// # Safety
    /// The tile is empty; maps and table are there.
    #[inline(always)]
    pub unsafe fn fill<T: Tiles>(
        self,
        p: &TmaForwardParams,
        [own, pool]: [u64; 2],
        (tile, parts): (BoxedTile, Parts),
        head_idx: u32,
        found: Found,
        full: u32,
    ) {
        let pages = &p.pages;
        let Found {
            mut place,
            mut page,
        } = found;
        let mut row = 0;
        // SAFETY: the caller's contract.
        unsafe {
            mbarrier::mbarrier_arrive_expect_tx(full, parts.n_bytes(tile.rows));
            while row < tile.rows {
                let is_last = place.slot + 1 >= self.n;
                // Behind the sequence's last page lie zeros.
                let row_of_page = if place.slot < self.n {
                    place.row
                } else {
                    MAX_ROWS
                };
                place.advance(pages.box_rows, pages.page_size);
                // Behind the last box nobody waits for an entry, but the next look-up would come behind it. Where a block has one piece, it is
                // far behind, and the test would cost a register.
                let is_wanted = T::KEY_PIECES == 1 || row + pages.box_rows < tile.rows;
                let next = if is_wanted { self.page(p, place) } else { 0 };
                let map = if is_last { own } else { pool };
                let at = [0, row_of_page, head_idx, page];
                load_keys::<T>(map, tile.from_row(row), parts, at, full);
                page = next;
                row += pages.box_rows;
            }
        }
    }
}

// The thread that loads V where keys and values lie in pages; where values are columns of the keys, a part of these.

/// Whether a thread of its own loads V: out of pages there are many boxes, and a thread is slow to begin a copy. In tiles of three
/// consumers, and in 8 bits, every warp has its work already.
#[inline(always)]
pub fn two_load<T: Tiles>() -> bool {
    T::CONSUMERS < 3 && !T::TRANSPOSES && spec::pages()
}

/// The thread that loads V, if [`two_load`].
///
/// # Safety
/// One thread of the block does it; the barriers have been made.
#[inline(always)]
pub unsafe fn load_values<T: Tiles>(p: &TmaForwardParams, maps: u64, layout: Layout) {
    let packing = PackGqa::new::<T>(p);
    let mut slot = Ring::start(TMA_SLOTS);
    let mut producer = Producer::new::<T>(p, maps, layout);
    // SAFETY: stages are filled when they are empty.
    unsafe {
        loop {
            mbarrier::mbarrier_wait(layout.work_ring.full(slot.stage), slot.parity);
            let work = layout.read_work::<T>(slot.stage);
            if work.blocks == 0 {
                return;
            }
            let listed = layout.read_listed(place(slot, 0));
            mbarrier::mbarrier_arrive_if(layout.work_ring.empty(slot.stage), 1);
            slot.advance();
            let own = maps_of_sequence(p, listed.sequence);
            varlen::acquire_maps(&mut producer.maps, own, [T::VALUES.at(own)]);
            producer.pages = SequencePages::new(p, maps, listed);
            let Pack { kv_head_idx, .. } = packing.pack(p, work.head);
            T::load_values(&mut producer, work, listed.new_maps == 1, kv_head_idx);
        }
    }
}

impl Producer<'_> {
    /// V of a tile, from the last block down.
    ///
    /// # Safety
    /// As [`load_values`].
    #[inline(always)]
    pub unsafe fn load_values<T: Tiles>(
        &mut self,
        work: WorkTile,
        sees_none: bool,
        kv_head_idx: u32,
    ) {
        let mut block = work.blocks;
        while block > 0 {
            block -= 1;
            let row = if sees_none {
                NO_ROW
            } else {
                (work.first_block + block) * T::CONFIG.block_k
            };
            // SAFETY: the caller's contract.
            unsafe { self.load_v::<T>(row, kv_head_idx, 0) };
        }
    }
}
