//! Tensor maps in global memory, which one block makes and another has the copy engine use.

mod misuse;

use ferroflash_kernels::emu::{
    self, Asynchronous, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options, Plain,
};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{atomic, barrier, mbarrier, shared, special, tensor_map, tma};
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::tile;
use ferroflash_kernels::tile::shared::SharedTile;

use crate::accept;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// Right as well: the user of the map releases it, having heard that it is made.
    UserReleases,
    /// Right as well: an earlier launch makes the map.
    EarlierLaunch,
    /// Right as well: an earlier launch makes it, this one releases it.
    EarlierLaunchUserReleases,
    /// Right as well: the host has written the map.
    HostMakes,
    /// Right as well: when the map has been used, another is made in its place.
    MakesAnother,
    NoRelease,
    ReleasesTooEarly,
    ReleasesTooLate,
    NoAcquire,
    AcquiresTooEarly,
    AcquiresBeforeRelease,
    AcquiresTheWrongMap,
    AnotherThreadAcquires,
    EarlierLaunchNoRelease,
    EarlierLaunchNoAcquire,
    HostMakesNoAcquire,
    UsedBeforeItIsMade,
    MakesAnotherDuringLoad,
    MakesAnotherDuringStore,
    MakesAnotherNoRelease,
    MakesAnotherNoAcquire,
    NotCopied,
    NoRows,
    NoAddress,
}

const THREADS: u32 = 64;
/// Rows of the tensor, of 64 columns; all words of a row are its number, from 1.
const ROWS: u32 = 24;
/// The row at which the made map's tensor begins, and how many rows it has.
const FIRST: u32 = 4;
const FEWER: u32 = 13;
const BOX_ROWS: u32 = 8;
const BOX: u32 = BOX_ROWS * 128;
/// Where a box begins that hangs over the last row.
const AT: u32 = 8;

/// A row, or a map: aligned as maps are.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
struct Line([u64; 16]);

// SAFETY: numbers, without padding.
unsafe impl Plain for Line {}

fn line(row: u32) -> Line {
    Line([u64::from(row + 1) * 0x1_0000_0001; 16])
}

/// The map of the whole tensor.
fn whole(tensor: u64) -> TensorMap {
    TensorMap {
        base: tensor,
        sizes: [64, ROWS.into(), 1, 1],
        strides: [128, 1 << 20, 1 << 20],
        box_rows: BOX_ROWS.into(),
        box_heads: 1,
        ..TensorMap::default()
    }
}

fn bar() -> u32 {
    special::shared_base() + BOX
}

/// The first word of a row of the box that has arrived.
fn arrived(row: u32) -> u32 {
    let tile = SharedTile {
        base: special::shared_base(),
        row_bytes: 128,
    };
    // SAFETY: the thread has waited for the box.
    unsafe { shared::ld_shared_u32(tile.pair(row, 0)) }
}

struct Kernel {
    whole: TensorMap,
    /// Two maps: the one that is made, and another.
    maps: u64,
    tensor: u64,
    flag: u64,
    bug: Bug,
}

impl Kernel {
    fn is(&self, bugs: &[Bug]) -> bool {
        bugs.contains(&self.bug)
    }

    /// Copies the map of the whole tensor, and changes where it begins and how many rows it has.
    fn make(&self, rows: u32) {
        let from = std::ptr::from_ref(&self.whole).expose_provenance() as u64;
        // SAFETY: nobody else uses the map, or it is wrong on purpose.
        unsafe {
            if !self.is(&[Bug::NotCopied]) {
                tile::tensor_map::copy(from, self.maps);
            }
            let address = match self.bug {
                Bug::NoAddress => 0,
                _ => self.tensor + u64::from(FIRST) * 128,
            };
            tensor_map::replace_address(self.maps, address);
            if self.is(&[Bug::ReleasesTooEarly]) {
                tensor_map::fence_tensor_map_release();
            }
            tensor_map::replace_rows(self.maps, rows);
        }
    }

    /// The first block's part: one thread makes the map.
    fn give(&self) {
        use Bug::*;
        if special::thread_idx_x() != 0 {
            return;
        }
        self.make(if self.is(&[NoRows]) { 0 } else { FEWER });
        match self.bug {
            UserReleases | EarlierLaunchUserReleases | AcquiresBeforeRelease => {}
            NoRelease | ReleasesTooEarly | ReleasesTooLate | EarlierLaunchNoRelease => {}
            _ => tensor_map::fence_tensor_map_release(),
        }
        // SAFETY: the flag was set before the launch.
        unsafe { atomic::st_release_u32(self.flag, 1) };
        if self.is(&[ReleasesTooLate]) {
            tensor_map::fence_tensor_map_release();
        }
    }

    fn acquire(&self, map: u64) {
        // SAFETY: a map lies there, or will.
        unsafe { tensor_map::fence_tensor_map_acquire(map) };
    }

    /// The thread that is to use the map hears that it is made, and fences.
    fn hear(&self) {
        use Bug::*;
        if self.is(&[AcquiresTooEarly]) {
            self.acquire(self.maps);
        }
        // SAFETY: the flag was set before the launch.
        while !self.is(&[UsedBeforeItIsMade]) && unsafe { atomic::ld_acquire_u32(self.flag) } == 0 {
        }
        match self.bug {
            UserReleases | EarlierLaunchUserReleases => tensor_map::fence_tensor_map_release(),
            AcquiresBeforeRelease => {
                self.acquire(self.maps);
                tensor_map::fence_tensor_map_release();
            }
            _ => {}
        }
        match self.bug {
            NoAcquire | EarlierLaunchNoAcquire | HostMakesNoAcquire => {}
            AcquiresTooEarly | AcquiresBeforeRelease | AnotherThreadAcquires => {}
            AcquiresTheWrongMap => self.acquire(self.maps + 128),
            _ => self.acquire(self.maps),
        }
    }

    fn load(&self, row: u32) {
        // SAFETY: the barrier was made; what is wrong with the map is wrong on purpose.
        unsafe {
            mbarrier::mbarrier_arrive_expect_tx(bar(), BOX);
            tma::tma_load(special::shared_base(), self.maps, [0, row, 0, 0], bar());
        }
    }

    /// Loads a box that hangs over the last row, and stores it one row further on.
    fn use_map(&self) {
        self.load(AT);
        if self.is(&[Bug::MakesAnotherDuringLoad]) {
            self.make(FEWER);
        }
        // SAFETY: the barrier was made; the box has arrived.
        unsafe {
            mbarrier::mbarrier_wait(bar(), 0);
            for row in 0..BOX_ROWS {
                let is_inside = AT + row < FEWER;
                let expected = if is_inside { FIRST + AT + row + 1 } else { 0 };
                assert_eq!(arrived(row), expected, "row {row} of the box");
            }
            tma::tma_store_if(self.maps, [0, AT + 1, 0, 0], special::shared_base(), 1);
        }
        tma::bulk_commit_group();
        if self.is(&[Bug::MakesAnotherDuringStore]) {
            tma::bulk_wait_group_read::<0>();
            self.make(FEWER);
        }
        tma::bulk_wait_group::<0>();
    }

    /// Makes a map of more rows in place of the one that was used, and loads what is behind the last row of that.
    fn use_another(&self) {
        self.make(ROWS - FIRST);
        if !self.is(&[Bug::MakesAnotherNoRelease]) {
            tensor_map::fence_tensor_map_release();
        }
        if !self.is(&[Bug::MakesAnotherNoAcquire]) {
            self.acquire(self.maps);
        }
        self.load(FEWER);
        // SAFETY: the barrier was made.
        unsafe { mbarrier::mbarrier_wait(bar(), 1) };
        assert_eq!(arrived(0), FIRST + FEWER + 1);
    }

    /// The second block's part: one thread uses the map.
    fn take(&self) {
        use Bug::*;
        let thread = special::thread_idx_x();
        // SAFETY: the whole block comes by.
        unsafe {
            if thread == 33 {
                mbarrier::mbarrier_init(bar(), 1);
                mbarrier::fence_mbarrier_init();
                self.hear();
            }
            barrier::barrier_sync_all();
            if thread == 32 && self.is(&[AnotherThreadAcquires]) {
                self.acquire(self.maps);
            }
            barrier::barrier_sync_all();
        }
        if thread == 33 {
            self.use_map();
            if self.is(&[MakesAnother, MakesAnotherNoRelease, MakesAnotherNoAcquire]) {
                self.use_another();
            }
        }
    }
}

/// What the tensor holds in the end: four rows of the box that was stored lie inside.
fn expected(row: u32) -> Line {
    let stored = FIRST + AT + 1..FIRST + FEWER;
    line(if stored.contains(&row) { row - 1 } else { row })
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    use Bug::*;
    let mut tensor: Vec<Line> = (0..ROWS).map(line).collect();
    let (mut maps, mut flag) = ([Line([0; 16]); 2], [0u32]);
    let host_makes = matches!(bug, HostMakes | HostMakesNoAcquire);
    let mut memory = GlobalMemory::new();
    let base = memory.in_out("tensor", &mut tensor);
    let made = TensorMap {
        base: base + u64::from(FIRST) * 128,
        sizes: [64, FEWER.into(), 1, 1],
        ..whole(base)
    };
    if host_makes {
        let TensorMap {
            base,
            sizes: [s0, s1, s2, s3],
            strides: [r0, r1, r2],
            box_rows,
            box_heads,
            element_bytes,
            reserved: _,
        } = made;
        maps[0].0[..9].copy_from_slice(&[base, s0, s1, s2, s3, r0, r1, r2, box_rows]);
        maps[0].0[9..11].copy_from_slice(&[box_heads, element_bytes]);
        flag[0] = 1;
    }
    let kernel = Kernel {
        whole: whole(base),
        maps: match host_makes {
            true => memory.input("maps", &maps),
            false => memory.output("maps", &mut maps),
        },
        tensor: base,
        flag: memory.in_out("flag", &mut flag),
        bug,
    };
    let launch = Launch {
        grid: 1,
        threads: THREADS,
        shared_bytes: BOX + 8,
        resident_blocks: 2,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    match bug {
        EarlierLaunch
        | EarlierLaunchUserReleases
        | EarlierLaunchNoRelease
        | EarlierLaunchNoAcquire => {
            emu::run(&launch, &options, &mut memory, &|| kernel.give())?;
            emu::run(&launch, &options, &mut memory, &|| kernel.take())?;
        }
        HostMakes | HostMakesNoAcquire => {
            emu::run(&launch, &options, &mut memory, &|| kernel.take())?;
        }
        _ => {
            let both = Launch { grid: 2, ..launch };
            emu::run(
                &both,
                &options,
                &mut memory,
                &|| match special::block_idx_x() {
                    0 => kernel.give(),
                    _ => kernel.take(),
                },
            )?;
        }
    }
    drop(memory);
    Ok((0..ROWS).all(|row| tensor[row as usize].0 == expected(row).0))
}

/// Boxes end at the replaced rows: what is loaded from behind them is 0, and nothing is stored there.
#[test]
fn the_right_kernels_pass() {
    let right = [
        Bug::None,
        Bug::UserReleases,
        Bug::EarlierLaunch,
        Bug::EarlierLaunchUserReleases,
        Bug::HostMakes,
        Bug::MakesAnother,
    ];
    for bug in right {
        accept(|options| run(bug, options));
    }
}

fn lacks(kind: &Kind, wanted: &str) -> bool {
    match kind {
        Kind::Asynchronous(Asynchronous::TensorMapUnfenced { fence, .. }) => *fence == wanted,
        _ => false,
    }
}

fn no_release(kind: &Kind) -> bool {
    lacks(kind, "fence.proxy.tensormap release")
}

fn no_acquire(kind: &Kind) -> bool {
    lacks(kind, "fence.proxy.tensormap acquire")
}

fn race(kind: &Kind) -> bool {
    matches!(kind, Kind::Race { place: MemoryLocation::Global { buffer, .. }, .. } if buffer == "maps")
}

fn nothing_there(kind: &Kind) -> bool {
    matches!(kind, Kind::Uninitialised { .. })
}

caught! {
    a_map_that_nobody_releases: NoRelease => no_release;
    a_release_before_the_last_change: ReleasesTooEarly => no_release;
    a_release_after_the_hand_over: ReleasesTooLate => no_release;
    a_map_that_nobody_acquires: NoAcquire => no_acquire;
    a_map_acquired_before_it_is_made: AcquiresTooEarly => no_acquire;
    a_map_acquired_before_it_is_released: AcquiresBeforeRelease => no_acquire;
    another_map_is_acquired: AcquiresTheWrongMap => no_acquire;
    another_thread_acquires: AnotherThreadAcquires => no_acquire;
    a_map_that_an_earlier_launch_did_not_release: EarlierLaunchNoRelease => no_release;
    an_earlier_launchs_map_that_nobody_acquires: EarlierLaunchNoAcquire => no_acquire;
    the_hosts_map_that_nobody_acquires: HostMakesNoAcquire => no_acquire;
    a_map_used_before_it_is_made: UsedBeforeItIsMade => |kind| race(kind) || nothing_there(kind);
    a_map_changed_while_it_loads: MakesAnotherDuringLoad => race;
    a_map_changed_while_it_stores: MakesAnotherDuringStore => race;
    another_map_in_its_place_that_nobody_releases: MakesAnotherNoRelease => no_release;
    another_map_in_its_place_that_nobody_acquires: MakesAnotherNoAcquire => no_acquire;
    a_change_of_what_is_no_map: NotCopied => nothing_there;
    a_map_without_rows: NoRows => |kind| matches!(kind, Kind::Operand { value: 0, .. });
    a_map_of_no_memory: NoAddress => |kind| matches!(kind, Kind::OutOfBounds { .. });
}
