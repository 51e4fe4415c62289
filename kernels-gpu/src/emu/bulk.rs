//! The copy engine: one more agent, which makes a copy at a random moment, or when nothing else can go on. What it stores it
//! reads at one moment and writes at another.

use super::Order;
use super::clock::{BY_STORE, ENGINE, FIRST_STORER, Stamp};
use super::machine::Machine;
use super::mbarrier;
use super::memory::Buffers;
use super::shared::Shared;
use super::site::Site;
use crate::params::TensorMap;

/// Bytes of a box's row.
const ROW_BYTES: usize = 128;
/// Bytes that stay together in the swizzle.
const CHUNK: usize = 16;

/// Most bytes of registers that a thread stores at once.
pub(super) const MOST_WORD_BYTES: usize = 16;

/// The 128-byte swizzle: bits 4 to 6 of an address, exclusive-or bits 7 to 9.
pub(super) fn swizzle(address: u32) -> u32 {
    address ^ (address >> 7 & 7) << 4
}

/// A box of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Region {
    pub map: TensorMap,
    /// Where it begins: column, row, head, batch.
    pub at: [i64; 4],
    /// Its bytes in shared memory lie so far behind a multiple of 1024, where the swizzle begins again.
    pub phase: u32,
}

/// The part of a box's row that lies inside the tensor.
pub(super) struct Span {
    pub addr: u64,
    pub bytes: u32,
    /// Where it begins in the box as if it were not swizzled.
    offset: usize,
}

impl Span {
    /// Its pieces of 16 bytes or less: where each begins in the span, where in the swizzled box, and its bytes.
    /// The box lies so many bytes behind where the swizzle begins.
    fn chunks(&self, phase: u32) -> impl Iterator<Item = (usize, usize, usize)> {
        let (begin, end) = (self.offset, self.offset + self.bytes as usize);
        (begin / CHUNK..end.div_ceil(CHUNK)).map(move |chunk| {
            let from = (chunk * CHUNK).max(begin);
            let to = ((chunk + 1) * CHUNK).min(end);
            let swizzled = swizzle(phase + from as u32) - phase;
            (from - begin, swizzled as usize, to - from)
        })
    }
}

impl Region {
    /// Bytes of the whole box, inside the tensor or not.
    pub fn bytes(&self) -> u32 {
        (self.map.box_heads * self.map.box_rows) as u32 * ROW_BYTES as u32
    }

    /// What of it lies inside the tensor, head by head and row by row.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        let Region { map, at, .. } = *self;
        let size = map.sizes.map(|size| size as i64);
        let inside = move |dimension: usize, x: i64| (0..size[dimension]).contains(&x);
        let (first, last) = (
            at[0].max(0),
            (at[0] + i64::from(map.box_columns())).min(size[0]),
        );
        let element = map.element_bytes as i64;
        let any = inside(3, at[3]) && first < last;
        let box_rows = map.box_rows as i64;
        (0..map.box_heads as i64 * box_rows).filter_map(move |row| {
            let entries = [at[1] + row % box_rows, at[2] + row / box_rows, at[3]];
            if !any || !inside(1, entries[0]) || !inside(2, entries[1]) {
                return None;
            }
            let distance: u64 = entries
                .iter()
                .zip(map.strides)
                .map(|(entry, stride)| *entry as u64 * stride)
                .sum();
            Some(Span {
                addr: map.base + distance + (first * element) as u64,
                bytes: ((last - first) * element) as u32,
                offset: row as usize * ROW_BYTES + ((first - at[0]) * element) as usize,
            })
        })
    }

    /// Where in the swizzled box what lies inside the tensor is: offsets and bytes.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, usize)> {
        self.spans()
            .flat_map(|span| span.chunks(self.phase).collect::<Vec<_>>())
            .map(|(_, offset, bytes)| (offset, bytes))
    }

    /// The box, swizzled, 0 where it lies outside the tensor.
    fn gather(&self, buffers: &Buffers) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes() as usize];
        for span in self.spans() {
            let mut row = vec![0; span.bytes as usize];
            buffers.load(span.addr, &mut row);
            for (from, to, n) in span.chunks(self.phase) {
                bytes[to..to + n].copy_from_slice(&row[from..from + n]);
            }
        }
        bytes
    }

    /// Writes what of the swizzled box lies inside the tensor.
    fn scatter(&self, bytes: &[u8], buffers: &mut Buffers) {
        for span in self.spans() {
            let mut row = vec![0; span.bytes as usize];
            for (to, from, n) in span.chunks(self.phase) {
                row[to..to + n].copy_from_slice(&bytes[from..from + n]);
            }
            buffers.store(span.addr, &row);
        }
    }
}

/// What is loaded.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// A box of a tensor.
    Box(Region),
    /// So many bytes at an address.
    Bytes(u64, u32),
}

impl Source {
    /// Bytes that arrive.
    pub fn bytes(&self) -> u32 {
        match self {
            Source::Box(region) => region.bytes(),
            Source::Bytes(_, bytes) => *bytes,
        }
    }

    /// What is read of global memory: addresses and bytes.
    pub fn spans(&self) -> Vec<(u64, u32)> {
        match self {
            Source::Box(region) => region.spans().map(|span| (span.addr, span.bytes)).collect(),
            Source::Bytes(addr, bytes) => vec![(*addr, *bytes)],
        }
    }

    fn gather(&self, buffers: &Buffers) -> Vec<u8> {
        match self {
            Source::Box(region) => region.gather(buffers),
            Source::Bytes(addr, bytes) => {
                let mut gathered = vec![0; *bytes as usize];
                buffers.load(*addr, &mut gathered);
                gathered
            }
        }
    }
}

/// Where what is stored goes to.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// A box of a tensor.
    Box(Region),
    /// So many bytes at an address.
    Bytes(u64, u32),
    /// The f32 that lie there, to which those in shared memory are added.
    Sums(u64, u32),
}

impl Target {
    /// Bytes in shared memory.
    pub fn bytes(&self) -> u32 {
        match self {
            Target::Box(region) => region.bytes(),
            Target::Bytes(_, bytes) | Target::Sums(_, bytes) => *bytes,
        }
    }

    /// What of them is read: offsets and bytes.
    pub fn pieces(&self) -> Vec<(usize, usize)> {
        match self {
            Target::Box(region) => region.pieces().collect(),
            Target::Bytes(_, bytes) | Target::Sums(_, bytes) => vec![(0, *bytes as usize)],
        }
    }

    /// What is written of global memory: addresses and bytes.
    pub fn spans(&self) -> Vec<(u64, u32)> {
        match self {
            Target::Box(region) => region.spans().map(|span| (span.addr, span.bytes)).collect(),
            Target::Bytes(addr, bytes) | Target::Sums(addr, bytes) => vec![(*addr, *bytes)],
        }
    }

    fn put(&self, bytes: &[u8], buffers: &mut Buffers) {
        match self {
            Target::Box(region) => region.scatter(bytes, buffers),
            Target::Bytes(addr, _) => buffers.store(*addr, bytes),
            Target::Sums(addr, _) => {
                for (addr, added) in (*addr..).step_by(4).zip(bytes.as_chunks::<4>().0) {
                    let mut sum = [0; 4];
                    buffers.load(addr, &mut sum);
                    let sum = f32::from_le_bytes(sum) + f32::from_le_bytes(*added);
                    buffers.store(addr, &sum.to_le_bytes());
                }
            }
        }
    }
}

/// What the engine does next for a copy.
pub(super) enum Step {
    /// Moves what is loaded to this offset into shared memory; its bytes count on the barrier at an address, as the load
    /// of a number.
    Load {
        source: Source,
        offset: usize,
        mbarrier: (u32, u64),
    },
    /// Moves bytes to this offset into shared memory; they count on a barrier in the same way.
    Move {
        bytes: Moved,
        offset: usize,
        mbarrier: (u32, u64),
    },
    /// Reads what is stored at this offset into shared memory.
    Read { target: Target, offset: usize },
    /// Writes these bytes to global memory.
    Write { target: Target, bytes: Vec<u8> },
}

/// What goes to the shared memory of a block of a cluster.
#[derive(Clone, Copy)]
pub(super) enum Moved {
    /// So many bytes of registers.
    Words([u8; MOST_WORD_BYTES], u32),
    /// From the shared memory of the block in a slot: the offset, and how many.
    Shared(usize, usize, u32),
}

impl Moved {
    fn take(&self, machine: &Machine) -> Vec<u8> {
        match *self {
            Moved::Words(bytes, n) => bytes[..n as usize].to_vec(),
            Moved::Shared(slot, offset, n) => {
                let block = machine.blocks[slot].borrow();
                block.shared.slice(offset, n as usize).to_vec()
            }
        }
    }
}

struct Copy {
    number: u64,
    slot: usize,
    step: Step,
}

/// Copies under way.
#[derive(Default)]
pub(super) struct Engine {
    copies: Vec<Copy>,
    issued: u64,
}

impl Engine {
    /// Takes a copy; its number.
    pub fn push(&mut self, slot: usize, step: Step) -> u64 {
        let number = self.issued;
        self.issued += 1;
        self.copies.push(Copy { number, slot, step });
        number
    }

    /// The number that the next copy gets.
    pub fn next_number(&self) -> u64 {
        self.issued
    }

    /// The store with this number has read shared memory, if only now.
    pub fn read(&mut self, number: u64, shared: &Shared) {
        let waiting = self.copies.iter_mut().find(|copy| copy.number == number);
        if let Some(Copy { step, .. }) = waiting
            && let Step::Read { target, offset } = *step
        {
            let bytes = shared.slice(offset, target.bytes() as usize).to_vec();
            *step = Step::Write { target, bytes };
        }
    }

    /// The store with this number, which has read shared memory, has written, if only now.
    pub fn write(&mut self, number: u64, buffers: &mut Buffers) {
        let waiting = self.copies.iter().position(|copy| copy.number == number);
        if let Some(index) = waiting
            && let Step::Write { target, bytes } = self.copies.remove(index).step
        {
            target.put(&bytes, buffers);
        }
    }
}

/// Lets the engine do one step, if it has any to do.
pub(super) fn advance(machine: &Machine) -> bool {
    let count = machine.engine.borrow().copies.len();
    if count == 0 {
        return false;
    }
    let index = match machine.options.order {
        Order::InTurn => 0,
        Order::Random => (machine.draw() % count as u64) as usize,
    };
    let mut engine = machine.engine.borrow_mut();
    let Copy {
        number,
        slot,
        ref step,
    } = engine.copies[index];
    match step {
        Step::Load {
            source,
            offset,
            mbarrier,
        } => {
            let (source, offset, mbarrier) = (*source, *offset, *mbarrier);
            engine.copies.remove(index);
            let bytes = source.gather(&machine.buffers.borrow());
            let mut block = machine.blocks[slot].borrow_mut();
            block.shared.fill(offset, &bytes);
            let n_bytes = source.bytes();
            if let Some(stamp) = mbarrier::complete(machine, slot, &mut block, mbarrier, n_bytes) {
                block.shared.land(&stamp, offset, n_bytes);
            }
        }
        Step::Move {
            bytes,
            offset,
            mbarrier,
        } => {
            let (moved, offset, mbarrier) = (*bytes, *offset, *mbarrier);
            engine.copies.remove(index);
            land_moved(machine, (number, slot), moved, offset, mbarrier);
        }
        Step::Read { .. } => {
            let block = machine.blocks[slot].borrow();
            engine.read(number, &block.shared);
        }
        Step::Write { .. } => engine.write(number, &mut machine.buffers.borrow_mut()),
    }
    true
}

/// The copy of this number, to the block in a slot, lands.
fn land_moved(
    machine: &Machine,
    (number, slot): (u64, usize),
    moved: Moved,
    offset: usize,
    mbarrier: (u32, u64),
) {
    let bytes = moved.take(machine);
    let n_bytes = bytes.len() as u32;
    let stamp = {
        let mut block = machine.blocks[slot].borrow_mut();
        block.shared.fill(offset, &bytes);
        let stamp = mbarrier::complete(machine, slot, &mut block, mbarrier, n_bytes);
        let Some(mut stamp) = stamp else { return };
        if let Moved::Words(..) = moved {
            stamp.sub = BY_STORE;
        }
        block.shared.land(&stamp, offset, n_bytes);
        stamp
    };
    if let Moved::Shared(from, offset, n_bytes) = moved {
        let mut block = machine.blocks[from].borrow_mut();
        block.shared.end_sending(number, offset, n_bytes, &stamp);
    }
}

/// A store that its thread has not waited for.
#[derive(Clone, Copy)]
pub(super) struct Store {
    pub number: u64,
    pub target: Target,
    /// Where it lies in shared memory.
    pub offset: usize,
    /// How many of the thread's stores there are up to it.
    pub count: u32,
    site: Site,
    group: u64,
}

/// The stores of one thread.
#[derive(Default)]
pub(super) struct Stores {
    /// Which of its block's threads that store it is.
    storer: Option<usize>,
    /// Those whose reading of shared memory it has not waited for.
    unread: Vec<Store>,
    /// Those whose writing of global memory it has not waited for.
    unwritten: Vec<Store>,
    /// Stores so far.
    count: u32,
    /// Groups committed so far; the open group has this number.
    committed: u64,
}

impl Stores {
    /// The stamp of what the next store writes; `storers` counts the block's threads that store.
    pub fn next_stamp(&mut self, storers: &mut usize, stamp: Stamp) -> Stamp {
        let storer = *self.storer.get_or_insert_with(|| {
            *storers += 1;
            *storers - 1
        });
        Stamp {
            warp: ENGINE,
            lane: (FIRST_STORER + storer) as u8,
            clock: self.count + 1,
            sub: 0,
            ..stamp
        }
    }

    /// What the thread's stores bear as the lane of their stamps.
    pub fn lane(&self) -> Option<u8> {
        self.storer.map(|storer| (FIRST_STORER + storer) as u8)
    }

    pub fn push(&mut self, number: u64, site: Site, target: Target, offset: usize) {
        self.count += 1;
        let store = Store {
            number,
            target,
            offset,
            count: self.count,
            site,
            group: self.committed,
        };
        self.unread.push(store);
        self.unwritten.push(store);
    }

    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Takes those of all groups but the newest out of the unread ones.
    pub fn take_read(&mut self, newest: u32) -> Vec<Store> {
        take_done(&mut self.unread, self.committed, newest)
    }

    /// The same of the unwritten ones.
    pub fn take_written(&mut self, newest: u32) -> Vec<Store> {
        take_done(&mut self.unwritten, self.committed, newest)
    }

    /// How many have not been read, and where the oldest was issued.
    pub fn unfinished(&self) -> Option<(u32, Site)> {
        let first = self.unread.first()?;
        Some((self.unread.len() as u32, first.site))
    }
}

/// Takes out the stores of all `committed` groups but the newest.
fn take_done(stores: &mut Vec<Store>, committed: u64, newest: u32) -> Vec<Store> {
    let done = committed.saturating_sub(u64::from(newest));
    let split = stores.partition_point(|store| store.group < done);
    stores.drain(..split).collect()
}
