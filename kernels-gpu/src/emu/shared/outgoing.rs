//! Copies from here to the shared memory of another block. The bytes may be read until they have landed there.

use std::collections::HashMap;

use super::{Piece, Shared};
use crate::emu::block::{Actor, Fences};
use crate::emu::clock::Stamp;
use crate::emu::fault::{Fault, Kind};

/// A copy.
#[derive(Clone, Copy)]
pub(in crate::emu) struct Sent {
    /// Its number.
    copy: u64,
    /// By whom it was issued.
    pub issued: Stamp,
    /// What it left where it landed.
    pub landed: Option<Stamp>,
}

/// The copies since it was last written, by granule.
pub(super) type Outgoing = HashMap<usize, Vec<Sent>>;

impl Shared {
    /// A copy of this number begins to another block: it reads the piece at any moment until [`Shared::end_sending`].
    pub fn begin_sending(
        &mut self,
        actor: &Actor,
        fences: Fences,
        piece: Piece,
        copy: u64,
    ) -> Result<usize, Fault> {
        let offset = self.locate(actor, piece)?;
        let mut checked = Stamp::default();
        for granule in self.granules(offset, piece.bytes) {
            self.check_async_read(actor, fences, granule, &mut checked)?;
            self.outgoing.entry(granule).or_default().push(Sent {
                copy,
                issued: actor.stamp,
                landed: None,
            });
        }
        Ok(offset)
    }

    /// The copy of this number has landed, and left this stamp.
    pub fn end_sending(&mut self, copy: u64, offset: usize, bytes: u32, landed: &Stamp) {
        for granule in self.granules(offset, bytes) {
            let mut sent = self.outgoing.get_mut(&granule).into_iter().flatten();
            if let Some(sent) = sent.find(|sent| sent.copy == copy) {
                sent.landed = Some(*landed);
            }
        }
    }

    /// Every copy of the granule must have landed before it is written, and the writer must know.
    pub(super) fn check_outgoing(&mut self, actor: &Actor, granule: usize) -> Result<(), Fault> {
        let sent = self.outgoing.remove(&granule).unwrap_or_default();
        let is_over = |sent: &Sent| sent.landed.is_some_and(|landed| actor.is_over(&landed));
        match sent.iter().find(|sent| !is_over(sent)) {
            Some(sent) => Err(Kind::Race {
                earlier: sent.issued.access(),
                later: actor.access(),
                place: self.place_of(actor, granule),
            }
            .into()),
            None => Ok(()),
        }
    }

    /// The copies of what has not been written since.
    pub fn sent(&self) -> impl Iterator<Item = &Sent> {
        self.outgoing.values().flatten()
    }
}
