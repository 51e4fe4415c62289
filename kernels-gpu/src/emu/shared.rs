//! Shared memory that knows what was written, by whom, who has read it since, and what is still on its way.

mod lasting;
mod outgoing;
mod reads;

use super::Checks;
use super::asynchronous::Asynchronous;
use super::block::{Actor, Fences};
use super::clock::Stamp;
use super::fault::{Fault, Kind, MemoryLocation};
use outgoing::Outgoing;
use reads::Reads;

pub(super) use lasting::Reader;
pub(super) use reads::Readers;

/// Address of the first byte in a block of rank 0: not 0, so that a forgotten base shows.
pub(super) const BASE: u32 = 1024;
/// Where the rank of a block in its cluster begins in addresses of its shared memory.
pub(super) const RANK_SHIFT: u32 = 24;
/// The part of an address that says where in a block's shared memory it is.
pub(super) const WINDOW: u32 = (1 << RANK_SHIFT) - 1;
/// What fresh memory holds: NaN in every floating-point type.
const POISON: u8 = 0xff;
/// Bytes that are tracked as one.
const GRANULE: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody wrote it.
    Fresh,
    Written,
    /// A copy to it has been issued and not waited for.
    InFlight,
    /// It is part of an mbarrier.
    Mbarrier,
}

/// The dynamic shared memory of a block.
pub(super) struct Shared {
    /// Index of the block.
    block: u32,
    /// Address of the first byte.
    base: u32,
    data: Vec<u8>,
    checks: Checks,
    state: Vec<State>,
    writes: Vec<Stamp>,
    reads: Reads,
    outgoing: Outgoing,
}

/// A piece of shared memory to access.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub addr: u32,
    pub bytes: u32,
    pub alignment: u32,
}

impl Piece {
    /// One that is aligned to its size, as threads access them.
    #[inline]
    fn aligned(addr: u32, bytes: u32) -> Piece {
        Piece {
            addr,
            bytes,
            alignment: bytes,
        }
    }
}

impl Shared {
    pub fn new(bytes: u32, warps: u32, checks: Checks) -> Shared {
        let granules = match checks {
            Checks::Full => (bytes as usize).div_ceil(GRANULE),
            Checks::Bounds => 0,
        };
        Shared {
            block: 0,
            base: BASE,
            data: vec![POISON; bytes as usize],
            checks,
            state: vec![State::Fresh; granules],
            writes: vec![Stamp::default(); granules],
            reads: Reads::new(granules, warps as usize),
            outgoing: Outgoing::default(),
        }
    }

    /// Forgets everything: the block with this index begins, of this rank in its cluster.
    pub fn start(&mut self, block: u32, rank: u32) {
        (self.block, self.base) = (block, rank << RANK_SHIFT | BASE);
        self.outgoing.clear();
        self.data.fill(POISON);
        // Of what is fresh nobody asks who wrote it.
        self.state.fill(State::Fresh);
        self.reads.clear();
    }

    /// Address of the first byte.
    #[inline]
    pub fn base(&self) -> u32 {
        self.base
    }

    /// A place in this memory, as told to who accesses it.
    fn place(&self, actor: &Actor, offset: i64) -> MemoryLocation {
        match self.block == actor.stamp.block {
            true => MemoryLocation::Shared(offset),
            false => MemoryLocation::Peer {
                block: self.block,
                offset,
            },
        }
    }

    fn place_of(&self, actor: &Actor, granule: usize) -> MemoryLocation {
        self.place(actor, (granule * GRANULE) as i64)
    }

    /// The bytes at an offset that one of the functions below gave.
    #[inline]
    pub fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let bytes = self.data[offset..].first_chunk();
        *bytes.expect("the offset was given for so many")
    }

    /// So many bytes at an offset that one of the functions below gave.
    #[inline]
    pub fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.data[offset..offset + bytes]
    }

    /// Replaces the bytes at an offset that one of the functions below gave.
    #[inline]
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.data[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Marks the bytes at an offset as not yet arrived.
    #[inline]
    pub fn poison(&mut self, offset: usize, bytes: usize) {
        self.data[offset..offset + bytes].fill(POISON);
    }

    /// Where a piece lies, if it lies in shared memory.
    #[inline]
    pub fn locate(&self, actor: &Actor, piece: Piece) -> Result<usize, Fault> {
        let Piece {
            addr,
            bytes,
            alignment,
        } = piece;
        let offset = i64::from(addr) - i64::from(self.base);
        let place = || self.place(actor, offset);
        if offset < 0 || offset + i64::from(bytes) > self.data.len() as i64 {
            let size = self.data.len() as u64;
            return Err(Kind::OutOfBounds {
                access: actor.access(),
                place: place(),
                bytes,
                size,
            }
            .into());
        }
        if !addr.is_multiple_of(alignment) {
            return Err(Kind::Misaligned {
                access: actor.access(),
                place: place(),
                alignment,
            }
            .into());
        }
        Ok(offset as usize)
    }

    #[inline]
    fn granules(&self, offset: usize, bytes: u32) -> std::ops::Range<usize> {
        match self.checks {
            Checks::Full => offset / GRANULE..(offset + bytes as usize).div_ceil(GRANULE),
            Checks::Bounds => 0..0,
        }
    }

    /// A read of `bytes` bytes at `addr`: the offset at which they lie.
    pub fn read(
        &mut self,
        actor: &Actor,
        addr: u32,
        bytes: u32,
        readers: Readers,
    ) -> Result<usize, Fault> {
        let offset = self.locate(actor, Piece::aligned(addr, bytes))?;
        for granule in self.granules(offset, bytes) {
            let write = &self.writes[granule];
            match self.state[granule] {
                State::Written if actor.sees(write) => {}
                state => return Err(self.refuse(actor, granule, state)),
            }
            self.reads.note(&actor.stamp, granule, readers);
        }
        Ok(offset)
    }

    /// A write of `bytes` bytes at `addr`: the offset at which they lie.
    #[inline]
    pub fn write(&mut self, actor: &Actor, addr: u32, bytes: u32) -> Result<usize, Fault> {
        self.overwrite(actor, None, Piece::aligned(addr, bytes), State::Written)
    }

    /// The 8 bytes at `addr` become an mbarrier.
    pub fn make_mbarrier(&mut self, actor: &Actor, addr: u32) -> Result<usize, Fault> {
        self.overwrite(actor, None, Piece::aligned(addr, 8), State::Mbarrier)
    }

    /// A copy to `addr` begins: from now on, until [`Shared::land`], nobody may touch it.
    #[inline]
    pub fn begin_copy(&mut self, actor: &Actor, addr: u32, bytes: u32) -> Result<usize, Fault> {
        self.overwrite(actor, None, Piece::aligned(addr, bytes), State::InFlight)
    }

    /// A copy by the copy engine begins.
    pub fn begin_bulk_copy(
        &mut self,
        actor: &Actor,
        fences: Fences,
        piece: Piece,
    ) -> Result<usize, Fault> {
        self.overwrite(actor, Some(fences), piece, State::InFlight)
    }

    /// An asynchronous store by the generic proxy begins.
    pub fn begin_store(&mut self, actor: &Actor, piece: Piece) -> Result<usize, Fault> {
        self.overwrite(actor, None, piece, State::InFlight)
    }

    /// A copy to `offset` is over, written at this moment.
    pub fn land(&mut self, stamp: &Stamp, offset: usize, bytes: u32) {
        for granule in self.granules(offset, bytes) {
            self.state[granule] = State::Written;
            self.writes[granule] = Stamp {
                site: self.writes[granule].site,
                ..*stamp
            };
        }
    }

    fn overwrite(
        &mut self,
        actor: &Actor,
        fences: Option<Fences>,
        piece: Piece,
        state: State,
    ) -> Result<usize, Fault> {
        let offset = self.locate(actor, piece)?;
        let sends = !self.outgoing.is_empty();
        for granule in self.granules(offset, piece.bytes) {
            let write = &self.writes[granule];
            match self.state[granule] {
                State::Fresh => {}
                State::Written if actor.is_over(write) => {
                    if fences.is_some_and(|fences| !fences.publish(actor, write)) {
                        return Err(self.unfenced(actor, granule));
                    }
                }
                state => return Err(self.refuse(actor, granule, state)),
            }
            self.check_readers(actor, granule)?;
            if sends {
                self.check_outgoing(actor, granule)?;
            }
            self.state[granule] = state;
            self.writes[granule] = actor.stamp;
        }
        Ok(offset)
    }

    /// Every earlier read of the granule must be ordered before the write.
    fn check_readers(&self, actor: &Actor, granule: usize) -> Result<(), Fault> {
        for (reader, last) in self.reads.of_granule(granule) {
            let in_flight = last.flights > 0;
            if last.clock == 0 || !in_flight && actor.sees_warp_of(self.block, reader, last.clock) {
                continue;
            }
            let mut stamps = self.reads.stamps(self.block, reader, granule);
            if let Some(earlier) = stamps.find(|stamp| in_flight || !actor.is_over(stamp)) {
                return Err(Kind::Race {
                    earlier: earlier.access(),
                    later: actor.access(),
                    place: self.place_of(actor, granule),
                }
                .into());
            }
        }
        Ok(())
    }

    fn refuse(&self, actor: &Actor, granule: usize, state: State) -> Fault {
        let place = self.place_of(actor, granule);
        let (access, earlier) = (actor.access(), &self.writes[granule]);
        match state {
            State::Fresh => Kind::Uninitialised { access, place },
            State::InFlight => Kind::InFlight {
                access,
                copy: earlier.access(),
                place,
            },
            State::Written => Kind::Race {
                earlier: earlier.access(),
                later: access,
                place,
            },
            State::Mbarrier => Kind::Asynchronous(Asynchronous::MbarrierTouched {
                access,
                init: earlier.access(),
                place,
            }),
        }
        .into()
    }

    fn unfenced(&self, actor: &Actor, granule: usize) -> Fault {
        Asynchronous::Unfenced {
            access: actor.access(),
            earlier: self.writes[granule].access(),
            fence: "fence.proxy.async",
            place: self.place_of(actor, granule),
        }
        .into()
    }
}
