//! What the machine finds wrong with a kernel: typed, with the source line of both sides.

use std::fmt;
use std::panic::Location;

use super::asynchronous::Asynchronous;
use super::cluster_fault::Cluster;

/// A thread of the grid, or several lanes of one of its warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Index of the block in the grid.
    pub block: u32,
    /// Index of the warp in the block.
    pub warp: u32,
    /// Index of the lane in the warp; `None`: several lanes.
    pub lane: Option<u32>,
}

impl Thread {
    /// [`Thread::warp`] of the copy engine.
    pub const ENGINE: u32 = u32::MAX;
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thread { block, warp, lane } = self;
        if *warp == Thread::ENGINE {
            return write!(f, "block {block}, the copy engine");
        }
        match lane {
            Some(lane) => write!(f, "block {block}, warp {warp}, lane {lane}"),
            None => write!(f, "block {block}, warp {warp}, several lanes"),
        }
    }
}

/// One execution of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who executed it.
    pub thread: Thread,
    /// The instruction.
    pub instruction: &'static str,
    /// The line of the kernel that called it.
    pub at: &'static Location<'static>,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` at {}:{} ({})",
            self.instruction,
            self.at.file(),
            self.at.line(),
            self.thread
        )
    }
}

/// A place in one of the memories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryLocation {
    /// Byte offset from the beginning of the block's shared memory; negative: before it.
    Shared(i64),
    /// Byte offset from the beginning of the shared memory of another block of the cluster.
    Peer {
        /// Index of the block in the grid.
        block: u32,
        /// Byte offset; negative: before it.
        offset: i64,
    },
    /// Byte offset into a buffer of global memory.
    Global {
        /// The buffer's name; where the access lies in none, that of the nearest before it.
        buffer: String,
        /// Byte offset from its beginning.
        offset: u64,
    },
    /// An address below every buffer of global memory.
    Address(u64),
}

impl fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLocation::Shared(offset) => write!(f, "shared memory, byte {offset}"),
            MemoryLocation::Peer { block, offset } => {
                write!(f, "shared memory of block {block}, byte {offset}")
            }
            MemoryLocation::Global { buffer, offset } => {
                write!(f, "global buffer `{buffer}`, byte {offset}")
            }
            MemoryLocation::Address(address) => write!(f, "global address {address:#x}"),
        }
    }
}

/// Threads that wait for something that never comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The instruction at which they wait, and the first of them.
    pub access: Access,
    /// How many of them there are.
    pub threads: u32,
    /// What would let them go on.
    pub until: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting {
            access,
            threads,
            until,
        } = self;
        write!(f, "{threads} threads at {access} wait for {until}")
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The launch itself is not possible.
    BadLaunch {
        /// Why.
        reason: &'static str,
    },
    /// An access outside shared memory or outside every registered buffer.
    OutOfBounds {
        /// The access.
        access: Access,
        /// Where it begins.
        place: MemoryLocation,
        /// How many bytes it touches.
        bytes: u32,
        /// How many bytes there are.
        size: u64,
    },
    /// An address that is no multiple of the access's size.
    Misaligned {
        /// The access.
        access: Access,
        /// Where it begins.
        place: MemoryLocation,
        /// What the address must be a multiple of.
        alignment: u32,
    },
    /// A read of memory that nobody wrote.
    Uninitialised {
        /// The read.
        access: Access,
        /// The first byte that was not written.
        place: MemoryLocation,
    },
    /// An access to the destination of a copy that has not been waited for.
    InFlight {
        /// The access.
        access: Access,
        /// The copy.
        copy: Access,
        /// Where they meet.
        place: MemoryLocation,
    },
    /// A write to a buffer that was registered as input.
    ReadOnly {
        /// The write.
        access: Access,
        /// Where it goes.
        place: MemoryLocation,
    },
    /// Two accesses, at least one of them a write, that nothing orders.
    Race {
        /// The one that came first in this run.
        earlier: Access,
        /// The other.
        later: Access,
        /// Where they meet.
        place: MemoryLocation,
    },
    /// Lanes of a warp that came to different instructions, each of which wants all lanes.
    Divergence {
        /// Where the first lane waits.
        earlier: Access,
        /// Where another lane came.
        later: Access,
    },
    /// An instruction that wants all lanes, some of which have left the kernel.
    Exited {
        /// The instruction.
        access: Access,
        /// The lanes that left, one bit each.
        lanes: u32,
    },
    /// An operand that the instruction does not allow.
    Operand {
        /// The instruction.
        access: Access,
        /// What is wrong with it.
        what: &'static str,
        /// The operand.
        value: u32,
    },
    /// Threads that disagree on how many of them a barrier is for, or more of them than it is for.
    BarrierCount {
        /// The instruction.
        access: Access,
        /// The barrier.
        barrier: u32,
        /// For how many threads those who came before take it.
        expected: u32,
        /// For how many this one takes it.
        given: u32,
        /// How many have come, these included.
        arrived: u32,
    },
    /// Threads of which some brought a predicate to a barrier and others none.
    BarrierMixed {
        /// The instruction.
        access: Access,
        /// The barrier.
        barrier: u32,
    },
    /// A block that ended while a barrier waited for more threads.
    BarrierUnfinished {
        /// The last instruction that arrived at it.
        access: Access,
        /// The barrier.
        barrier: u32,
        /// How many threads had come.
        arrived: u32,
        /// How many it was for.
        expected: u32,
    },
    /// A thread that ended without waiting for its copies.
    CopiesUnfinished {
        /// The oldest of them.
        copy: Access,
        /// How many there are.
        count: u32,
    },
    /// Wrong use of mbarriers, the copy engine or the tensor cores.
    Asynchronous(Asynchronous),
    /// Wrong use of clusters.
    Cluster(Cluster),
    /// Nothing can go on.
    Deadlock {
        /// Who waits for what.
        waiting: Vec<Waiting>,
    },
    /// The kernel panicked.
    Panic {
        /// The thread that did.
        thread: Thread,
        /// What it said.
        message: String,
    },
}

/// A fault of a kernel, found by the emulator. [`Fault::kind`] has the particulars, `Display` the whole story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(Box<Kind>);

impl Fault {
    /// What went wrong, and where.
    pub fn kind(&self) -> &Kind {
        &self.0
    }
}

impl From<Kind> for Fault {
    fn from(kind: Kind) -> Fault {
        Fault(Box::new(kind))
    }
}

impl From<Asynchronous> for Fault {
    fn from(kind: Asynchronous) -> Fault {
        Kind::Asynchronous(kind).into()
    }
}

impl From<Cluster> for Fault {
    fn from(kind: Cluster) -> Fault {
        Kind::Cluster(kind).into()
    }
}

impl Fault {
    fn fmt_barrier(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Kind::BarrierCount {
                access,
                barrier,
                expected,
                given,
                arrived,
            } => write!(
                f,
                "barrier {barrier}: {access} takes it for {given} threads, those before it for {expected}; \
                 {arrived} have come"
            ),
            Kind::BarrierMixed { access, barrier } => write!(
                f,
                "barrier {barrier}: of {access} and those who came before, only some bring a predicate"
            ),
            Kind::BarrierUnfinished {
                access,
                barrier,
                arrived,
                expected,
            } => write!(
                f,
                "the block ended with {arrived} of {expected} threads at barrier {barrier}, last {access}"
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Kind::BadLaunch { reason } => write!(f, "launch not possible: {reason}"),
            Kind::OutOfBounds {
                access,
                place,
                bytes,
                size,
            } => {
                write!(
                    f,
                    "out of bounds: {access} touches {bytes} bytes at {place}, of {size} bytes"
                )
            }
            Kind::Misaligned {
                access,
                place,
                alignment,
            } => {
                write!(
                    f,
                    "misaligned: {access} touches {place}, which is no multiple of {alignment}"
                )
            }
            Kind::Uninitialised { access, place } => {
                write!(
                    f,
                    "uninitialised: {access} reads {place}, which nobody wrote"
                )
            }
            Kind::InFlight {
                access,
                copy,
                place,
            } => {
                write!(
                    f,
                    "copy in flight: {access} touches {place}, the destination of {copy}, not waited for"
                )
            }
            Kind::ReadOnly { access, place } => write!(f, "{access} writes {place}, an input"),
            Kind::Race {
                earlier,
                later,
                place,
            } => {
                write!(
                    f,
                    "data race: {later} touches {place} unordered with {earlier}"
                )
            }
            Kind::Divergence { earlier, later } => {
                write!(
                    f,
                    "diverged warp: {later} while another lane is at {earlier}"
                )
            }
            Kind::Exited { access, lanes } => {
                write!(
                    f,
                    "{access} wants all lanes of the warp, but lanes {lanes:#010x} have left the kernel"
                )
            }
            Kind::Operand {
                access,
                what,
                value,
            } => write!(f, "{access}: {what}, not {value}"),
            Kind::BarrierCount { .. }
            | Kind::BarrierMixed { .. }
            | Kind::BarrierUnfinished { .. } => self.fmt_barrier(f),
            Kind::CopiesUnfinished { copy, count } => {
                write!(
                    f,
                    "a thread ended with {count} copies not waited for, first {copy}"
                )
            }
            Kind::Asynchronous(what) => what.fmt(f),
            Kind::Cluster(what) => what.fmt(f),
            Kind::Deadlock { waiting } => {
                write!(f, "deadlock:")?;
                for waiting in waiting {
                    write!(f, " {waiting};")?;
                }
                Ok(())
            }
            Kind::Panic { thread, message } => {
                write!(f, "the kernel panicked ({thread}): {message}")
            }
        }
    }
}
