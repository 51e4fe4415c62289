//! A sequence in pages of a pool, behind padding: rows are appended where a table says, and copied by the copy engine row by row.

use ferroflash_kernels::attention::pages::{PageRow, n_slots, rows_of_last};
use ferroflash_kernels::emu::{
    self, Asynchronous, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options,
};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{barrier, global, mbarrier, shared, special, tma};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::tile::shared::SharedTile;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Right as well: rows are appended and read in one launch, and a fence is between.
    OneLaunch,
    /// Right as well: a page that the pool does not have is read as zeros.
    PageBeyondPool,
    /// One launch, and no fence.
    OneLaunchNoFence,
    /// One launch, and a page is read before another thread has entered it into the table.
    StaleEntry,
    /// Each page is looked up one entry too late.
    WrongPage,
    /// Rows are looked up as if the sequence began with its first page's first row.
    PaddingForgotten,
    /// The last page is read with all its rows.
    WholeLastPage,
    /// A page that the pool does not have is read by its address.
    PageBeyondPoolByAddress,
}

const THREADS: u32 = 32;
const PAGE_SIZE: u32 = 4;
const N_PAGES: u32 = 3;
/// The sequence's first row in its pages.
const FIRST: u32 = 1;
/// Rows of the sequence: it ends in the middle of its second page.
const LEN: u32 = 6;
/// Words of a row of 128 bytes.
const ROW: u32 = 32;
const PAGE_WORDS: u32 = PAGE_SIZE * ROW;
/// Behind the sequence's pages, the table names none.
const TABLE: [u32; 4] = [2, 0, 9, 9];
const TILE_BYTES: u32 = 2 * PAGE_WORDS * 4;

/// The map of the pool with so many rows of each page.
fn map(pool: u64, rows: u32) -> TensorMap {
    let row = u64::from(ROW) * 4;
    TensorMap {
        base: pool,
        sizes: [u64::from(ROW) * 2, rows.into(), 1, N_PAGES.into()],
        strides: [row, row, row * u64::from(PAGE_SIZE)],
        box_rows: 1,
        box_heads: 1,
        ..TensorMap::default()
    }
}

struct Kernel {
    pool_map: TensorMap,
    own_map: TensorMap,
    pool: u64,
    table: u64,
    sums: u64,
    bug: Bug,
}

impl Kernel {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn page(&self, slot: u32) -> u32 {
        let slot = if self.is(Bug::WrongPage) {
            slot + 1
        } else {
            slot
        };
        // SAFETY: the table has the entry.
        unsafe { global::ld_global_u32(self.table + u64::from(slot) * 4) }
    }

    /// Each thread writes a column of all rows: the row's number, from 1.
    fn append(&self) {
        for row in 0..LEN {
            let PageRow { slot, row: of_page } = PageRow::of_row(FIRST + row, PAGE_SIZE);
            // SAFETY: the pool has the page that the table names here.
            unsafe {
                let page = global::ld_global_u32(self.table + u64::from(slot) * 4);
                let at = page * PAGE_WORDS + of_page * ROW + special::thread_idx_x();
                global::st_global_u32(self.pool + u64::from(at) * 4, row + 1);
            }
        }
    }

    /// Copies as many rows as two pages have, and sums up a word of each.
    fn read(&self) {
        let (base, bar) = (special::shared_base(), special::shared_base() + TILE_BYTES);
        let address = |map: &TensorMap| std::ptr::from_ref(map).expose_provenance() as u64;
        // SAFETY: one thread comes here; what is wrong is wrong on purpose.
        unsafe {
            mbarrier::mbarrier_init(bar, 1);
            mbarrier::fence_mbarrier_init();
            mbarrier::mbarrier_arrive_expect_tx(bar, TILE_BYTES);
            let first = match self.is(Bug::PaddingForgotten) {
                true => 0,
                false => FIRST,
            };
            for row in 0..2 * PAGE_SIZE {
                let place = PageRow::of_row(first + row, PAGE_SIZE);
                let is_last = place.slot + 1 == n_slots(FIRST + LEN, PAGE_SIZE);
                let map = match is_last && !self.is(Bug::WholeLastPage) {
                    true => &self.own_map,
                    false => &self.pool_map,
                };
                let slot = match place.slot < 2 && !self.is(Bug::PageBeyondPool) {
                    true => place.slot,
                    false => 2,
                };
                let to = base + row * ROW * 4;
                tma::tma_load(to, address(map), [0, place.row, 0, self.page(slot)], bar);
            }
            mbarrier::mbarrier_wait(bar, 0);
            let tile = SharedTile {
                base,
                row_bytes: 128,
            };
            let mut sum = 0;
            for row in 0..2 * PAGE_SIZE {
                sum += shared::ld_shared_u32(tile.pair(row, 0));
            }
            if self.is(Bug::PageBeyondPoolByAddress) {
                let at = u64::from(self.page(2) * PAGE_WORDS) * 4;
                sum += global::ld_global_u32(self.pool + at);
            }
            global::st_global_u32(self.sums, sum);
        }
    }

    fn both(&self) {
        let thread = special::thread_idx_x();
        if self.is(Bug::StaleEntry) && thread == 1 {
            // SAFETY: the table has the entry.
            unsafe { global::st_global_u32(self.table, TABLE[0]) };
        }
        self.append();
        if !self.is(Bug::OneLaunchNoFence) {
            tma::fence_proxy_async_global();
        }
        // SAFETY: all threads come here.
        unsafe { barrier::barrier_sync_all() };
        if thread == 0 {
            self.read();
        }
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let mut pool = vec![0u32; (N_PAGES * PAGE_WORDS) as usize];
    let (mut table, mut sums) = (TABLE, [0u32]);
    let mut memory = GlobalMemory::new();
    // Rows that nobody writes are uninitialised.
    let base = memory.output("pool", &mut pool);
    let kernel = Kernel {
        pool_map: map(base, PAGE_SIZE),
        own_map: map(base, rows_of_last(FIRST + LEN, PAGE_SIZE)),
        pool: base,
        table: memory.in_out("table", &mut table),
        sums: memory.output("sums", &mut sums),
        bug,
    };
    let launch = Launch {
        grid: 1,
        threads: THREADS,
        shared_bytes: TILE_BYTES + 8,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    match bug {
        Bug::OneLaunch | Bug::OneLaunchNoFence | Bug::StaleEntry => {
            emu::run(&launch, &options, &mut memory, &|| kernel.both())?;
        }
        _ => {
            emu::run(&launch, &options, &mut memory, &|| kernel.append())?;
            emu::run(&launch, &options, &mut memory, &|| {
                if special::thread_idx_x() == 0 {
                    kernel.read();
                }
            })?;
        }
    }
    drop(memory);
    let expected = match bug {
        Bug::PageBeyondPool => 0,
        _ => LEN * (LEN + 1) / 2,
    };
    Ok(sums[0] == expected)
}

#[test]
fn the_right_kernels_are_right() {
    for bug in [Bug::None, Bug::OneLaunch, Bug::PageBeyondPool] {
        accept(|options| run(bug, options));
    }
}

/// Whether a fault is in this buffer.
fn is_in(place: &MemoryLocation, name: &str) -> bool {
    matches!(place, MemoryLocation::Global { buffer, .. } if buffer == name)
}

caught! {
    an_entry_that_another_thread_makes_races: StaleEntry => |kind| matches!(kind, Kind::Race { .. });
    a_page_of_nobody_is_uninitialised: WrongPage => |kind| matches!(kind, Kind::Uninitialised { .. });
    rows_in_front_of_the_first_are_uninitialised: PaddingForgotten => |kind| matches!(kind, Kind::Uninitialised { .. });
    rows_behind_the_end_are_uninitialised: WholeLastPage => |kind| matches!(kind, Kind::Uninitialised { .. });
    a_page_beyond_the_pool_is_out_of_bounds: PageBeyondPoolByAddress => |kind| matches!(kind, Kind::OutOfBounds { place, .. } if is_in(place, "pool"));
    rows_appended_without_a_fence_are_not_seen: OneLaunchNoFence => |kind| matches!(kind, Kind::Asynchronous(Asynchronous::Unfenced { .. }));
}
