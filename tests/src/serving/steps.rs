//! What happens in an engine: steps drawn at random, such that all of them can be taken.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::allocator::Allocator;
use crate::cases::serving::ServingCase;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A sequence without rows comes.
    Admit { slot: usize },
    /// A sequence begins with the first rows of another, in the same pages.
    Fork {
        from: usize,
        slot: usize,
        len: usize,
    },
    /// Sequences get new rows, whose queries attend over all that they have.
    Grow(Call),
    /// Queries attend over sequences that get no rows.
    Read(Call),
    /// A sequence loses its last rows, as after a speculation that failed.
    Cut { slot: usize, len: usize },
    /// A sequence ends.
    Finish { slot: usize },
}

/// Sequences that share a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The sequences and their rows in this call.
    pub parts: Vec<Part>,
    /// Where these rows lie.
    pub rows: Rows,
}

/// A sequence of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub slot: usize,
    pub n_rows: usize,
}

/// Where the rows of a call lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// A batch entry for each sequence; all have as many.
    Padded,
    /// One sequence behind the other, then so many rows of nobody.
    Packed { behind: usize },
}

impl Call {
    /// The most rows of a sequence.
    pub fn longest(&self) -> usize {
        let rows = self.parts.iter().map(|part| part.n_rows);
        rows.max().unwrap_or(0)
    }

    /// Where each sequence's rows begin, and where the last ones end.
    pub fn begins(&self) -> Vec<usize> {
        let mut begins = vec![0];
        for part in &self.parts {
            begins.push(begins[begins.len() - 1] + part.n_rows);
        }
        begins
    }

    /// Rows of the tensors.
    pub fn total(&self) -> usize {
        let own: usize = self.parts.iter().map(|part| part.n_rows).sum();
        match self.rows {
            Rows::Padded => own,
            Rows::Packed { behind } => own + behind,
        }
    }
}

/// The next step.
pub fn draw(rng: &mut StdRng, case: &ServingCase, pages: &Allocator) -> Step {
    let (live, idle) = pages.slots();
    let (any, free) = (live.choose(rng).copied(), idle.choose(rng).copied());
    let (Some(any), free) = (any, free) else {
        return Step::Admit {
            slot: free.unwrap_or(0),
        };
    };
    let some_rows = rng.random_range(0..=pages.len(any));
    match (rng.random_range(0..100), free) {
        (0..12, Some(slot)) => Step::Admit { slot },
        (12..24, Some(slot)) => Step::Fork {
            from: any,
            slot,
            len: match rng.random() {
                true => pages.len(any),
                false => some_rows,
            },
        },
        (24..30, _) => Step::Finish { slot: any },
        (30..36, _) => Step::Cut {
            slot: any,
            len: some_rows,
        },
        (36..46, _) => read(rng, live),
        _ => grow(rng, case, pages, live).unwrap_or(Step::Finish { slot: any }),
    }
}

/// Up to eight queries of some sequences, more than they have keys now and then.
fn read(rng: &mut StdRng, live: Vec<usize>) -> Step {
    let most = rng.random_range(1..=8);
    let rows = rows(rng);
    let parts = some(rng, live).into_iter().map(|slot| Part {
        slot,
        n_rows: match rows {
            Rows::Padded => most,
            Rows::Packed { .. } => rng.random_range(0..=most),
        },
    });
    Step::Read(Call {
        parts: parts.collect(),
        rows,
    })
}

/// A row, a chunk of rows or none of some sequences, as long as there are pages; `None` where no sequence has room.
fn grow(rng: &mut StdRng, case: &ServingCase, pages: &Allocator, live: Vec<usize>) -> Option<Step> {
    let rows = rows(rng);
    let chunk = rng.random_range(2..=12);
    let of_each = if rng.random_ratio(2, 3) { 1 } else { chunk };
    let mut n_free = pages.n_free();
    let mut parts = Vec::new();
    for slot in some(rng, live) {
        let room = case.seqlen - pages.len(slot);
        let n_rows = match (rows, rng.random_range(0..10)) {
            (Rows::Padded, _) => of_each,
            (_, 0) => 0,
            (_, 1..7) => 1,
            _ => rng.random_range(2..=12),
        };
        let n_needed = match n_rows <= room {
            true => pages.n_needed(slot, n_rows),
            false => usize::MAX,
        };
        if n_needed <= n_free {
            n_free -= n_needed;
            parts.push(Part { slot, n_rows });
        }
    }
    let call = Call { parts, rows };
    (call.longest() > 0).then_some(Step::Grow(call))
}

fn rows(rng: &mut StdRng) -> Rows {
    match rng.random_range(0..5) {
        0..2 => Rows::Padded,
        behind => Rows::Packed { behind: behind - 2 },
    }
}

/// At least one of these, in any order.
fn some(rng: &mut StdRng, mut of: Vec<usize>) -> Vec<usize> {
    of.shuffle(rng);
    of.truncate(rng.random_range(1..=of.len().max(1)));
    of
}
