//! The first kernel of the book (`docs/src/kernel.md`): the sums of rows, a warp for each. One line of it keeps lanes in order, and without that
//! line the emulator names a race, in the words that the book quotes.

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Kind, Launch, MemoryLocation, Options};
use ferroflash_kernels::ptx::{barrier, global, shared, special};
use ferroflash_kernels::spec::Spec;

use crate::{SEEDS, accept};

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    NoWarpSync,
}

const WARPS: u32 = 2;

#[derive(Clone, Copy)]
struct RowSums {
    input: u64,
    output: u64,
    bug: Bug,
}

impl RowSums {
    // ANCHOR: kernel
    /// `output[row]` = the sum of the 32 numbers of the row.
    fn kernel(&self) {
        let (row, lane) = (special::thread_idx_x() / 32, special::lane_idx());
        let slots = special::shared_base() + row * 128;
        // SAFETY: whole warps come by; addresses lie in the block's memory and in the buffers.
        unsafe {
            let x = global::ld_global_f32(self.input + u64::from(row * 32 + lane) * 4);
            shared::st_shared_f32(slots + lane * 4, x);
            if self.bug != Bug::NoWarpSync {
                barrier::warp_sync();
            }
            if lane == 0 {
                let mut sum = 0.0;
                for other in 0..32 {
                    sum += shared::ld_shared_f32(slots + other * 4);
                }
                global::st_global_f32(self.output + u64::from(row) * 4, sum);
            }
        }
    }
    // ANCHOR_END: kernel
}

// ANCHOR: run
fn run(bug: Bug, options: Options) -> Result<bool, Fault> {
    let input: Vec<f32> = (0..WARPS * 32).map(|i| i as f32).collect();
    let mut output = vec![f32::NAN; WARPS as usize];
    let mut memory = GlobalMemory::new();
    let kernel = RowSums {
        input: memory.input("input", &input),
        output: memory.output("output", &mut output),
        bug,
    };
    let launch = Launch {
        grid: 1,
        threads: WARPS * 32,
        shared_bytes: WARPS * 128,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.kernel())?;
    let sums = input.chunks(32).map(|row| row.iter().sum::<f32>());
    Ok(sums.eq(output))
}
// ANCHOR_END: run

#[test]
fn the_right_kernel_passes() {
    accept(|options| run(Bug::None, options));
}

caught! {
    lanes_that_do_not_meet: NoWarpSync => |kind| {
        matches!(kind, Kind::Race { place: MemoryLocation::Shared(_), .. } | Kind::Uninitialised { .. })
    };
}

/// Without the numbers of lines, which change.
fn without_lines(text: &str) -> String {
    let mut parts = text.split(".rs:");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(".rs");
        kept.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':'));
    }
    kept
}

#[test]
fn the_book_quotes_the_race() {
    let chapter = include_str!("../../../docs/src/kernel.md");
    let quoted = chapter.split_whitespace().collect::<Vec<_>>().join(" ");
    let faults = SEEDS.filter_map(|seed| run(Bug::NoWarpSync, Options::seeded(seed)).err());
    let races: Vec<String> = faults
        .filter(|fault| matches!(fault.kind(), Kind::Race { .. }))
        .map(|fault| without_lines(&fault.to_string()))
        .collect();
    assert!(races.iter().any(|race| quoted.contains(race)), "{races:#?}");
}
