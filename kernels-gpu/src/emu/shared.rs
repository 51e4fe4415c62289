//! Shared memory that knows what was written, by whom, who has read it since, and what is still on its way.

use std::panic::Location;

use super::Checks;
use super::clock::{MANY, Stamp, TOGETHER};
use super::fault::{Fault, Kind, Place};
use super::machine::{Actor, Machine};
use super::site::{self, Site};

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
}

/// The last read by one warp.
#[derive(Clone, Copy, Default)]
struct Read {
    clock: u32,
    site: Site,
    sub: u16,
    lane: u8,
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
    /// Per warp, per granule.
    reads: Vec<Vec<Read>>,
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
            reads: vec![vec![Read::default(); granules]; warps as usize],
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
    }

    /// The bytes at an offset that one of the functions below gave.
    pub fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.data[offset..offset + N]);
        bytes
    }

    /// Replaces the bytes at an offset that one of the functions below gave.
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.data[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Marks the bytes at an offset as not yet arrived.
    pub fn poison(&mut self, offset: usize, bytes: usize) {
        self.data[offset..offset + bytes].fill(POISON);
    }

    fn locate(&self, actor: &Actor, addr: u32, bytes: u32) -> Result<usize, Fault> {
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
        if !addr.is_multiple_of(bytes) {
            return Err(Kind::Misaligned {
                access: actor.access(),
                place,
                alignment: bytes,
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
        let offset = self.locate(actor, addr, bytes)?;
        let stamp = &actor.stamp;
        let warp = usize::from(stamp.warp);
        for granule in self.granules(offset, bytes) {
            let write = &self.writes[granule];
            match self.state[granule] {
                State::Written if actor.sees(write) => {}
                state => return Err(self.refuse(actor, granule, state)),
            }
            let read = &mut self.reads[warp][granule];
            let by = match readers {
                Readers::Lane => stamp.lane,
                Readers::Warp => TOGETHER,
            };
            let lane = match (read.clock == stamp.clock, read.lane) {
                (true, lane) if lane != by && lane != TOGETHER && by != TOGETHER => MANY,
                (true, lane) if by == TOGETHER => lane,
                _ => by,
            };
            *read = Read {
                clock: stamp.clock,
                site: stamp.site,
                sub: stamp.sub,
                lane,
            };
        }
        Ok(offset)
    }

    /// A write of `bytes` bytes at `addr`: the offset at which they lie.
    pub fn write(&mut self, actor: &Actor, addr: u32, bytes: u32) -> Result<usize, Fault> {
        self.overwrite(actor, addr, bytes, State::Written)
    }

    /// A copy to `addr` begins: from now on, until [`Shared::land`], nobody may touch it.
    pub fn begin_copy(&mut self, actor: &Actor, addr: u32, bytes: u32) -> Result<usize, Fault> {
        self.overwrite(actor, addr, bytes, State::InFlight)
    }

    /// The thread that began a copy to `offset` has waited for it.
    pub fn land(&mut self, actor: &Actor, offset: usize, bytes: u32) {
        for granule in self.granules(offset, bytes) {
            self.state[granule] = State::Written;
            self.writes[granule] = Stamp {
                site: self.writes[granule].site,
                ..actor.stamp
            };
        }
    }

    fn overwrite(
        &mut self,
        actor: &Actor,
        addr: u32,
        bytes: u32,
        state: State,
    ) -> Result<usize, Fault> {
        let offset = self.locate(actor, addr, bytes)?;
        for granule in self.granules(offset, bytes) {
            match self.state[granule] {
                State::Fresh => {}
                State::Written if actor.sees(&self.writes[granule]) => {}
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
            let Read {
                clock,
                site,
                sub,
                lane,
            } = plane[granule];
            let stamp = Stamp {
                block: actor.stamp.block,
                clock,
                site,
                sub,
                warp: warp as u8,
                lane,
            };
            if clock != 0 && !actor.sees(&stamp) {
                let place = Place::Shared((granule * GRANULE) as i64);
                return Err(Kind::Race {
                    earlier: stamp.access(),
                    later: actor.access(),
                    place,
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
        }
        .into()
    }
}

/// `ld.shared` of `N` registers.
#[track_caller]
#[inline]
pub(crate) fn load<const N: usize>(instruction: &'static str, addr: u32) -> [u32; N] {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    machine.count_load(site);
    let who = machine.current.get();
    let words = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, shared) = block.actor(who, site);
        shared
            .read(&actor, addr, (N * 4) as u32, Readers::Lane)
            .map(|offset| std::array::from_fn(|i| u32::from_le_bytes(shared.bytes(offset + i * 4))))
    };
    machine.settle(words, [0; N])
}

/// `st.shared` of `N` registers.
#[track_caller]
#[inline]
pub(crate) fn store<const N: usize>(instruction: &'static str, addr: u32, words: [u32; N]) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let stored = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, shared) = block.actor(who, site);
        shared.write(&actor, addr, (N * 4) as u32).map(|offset| {
            for (i, word) in words.iter().enumerate() {
                shared.fill(offset + i * 4, &word.to_le_bytes());
            }
        })
    };
    machine.settle(stored, ());
    machine.progress();
}
