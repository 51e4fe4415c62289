//! A kernel as Hopper wants it: one producer warpgroup that loads tiles through the copy engine into rings of
//! mbarriers, one or two consumer warpgroups that multiply them with `wgmma`, and a result stored by the copy engine.
//!
//! `o = (q kᵀ) v` for `[rows, 128]` tensors of small whole numbers: attention without softmax. Every block goes through
//! several tiles of rows, so that all buffers are used again.

mod caught;
mod consumer;
mod producer;

use ferroflash_kernels::emu::{self, Fault, GlobalMemory, Launch, Options};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::wgmma::{Descriptor, Types, WgmmaElement};
use ferroflash_kernels::ptx::{barrier, mbarrier, special, warpgroup};
use ferroflash_kernels::spec::Spec;
use half::bf16;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    WrongParity,
    TooFewBytesExpected,
    TooManyBytesExpected,
    NoWaitForFull,
    NoWaitForEmpty,
    ReleasesBeforeWait,
    TooFewArrivalsAtInit,
    TooManyArrivalsAtInit,
    NoInitFence,
    NoBarrierAfterInit,
    InitTwice,
    StoresOverMbarrier,
    ReadsAccumulatorInFlight,
    ScalesAccumulatorInFlight,
    ClearsAccumulatorInFlight,
    NoWgmmaFence,
    NoCommit,
    WaitsForOneTooFew,
    NoWaitForProducts,
    NoProxyFence,
    FencesAfterBarrier,
    NoBarrierBeforeStore,
    OverwritesStaging,
    NoWaitBeforeExit,
    NoStoreCommit,
    WrongStride,
    WrongLeading,
    WrongStep,
    MisalignedTile,
    WrongBarrierId,
    WrongBarrierCount,
    TooManyRegisters,
    OneWarpTakesRegisters,
    ProducerKeepsRegisters,
    ReleasesAfterLdmatrix,
    OneWarpMultipliesLess,
    PrefetchesAtTheEnd,
    ReadsOutputBack,
}

/// Where the consumers take Q from.
#[derive(Clone, Copy, PartialEq)]
enum Q {
    Shared,
    Registers,
}

const HEAD_DIM: u32 = 128;
/// Keys of a block, and rows of a box.
const KEYS: u32 = 64;
/// Bytes of one half of a tile: 64 columns.
const HALF: u32 = 64 * 128;
const TILE: u32 = 2 * HALF;
const STAGES: u32 = 2;
const CONSUMER_THREADS: u32 = 128;

struct E;

impl WgmmaElement for E {
    fn types() -> Types {
        Types::Bf16
    }
}

/// What the kernel is given, and what is wrong with it.
#[derive(Clone, Copy)]
struct Kernel<'a> {
    q: &'a TensorMap,
    k: &'a TensorMap,
    v: &'a TensorMap,
    o: &'a TensorMap,
    o_address: u64,
    seqlen_q: u32,
    seqlen_k: u32,
    consumers: u32,
    q_from: Q,
    bug: Bug,
}

fn address(map: &TensorMap) -> u64 {
    std::ptr::from_ref(map).expose_provenance() as u64
}

/// Which of the rings of barriers.
#[derive(Clone, Copy)]
enum Ring {
    FullK = 0,
    EmptyK = 2,
    FullV = 4,
    EmptyV = 6,
    FullQ = 8,
    EmptyQ = 9,
}

impl Kernel<'_> {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn q_tile(&self, consumer: u32) -> u32 {
        let bent = if self.is(Bug::MisalignedTile) { 64 } else { 0 };
        special::shared_base() + bent + consumer * TILE
    }

    fn staging(&self, consumer: u32) -> u32 {
        special::shared_base() + (self.consumers + consumer) * TILE
    }

    fn k_tile(&self, stage: u32) -> u32 {
        special::shared_base() + (2 * self.consumers + stage) * TILE
    }

    fn v_tile(&self, stage: u32) -> u32 {
        special::shared_base() + (2 * self.consumers + STAGES + stage) * TILE
    }

    fn barrier(&self, ring: Ring, stage: u32) -> u32 {
        self.k_tile(0) + 2 * STAGES * TILE + (ring as u32 + stage) * 8
    }

    fn tiles(&self) -> u32 {
        self.seqlen_q.div_ceil(64 * self.consumers)
    }

    fn blocks(&self) -> u32 {
        self.seqlen_k.div_ceil(KEYS)
    }

    fn make_barriers(&self) {
        let arrivals = match self.bug {
            Bug::TooFewArrivalsAtInit => 4 * self.consumers - 1,
            Bug::TooManyArrivalsAtInit => 4 * self.consumers + 1,
            _ => 4 * self.consumers,
        };
        // SAFETY: one thread makes them, before the block meets.
        unsafe {
            for stage in 0..STAGES {
                for full in [Ring::FullK, Ring::FullV] {
                    mbarrier::mbarrier_init(self.barrier(full, stage), 1);
                }
                for empty in [Ring::EmptyK, Ring::EmptyV] {
                    mbarrier::mbarrier_init(self.barrier(empty, stage), arrivals);
                }
            }
            mbarrier::mbarrier_init(self.barrier(Ring::FullQ, 0), 1);
            mbarrier::mbarrier_init(self.barrier(Ring::EmptyQ, 0), 4 * self.consumers);
            if self.is(Bug::InitTwice) {
                mbarrier::mbarrier_init(self.barrier(Ring::FullQ, 0), 1);
            }
        }
        if !self.is(Bug::NoInitFence) {
            mbarrier::fence_mbarrier_init();
        }
    }

    fn run(&self) {
        let thread = special::thread_idx_x();
        if thread == 0 {
            self.make_barriers();
        }
        // SAFETY: the whole block comes by; what is wrong is wrong on purpose.
        unsafe {
            if !self.is(Bug::NoBarrierAfterInit) {
                barrier::barrier_sync_all();
            }
            if thread < 128 {
                if !self.is(Bug::ProducerKeepsRegisters) {
                    warpgroup::setmaxnreg_dec::<24>();
                }
                if thread == 0 {
                    self.produce();
                }
                return;
            }
            let taken = !self.is(Bug::OneWarpTakesRegisters) || (thread / 32).is_multiple_of(4);
            match self.consumers {
                _ if self.is(Bug::TooManyRegisters) => warpgroup::setmaxnreg_inc::<248>(),
                2 if taken => warpgroup::setmaxnreg_inc::<240>(),
                1 => warpgroup::setmaxnreg_inc::<256>(),
                _ => {}
            }
        }
        self.consume(thread / 128 - 1);
    }
}

/// A descriptor of a tile, its halves `leading` bytes apart.
fn descriptor(address: u32, leading: u32, stride: u32) -> Descriptor {
    Descriptor {
        low: address >> 4 | leading >> 4 << 16,
        high: stride >> 4 | 1 << 30,
    }
}

/// A problem: `rows × keys`, by so many consumer warpgroups.
#[derive(Clone, Copy)]
struct Problem {
    seqlen_q: u32,
    seqlen_k: u32,
    consumers: u32,
    q_from: Q,
}

fn numbers(rows: u32, step: u32) -> Vec<bf16> {
    (0..rows * HEAD_DIM)
        .map(|i| bf16::from_f32((i * step % 7 % 3) as f32 - 1.0))
        .collect()
}

fn tensor_map(base: u64, rows: u32) -> TensorMap {
    TensorMap {
        base,
        sizes: [u64::from(HEAD_DIM), u64::from(rows), 1, 1],
        strides: [u64::from(HEAD_DIM) * 2; 3],
        box_rows: 64,
        box_heads: 1,
        ..TensorMap::default()
    }
}

/// Runs the kernel; whether its result is right.
fn run(problem: Problem, bug: Bug, options: Options) -> Result<bool, Fault> {
    let Problem {
        seqlen_q,
        seqlen_k,
        consumers,
        q_from,
    } = problem;
    let (q, k, v) = (
        numbers(seqlen_q, 5),
        numbers(seqlen_k, 3),
        numbers(seqlen_k, 11),
    );
    let mut o = vec![bf16::NAN; (seqlen_q * HEAD_DIM) as usize];
    let mut memory = GlobalMemory::new();
    let [q_map, k_map, v_map] = [
        ("q", &q, seqlen_q),
        ("k", &k, seqlen_k),
        ("v", &v, seqlen_k),
    ]
    .map(|(name, data, rows)| tensor_map(memory.input(name, data), rows));
    let o_map = tensor_map(memory.output("o", &mut o), seqlen_q);
    let kernel = Kernel {
        q: &q_map,
        k: &k_map,
        v: &v_map,
        o: &o_map,
        o_address: o_map.base,
        seqlen_q,
        seqlen_k,
        consumers,
        q_from,
        bug,
    };
    let launch = Launch {
        grid: 1,
        threads: 128 + CONSUMER_THREADS * consumers,
        shared_bytes: kernel_shared_bytes(consumers),
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    emu::run(&launch, &options, &mut memory, &|| kernel.run())?;
    if bug == Bug::None {
        assert_eq!(memory.first_unwritten("o"), None);
    }
    drop(memory);
    Ok(o == expected(&q, &k, &v))
}

fn kernel_shared_bytes(consumers: u32) -> u32 {
    (2 * consumers + 2 * STAGES) * TILE + 128
}

/// `(q kᵀ) v`; all sums are exact, and rounded once at the end.
fn expected(q: &[bf16], k: &[bf16], v: &[bf16]) -> Vec<bf16> {
    let head_dim = HEAD_DIM as usize;
    let mut o = Vec::new();
    for q in q.chunks(head_dim) {
        let mut sums = vec![0.0f32; head_dim];
        for (k, v) in k.chunks(head_dim).zip(v.chunks(head_dim)) {
            let score: f32 = q.iter().zip(k).map(|(q, k)| q.to_f32() * k.to_f32()).sum();
            for (sum, v) in sums.iter_mut().zip(v) {
                *sum += score * v.to_f32();
            }
        }
        o.extend(sums.into_iter().map(bf16::from_f32));
    }
    o
}
