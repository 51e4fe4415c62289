//! Rows appended to a cache: rotated in place, written where a length in device memory says, and counted.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{global, special};
use ferroflash_kernels::spec::Spec;

use crate::accept;

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Each thread turns one element in place, and reads the other one of its pair.
    OneElementEach,
    /// A row behind the cache's last one is written.
    NoBound,
    /// A negative length counts as a large one: its rows lie before the cache.
    NoSign,
    /// The new length takes the place of the old one, which other blocks still read.
    LengthInPlace,
    /// Reads what the cache holds where nothing has been written.
    ReadsTheCache,
}

/// Elements of a row: a warp's.
const ROW: u32 = 32;
/// Rows of a sequence in the cache.
const CACHE: u32 = 4;
/// One has rows, one has negative ones, one is full.
const SEQUSED: [i32; 3] = [1, -2, 4];
const BLOCKS: u32 = SEQUSED.len() as u32 * 2;

/// A row of each of three sequences, rotated in place by a quarter and appended; two blocks a sequence, a half of the row each.
#[derive(Clone, Copy)]
struct Append {
    rows: u64,
    cache: u64,
    seqused: u64,
    seqused_out: u64,
    bug: Bug,
}

impl Append {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// Pairs are elements i and i + 16; a block has the pairs of one half of them, and the first half of its threads work.
    unsafe fn run(&self) {
        let (sequence, half) = (special::block_idx_x() / 2, special::block_idx_x() % 2);
        let thread = special::thread_idx_x();
        let element = |base: u64, at: u32| base + u64::from(at) * 4;
        // SAFETY: the buffers have the elements; what is wrong is wrong on purpose.
        unsafe {
            let first = global::ld_global_u32(element(self.seqused, sequence)) as i32;
            if half == 0 && thread == 0 {
                let to = if self.is(Bug::LengthInPlace) {
                    self.seqused
                } else {
                    self.seqused_out
                };
                let len = (first + 1).clamp(0, CACHE as i32) as u32;
                global::st_global_u32(element(to, sequence), len);
            }
            let own = element(self.rows, sequence * ROW);
            let pair = half * 8 + thread % 8;
            if thread >= 16 {
                return;
            }
            if self.is(Bug::OneElementEach) {
                let (mine, other) = if thread < 8 {
                    (pair, pair + 16)
                } else {
                    (pair + 16, pair)
                };
                let x = global::ld_global_u32(element(own, other));
                global::st_global_u32(element(own, mine), x);
                return;
            }
            if thread >= 8 {
                return;
            }
            let (a, b) = (element(own, pair), element(own, pair + 16));
            let (x, y) = (global::ld_global_u32(a), global::ld_global_u32(b));
            global::st_global_u32(a, y);
            global::st_global_u32(b, x);
            let is_there = (0..CACHE as i32).contains(&first);
            let asked = match self.bug {
                Bug::NoBound => first >= 0,
                Bug::NoSign => first < CACHE as i32,
                _ => is_there,
            };
            if asked {
                let row = i64::from(sequence * CACHE) + i64::from(first);
                let at = |i: u32| {
                    let elements = row * i64::from(ROW) + i64::from(i);
                    self.cache.wrapping_add((elements * 4) as u64)
                };
                let before = if self.is(Bug::ReadsTheCache) {
                    global::ld_global_u32(at(pair)) & 1
                } else {
                    0
                };
                global::st_global_u32(at(pair), y + before);
                global::st_global_u32(at(pair + 16), x);
            }
        }
    }
}

fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let mut rows: Vec<u32> = (0..3 * ROW).collect();
    // The last sequence is the one behind which there is no other, and the first the one before which there is none.
    let seqused = match bug {
        Bug::NoSign => [-2, 1, 4],
        _ => SEQUSED,
    };
    let mut lengths = seqused;
    let (mut cache, mut after) = (vec![u32::MAX; (3 * CACHE * ROW) as usize], [-1i32; 3]);
    let mut memory = GlobalMemory::new();
    let append = Append {
        rows: memory.in_out("rows", &mut rows),
        cache: memory.output("cache", &mut cache),
        seqused: memory.in_out("seqused", &mut lengths),
        seqused_out: memory.output("seqused_out", &mut after),
        bug,
    };
    let launch = Launch {
        grid: BLOCKS,
        threads: 32,
        shared_bytes: 0,
        resident_blocks: BLOCKS,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    // SAFETY: the emulator checks every access.
    emu::run(&launch, &options, &mut memory, &|| unsafe { append.run() })?;
    drop(memory);
    let rotated = |sequence: u32, i: u32| sequence * ROW + (i + 16) % ROW;
    let is_turned = (0..3 * ROW).all(|at| rows[at as usize] == rotated(at / ROW, at % ROW));
    let row = |at: u32| &cache[(at * ROW) as usize..][..ROW as usize];
    let is_appended = (0..3 * CACHE).all(|at| match at {
        1 => row(at).iter().zip(0..).all(|(&x, i)| x == rotated(0, i)),
        _ => row(at).iter().all(|&x| x == u32::MAX),
    });
    Ok(is_turned && is_appended && after == [2, 0, 4])
}

#[test]
fn the_right_kernel_is_right() {
    accept(|options| run(Bug::None, options));
}

/// Whether a fault is in this buffer.
fn is_in(place: &MemoryLocation, name: &str) -> bool {
    matches!(place, MemoryLocation::Global { buffer, .. } if buffer == name)
}

caught! {
    elements_turned_by_two_threads_race: OneElementEach => |kind| matches!(kind, Kind::Race { .. });
    a_row_behind_the_cache_is_out_of_bounds: NoBound => |kind| matches!(kind, Kind::OutOfBounds { place, .. } if is_in(place, "cache"));
    a_row_before_the_cache_is_out_of_bounds: NoSign => |kind| matches!(kind, Kind::OutOfBounds { .. });
    a_length_that_others_read_races: LengthInPlace => |kind| matches!(kind, Kind::Race { .. });
    an_unused_row_is_uninitialised: ReadsTheCache => |kind| matches!(kind, Kind::Uninitialised { .. });
}
