//! Shared memory that knows what was written, by whom, who has read it since, and what is still on its way.

mod lasting;

use std::collections::HashMap;

use super::Checks;
use super::asynchronous::Asynchronous;
use super::block::{Actor, Fences};
use super::clock::{ENGINE, Stamp, TOGETHER};
use super::fault::{Fault, Kind, Place};
use super::machine::LANES;
use super::site::Site;

pub(super) use lasting::Reader;

/// Address of the first byte: not 0, so that a forgotten base shows.
pub(super) const BASE: u32 = 1024;
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

/// The last reads by one warp, or by the copy engine: those of one moment, and where the last of them stands.
#[derive(Clone, Copy, Default)]
struct Read {
    clock: u32,
    site: Site,
    /// The lanes that read, each for itself: a bit for every one.
    lanes: u32,
    sub: u16,
    /// Whether they read together, too, in one instruction.
    together: bool,
    /// Reads that have begun and may happen at any moment from now on. While there are any, the rest tells of the
    /// last of these.
    flights: u8,
}

impl Read {
    fn new(stamp: &Stamp, readers: Readers) -> Read {
        Read {
            clock: stamp.clock,
            site: stamp.site,
            lanes: match readers {
                Readers::Lane => 1 << stamp.lane,
                Readers::Warp => 0,
            },
            sub: stamp.sub,
            together: matches!(readers, Readers::Warp),
            flights: 0,
        }
    }

    /// A stamp for each lane, and one for all of them together.
    fn stamps(&self, block: u32, warp: u8) -> impl Iterator<Item = Stamp> {
        let lanes = (0..LANES as u8).filter(|lane| self.lanes & 1 << lane != 0);
        lanes
            .chain(self.together.then_some(TOGETHER))
            .map(move |lane| Stamp {
                block,
                clock: self.clock,
                site: self.site,
                sub: self.sub,
                warp,
                lane,
            })
    }
}

/// Who reads.
#[derive(Clone, Copy)]
pub(super) enum Readers {
    /// One lane, for itself.
    Lane,
    /// All lanes of a warp, in one instruction.
    Warp,
}

/// The dynamic shared memory of a block.
pub(super) struct Shared {
    data: Vec<u8>,
    checks: Checks,
    state: Vec<State>,
    writes: Vec<Stamp>,
    /// Per warp, and last for the copy engine, per granule.
    reads: Vec<Vec<Read>>,
    /// By warp and granule: reads at the same clock, but earlier, by lanes that have not read it again.
    earlier: HashMap<(usize, usize), Vec<Read>>,
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
            data: vec![POISON; bytes as usize],
            checks,
            state: vec![State::Fresh; granules],
            writes: vec![Stamp::default(); granules],
            reads: vec![vec![Read::default(); granules]; warps as usize + 1],
            earlier: HashMap::new(),
        }
    }

    /// Forgets everything: the next block begins.
    pub fn clear(&mut self) {
        self.data.fill(POISON);
        self.state.fill(State::Fresh);
        self.writes.fill(Stamp::default());
        for plane in &mut self.reads {
            plane.fill(Read::default());
        }
        self.earlier.clear();
    }

    /// The bytes at an offset that one of the functions below gave.
    pub fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.data[offset..offset + N]);
        bytes
    }

    /// So many bytes at an offset that one of the functions below gave.
    pub fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.data[offset..offset + bytes]
    }

    /// Replaces the bytes at an offset that one of the functions below gave.
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.data[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Marks the bytes at an offset as not yet arrived.
    pub fn poison(&mut self, offset: usize, bytes: usize) {
        self.data[offset..offset + bytes].fill(POISON);
    }

    /// Where a piece lies, if it lies in shared memory.
    pub fn locate(&self, actor: &Actor, piece: Piece) -> Result<usize, Fault> {
        let Piece {
            addr,
            bytes,
            alignment,
        } = piece;
        let offset = i64::from(addr) - i64::from(BASE);
        let place = Place::Shared(offset);
        if offset < 0 || offset + i64::from(bytes) > self.data.len() as i64 {
            let size = self.data.len() as u64;
            return Err(Kind::OutOfBounds {
                access: actor.access(),
                place,
                bytes,
                size,
            }
            .into());
        }
        if !addr.is_multiple_of(alignment) {
            return Err(Kind::Misaligned {
                access: actor.access(),
                place,
                alignment,
            }
            .into());
        }
        Ok(offset as usize)
    }

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
            self.note(&actor.stamp, granule, readers);
        }
        Ok(offset)
    }

    /// Remembers a read.
    #[inline]
    fn note(&mut self, stamp: &Stamp, granule: usize, readers: Readers) {
        let warp = usize::from(stamp.warp);
        let last = &mut self.reads[warp][granule];
        if last.flights > 0 {
            return;
        }
        let mut now = Read::new(stamp, readers);
        // Who knows of a read knows of all at earlier clocks.
        if last.clock == now.clock {
            if last.sub == now.sub {
                now.lanes |= last.lanes;
                now.together |= last.together;
            } else {
                let earlier = self.earlier.entry((warp, granule)).or_default();
                earlier.push(*last);
                earlier.retain_mut(|read| {
                    read.lanes &= !now.lanes;
                    read.together &= !now.together;
                    read.clock == now.clock && (read.lanes != 0 || read.together)
                });
            }
        }
        *last = now;
    }

    /// A write of `bytes` bytes at `addr`: the offset at which they lie.
    pub fn write(&mut self, actor: &Actor, addr: u32, bytes: u32) -> Result<usize, Fault> {
        self.overwrite(actor, None, Piece::aligned(addr, bytes), State::Written)
    }

    /// The 8 bytes at `addr` become an mbarrier.
    pub fn make_mbarrier(&mut self, actor: &Actor, addr: u32) -> Result<usize, Fault> {
        self.overwrite(actor, None, Piece::aligned(addr, 8), State::Mbarrier)
    }

    /// A copy to `addr` begins: from now on, until [`Shared::land`], nobody may touch it.
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
        for granule in self.granules(offset, piece.bytes) {
            let write = &self.writes[granule];
            match self.state[granule] {
                State::Fresh => {}
                State::Written if actor.sees(write) => {
                    if fences.is_some_and(|fences| !fences.publish(actor, write)) {
                        return Err(self.unfenced(actor, granule));
                    }
                }
                state => return Err(self.refuse(actor, granule, state)),
            }
            self.check_readers(actor, granule)?;
            self.state[granule] = state;
            self.writes[granule] = actor.stamp;
        }
        Ok(offset)
    }

    /// Every earlier read of the granule must be ordered before the write.
    fn check_readers(&self, actor: &Actor, granule: usize) -> Result<(), Fault> {
        for (warp, plane) in self.reads.iter().enumerate() {
            let last = &plane[granule];
            let in_flight = last.flights > 0;
            if last.clock == 0 || !in_flight && actor.sees_warp(warp, last.clock) {
                continue;
            }
            let reader = match warp == self.reads.len() - 1 {
                true => ENGINE,
                false => warp as u8,
            };
            let earlier = self.earlier.get(&(warp, granule)).into_iter().flatten();
            let mut stamps = std::iter::once(last)
                .chain(earlier)
                .flat_map(|read| read.stamps(actor.stamp.block, reader));
            if let Some(earlier) = stamps.find(|stamp| in_flight || !actor.sees(stamp)) {
                return Err(Kind::Race {
                    earlier: earlier.access(),
                    later: actor.access(),
                    place: Place::Shared((granule * GRANULE) as i64),
                }
                .into());
            }
        }
        Ok(())
    }

    fn refuse(&self, actor: &Actor, granule: usize, state: State) -> Fault {
        let place = Place::Shared((granule * GRANULE) as i64);
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
            place: Place::Shared((granule * GRANULE) as i64),
        }
        .into()
    }
}
