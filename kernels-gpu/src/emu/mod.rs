//! The machine behind the CPU bodies of [`crate::ptx`]: it runs a kernel's own source, thread for thread, and checks
//! what the hardware leaves undefined.
//!
//! Every CUDA thread is a coroutine. Instructions that want a whole warp are a rendezvous of its lanes. The order of
//! warps, of lanes, of the blocks' progress and of the arrival of asynchronous copies comes from a seed: the same
//! seed gives the same run. Found, each with the source lines of both sides ([`Fault`]): data races in shared and
//! global memory (by vector clocks, so whichever order the seed gives), reads of memory that nobody wrote, accesses
//! out of bounds or misaligned, accesses to the destination of a copy in flight, lanes that diverge, barriers that
//! disagree, deadlocks, and what a kernel leaves unfinished when it ends.
//!
//! Of Hopper: the copy engine is one more agent, which moves the boxes of tensor maps at random moments, or only when
//! nothing else can go on; barriers of shared memory count its bytes. Products of warpgroups take their operands at any
//! moment until they are waited for, and meanwhile their accumulators hold NaN. Whatever may be read or written over
//! a time is checked over all of it, so that no seed is needed in which it goes wrong. Checked besides: the fences that
//! the copy engine and the tensor cores want, in shared and global memory and for tensor maps that kernels make, the phases
//! and counts of barriers, that the warps of a warpgroup do the same, and the registers that they hand each other
//! ([`Asynchronous`]).
//!
//! Of clusters: the blocks of one are resident together and reach each other's shared memory by stores, asynchronous stores,
//! copies and multicast, with the same checks as their own. An address has the block's rank from bit 24 on, as on an H200.
//! Clocks are joined across blocks by the cluster's barrier, by arrivals and by bytes that land. A wait in the block's scope does
//! not acquire what another block's arrival released in the cluster's; an arrival in the block's scope on another block's barrier
//! orders only that a place is used again ([`crate::ptx::mbarrier::mbarrier_arrive_reuse_if`]). Found besides: accesses before the
//! other block is known to have started, or not ordered before its end, and wrong ranks ([`Cluster`]).
//!
//! ```
//! use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
//! use ferroflash_kernels::ptx::{global, special};
//! use ferroflash_kernels::spec::Spec;
//!
//! // Every thread doubles one number.
//! fn double(input: u64, output: u64) {
//!     let offset = u64::from(special::block_idx_x() * special::block_dim_x() + special::thread_idx_x()) * 4;
//!     // SAFETY: both buffers have a number for every thread.
//!     unsafe { global::st_global_f32(output + offset, 2.0 * global::ld_global_f32(input + offset)) };
//! }
//!
//! let (input, mut output) = ([1.5f32; 128], [0.0f32; 128]);
//! let mut memory = GlobalMemory::new();
//! let (from, to) = (memory.input("input", &input), memory.output("output", &mut output));
//! let launch = Launch { grid: 2, threads: 64, shared_bytes: 0, resident_blocks: 2, blocks_per_sm: 1, cluster: 1, spec: Spec::PLAIN };
//! emu::run(&launch, &Options::seeded(1), &mut memory, &|| double(from, to))?;
//! assert_eq!(output, [3.0; 128]);
//!
//! // One block more than there are numbers for is found out.
//! let mut memory = GlobalMemory::new();
//! let (from, to) = (memory.input("input", &input), memory.output("output", &mut output));
//! let launch = Launch { grid: 3, ..launch };
//! let fault = emu::run(&launch, &Options::seeded(1), &mut memory, &|| double(from, to)).unwrap_err();
//! println!("{fault}"); // names the instruction, its line, the thread and the buffer
//! # Ok::<(), emu::Fault>(())
//! ```
//!
//! Diagnostics name the caller of the instruction. A function between kernel and instruction that should not be
//! named itself carries `#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]`.
//!
//! Not modelled: speed, bank conflicts, the order of sums within a tensor-core product (`emu/mma.rs`); swizzles other than
//! that of 128 bytes. Of clusters: loads from another block's memory, relaxed arrivals at the cluster's barrier, and the scope in
//! which bytes that land are acquired, which any wait does; what `st.async` writes counts as written by the generic proxy.
//! Whether a fence stands between a change of A's registers and a product is not known: one is asked for after every wait that
//! hands accumulators back, and before the first product.

mod asynchronous;
mod block;
mod bulk;
mod clock;
mod cluster_fault;
mod deadlock;
mod ending;
mod fault;
mod knowledge;
mod machine;
mod memory;
mod proxy;
mod scheduler;
mod shadow;
mod shared;
mod site;
mod stacks;
mod tensor_core;

pub(crate) mod atomic;
pub(crate) mod barrier;
pub(crate) mod cluster;
pub(crate) mod copies;
pub(crate) mod global;
pub(crate) mod lane;
pub(crate) mod ldmatrix;
pub(crate) mod mbarrier;
pub(crate) mod mma;
pub(crate) mod score;
pub(crate) mod shared_access;
pub(crate) mod tensor_map;
pub(crate) mod tma;
pub(crate) mod warp;
pub(crate) mod warpgroup;
pub(crate) mod wgmma;

pub use asynchronous::Asynchronous;
pub use cluster_fault::Cluster;
pub use fault::{Access, Fault, Kind, MemoryLocation, Thread, Waiting};
pub use memory::{GlobalMemory, Plain};

use ferroflash_expression::Kept;

use crate::spec::Spec;

/// Most threads of blocks that run side by side: each has a stack, of which a process has only so many.
pub const MAX_RESIDENT_THREADS: u32 = stacks::MOST as u32;

/// The shape of a launch, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub grid: u32,
    /// Threads of a block: a multiple of 32, at most 1024.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// How many blocks run side by side; the next one starts, in order of their index, where one ends. A kernel
    /// whose blocks wait for each other needs as many as it counts on. At most [`MAX_RESIDENT_THREADS`] threads.
    pub resident_blocks: u32,
    /// How many blocks a multiprocessor is to hold: each has its share of the registers.
    pub blocks_per_sm: u32,
    /// How many blocks, one after the other in the grid, form a cluster: they start together, once there is room for all of
    /// them, and reach each other's shared memory. 1: no clusters. It divides the grid, and is at most 8.
    pub cluster: u32,
    /// The constants that the kernel is compiled with.
    pub spec: Spec,
}

impl Launch {
    /// How many blocks are resident: whole clusters, at least one.
    fn slots(&self) -> u32 {
        let blocks = self.resident_blocks.min(self.grid);
        (blocks - blocks % self.cluster).max(self.cluster)
    }
}

/// Who goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Warps take turns, lanes in ascending order; copies arrive when they are waited for.
    InTurn,
    /// As the seed has it.
    Random,
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Everything.
    Full,
    /// As [`Checks::Full`], but in shared memory neither races nor reads of what nobody wrote nor copies in flight.
    Bounds,
}

/// How to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where [`Order::Random`] begins.
    pub seed: u64,
    /// Who goes next.
    pub order: Order,
    /// What is checked.
    pub checks: Checks,
}

impl Options {
    /// Random order from this seed, everything checked.
    pub fn seeded(seed: u64) -> Options {
        Options {
            seed,
            order: Order::Random,
            checks: Checks::Full,
        }
    }
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks that ran.
    pub blocks: u32,
    /// Instructions for which a whole warp met.
    pub warp_instructions: u64,
    /// Times that a thread got the processor.
    pub resumes: u64,
}

/// Runs `kernel` once for every thread of the grid. A fault ends the run: threads that have not finished then unwind, as
/// from a panic, and their destructors run. Instructions of a thread that unwinds wait for nobody.
pub fn run(
    launch: &Launch,
    options: &Options,
    memory: &mut GlobalMemory<'_>,
    kernel: &dyn Fn(),
) -> Result<Stats, Fault> {
    scheduler::run(launch, None, options, memory, kernel)
}

/// The same of a kernel whose scores an expression edits.
pub fn run_edited(
    launch: &Launch,
    edit: Kept,
    options: &Options,
    memory: &mut GlobalMemory<'_>,
    kernel: &dyn Fn(),
) -> Result<Stats, Fault> {
    scheduler::run(launch, Some(edit), options, memory, kernel)
}
