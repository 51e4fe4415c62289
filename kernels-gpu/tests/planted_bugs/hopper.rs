//! Hopper's instructions one by one: what each refuses, and what the copy engine makes of edges.

mod accesses;
mod copies;
mod products;
mod stores;

use ferroflash_kernels::emu::{self, Asynchronous, Fault, GlobalMemory, Kind, Launch, Options};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::special;
use ferroflash_kernels::spec::Spec;

use crate::SEEDS;

const SHARED: u32 = 32 << 10;
/// Columns, rows, heads and batch entries of the tensors.
const SIZES: [usize; 4] = [72, 20, 3, 2];
const ROWS: usize = 16;

fn map(base: u64) -> TensorMap {
    let row = SIZES[0] as u64 * 2;
    TensorMap {
        base,
        sizes: SIZES.map(|size| size as u64),
        strides: [row, row * 20, row * 60],
        box_rows: ROWS as u64,
        box_heads: 1,
        ..TensorMap::default()
    }
}

/// What a kernel is given.
struct Given {
    input: TensorMap,
    output: TensorMap,
}

fn address(map: &TensorMap) -> u64 {
    std::ptr::from_ref(map).expose_provenance() as u64
}

/// An address in shared memory.
fn at(offset: u32) -> u32 {
    special::shared_base() + offset
}

fn elements() -> usize {
    SIZES.iter().product()
}

/// Runs a kernel of one block; what it has stored.
fn run(threads: u32, seed: u64, kernel: impl Fn(&Given)) -> Result<Vec<u16>, Fault> {
    let input: Vec<u16> = (0..elements()).map(|i| i as u16 + 1).collect();
    let mut output = vec![0u16; elements()];
    let mut memory = GlobalMemory::new();
    let given = Given {
        input: map(memory.input("input", &input)),
        output: map(memory.output("output", &mut output)),
    };
    let launch = Launch {
        grid: 1,
        threads,
        shared_bytes: SHARED,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &Options::seeded(seed), &mut memory, &|| {
        kernel(&given)
    })?;
    drop(memory);
    Ok(output)
}

fn found(threads: u32, accepts: impl Fn(&Kind) -> bool, kernel: impl Fn(&Given)) {
    for seed in SEEDS {
        match run(threads, seed, &kernel) {
            Ok(_) => panic!("seed {seed}: nothing was found"),
            Err(fault) => assert!(accepts(fault.kind()), "seed {seed}: {fault}"),
        }
    }
}

fn accepted(threads: u32, kernel: impl Fn(&Given)) {
    for seed in SEEDS {
        if let Err(fault) = run(threads, seed, &kernel) {
            panic!("seed {seed}: a false alarm: {fault}");
        }
    }
}

fn operand(kind: &Kind) -> bool {
    matches!(kind, Kind::Operand { .. })
}

fn asynchronous(accepts: impl Fn(&Asynchronous) -> bool) -> impl Fn(&Kind) -> bool {
    move |kind| matches!(kind, Kind::Asynchronous(what) if accepts(what))
}
