//! Reads of shared memory through the asynchronous proxy, which last: whoever writes while one is under way races with it.

use super::reads::{Read, Readers};
use super::{Piece, Shared, State};
use crate::emu::block::{Actor, Fences};
use crate::emu::clock::Stamp;
use crate::emu::fault::{Fault, Kind};

/// Who reads over a time.
#[derive(Clone, Copy)]
pub(in crate::emu) enum Reader {
    /// The tensor core of a warp.
    Warp(usize),
    /// The copy engine.
    Engine,
}

impl Shared {
    /// The number of one who reads.
    #[inline]
    fn number(&self, reader: Reader) -> usize {
        match reader {
            Reader::Warp(warp) => warp,
            Reader::Engine => self.reads.engine(),
        }
    }

    /// A read through the asynchronous proxy begins, and lasts until [`Shared::end_reading`].
    pub fn begin_reading(
        &mut self,
        actor: &Actor,
        fences: Fences,
        reader: Reader,
        piece: Piece,
    ) -> Result<usize, Fault> {
        let offset = self.locate(actor, piece)?;
        let number = self.number(reader);
        let mut checked = Stamp::default();
        for granule in self.granules(offset, piece.bytes) {
            self.check_async_read(actor, fences, granule, &mut checked)?;
            let read = self.reads.last(number, granule);
            let Some(flights) = read.flights.checked_add(1) else {
                return Err(Kind::Operand {
                    access: actor.access(),
                    what: "at most 255 reads of one place may be under way",
                    value: 256,
                }
                .into());
            };
            *read = Read::new(&actor.stamp, Readers::Warp);
            read.flights = flights;
        }
        Ok(offset)
    }

    /// Whether the asynchronous proxy may read a granule. Neighbours were mostly written together: `checked` is who wrote the
    /// last one.
    #[inline(always)]
    pub(super) fn check_async_read(
        &self,
        actor: &Actor,
        fences: Fences,
        granule: usize,
        checked: &mut Stamp,
    ) -> Result<(), Fault> {
        let write = &self.writes[granule];
        match self.state[granule] {
            State::Written if write == checked => {}
            State::Written if !actor.sees(write) => {
                return Err(self.refuse(actor, granule, State::Written));
            }
            State::Written if fences.publish(actor, write) => {}
            State::Written => return Err(self.unfenced(actor, granule)),
            state => return Err(self.refuse(actor, granule, state)),
        }
        *checked = *write;
        Ok(())
    }

    /// A read that began at this offset is over, and counts as one at this moment: by the warp's lanes together, or,
    /// for the copy engine, by the thread that waited.
    pub fn end_reading(&mut self, reader: Reader, offset: usize, bytes: u32, at: &Stamp) {
        let number = self.number(reader);
        for granule in self.granules(offset, bytes) {
            let read = self.reads.last(number, granule);
            read.flights -= 1;
            if read.flights > 0 {
                continue;
            }
            let at = Stamp {
                site: read.site,
                ..*at
            };
            match reader {
                Reader::Warp(_) => *read = Read::new(&at, Readers::Warp),
                Reader::Engine => {
                    *read = Read::default();
                    self.reads.note(&at, granule, Readers::Lane);
                }
            }
        }
    }
}
