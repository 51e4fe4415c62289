//! Sequences of different lengths: which rows of the tensors belong to each.
//!
//! The rows of q, or of k and v, are padded (`[batch, seqlen, heads, head_dim]`, a batch entry for each sequence) or packed
//! (`[total, heads, head_dim]`, one sequence after the other; `cu_seqlens` has the first row of each, and the end of the last). For either,
//! `seqused` may give how many of its rows a sequence uses, and `leftpad` the first of these. Rows outside every sequence are not read; their
//! results are o = 0, lse = −∞ and gradients of 0.

pub(crate) mod new_rows;

use std::ops::Range;

use crate::arguments::Argument;
use crate::error::ProblemError;
use crate::problem::{Fp8Kv, Pages, Problem};

/// The rows of one sequence, of q or of k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Their batch entry in the tensor; 0 if it is packed.
    pub(crate) batch_idx: usize,
    /// The first row.
    pub(crate) first: usize,
    /// The number of rows.
    pub(crate) len: usize,
}

/// q and o, or k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Queries,
    Keys,
}

/// The vectors that give the places of a side's sequences.
struct Vectors {
    cu_seqlens: Argument,
    seqused: Argument,
    leftpad: Option<Argument>,
}

impl Side {
    pub(crate) const BOTH: [Side; 2] = [Side::Queries, Side::Keys];

    fn vectors(self) -> Vectors {
        match self {
            Side::Queries => Vectors {
                cu_seqlens: Argument::CuSeqlensQ,
                seqused: Argument::SeqUsedQ,
                leftpad: None,
            },
            Side::Keys => Vectors {
                cu_seqlens: Argument::CuSeqlensK,
                seqused: Argument::SeqUsedK,
                leftpad: Some(Argument::LeftpadK),
            },
        }
    }

    /// The most rows of a sequence and, if they are packed, the rows of all.
    fn rows(self, problem: &Problem) -> (usize, Option<usize>) {
        match self {
            Side::Queries => (problem.seqlen_q(), problem.total_q()),
            Side::Keys => (problem.seqlen_k(), problem.total_k()),
        }
    }

    /// The rows of every sequence, in their order; an error says which length contradicts which. `vector` returns the numbers of an argument, as
    /// many as the problem needs, if it was given.
    pub(crate) fn spans<'a>(
        self,
        problem: &Problem,
        vector: impl Fn(Argument) -> Option<&'a [i32]>,
    ) -> Result<Vec<Span>, ProblemError> {
        let (seqlen, total) = self.rows(problem);
        let vectors = self.vectors();
        let missing = ProblemError::Missing {
            argument: vectors.cu_seqlens,
        };
        let packed = match total {
            None => None,
            Some(total) => Some((vector(vectors.cu_seqlens).ok_or(missing)?, total)),
        };
        let seqused = vector(vectors.seqused);
        let leftpad = vectors
            .leftpad
            .and_then(|argument| Some((argument, vector(argument)?)));
        let paged = match self {
            Side::Keys => Paged::of(problem, &vector)?,
            Side::Queries => None,
        };
        let of_sequence = |sequence: usize| {
            let (batch_idx, room) = match packed {
                None => (sequence, 0..seqlen),
                Some((cu_seqlens, total)) => {
                    let rows = room(vectors.cu_seqlens, cu_seqlens, sequence, seqlen, total)?;
                    (0, rows)
                }
            };
            let of = |argument| LengthOf { argument, sequence };
            let used = match seqused {
                Some(used) => of(vectors.seqused).within(used, sequence, 0..=room.len())?,
                None => room.len(),
            };
            let padding = match leftpad {
                Some((argument, padding)) => of(argument).within(padding, sequence, 0..=used)?,
                None => 0,
            };
            if let Some(paged) = &paged {
                paged.check(sequence, padding..used)?;
            }
            Ok(Span {
                batch_idx,
                first: room.start + padding,
                len: used - padding,
            })
        };
        (0..problem.batch()).map(of_sequence).collect()
    }
}

/// Refuses lengths that contradict each other or the problem.
pub(crate) fn check<'a>(
    problem: &Problem,
    vector: impl Fn(Argument) -> Option<&'a [i32]>,
) -> Result<(), ProblemError> {
    for side in Side::BOTH {
        side.spans(problem, &vector)?;
    }
    Ok(())
}

/// The page table of a problem whose keys and values are in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paged<'a> {
    table: &'a [i32],
    columns: usize,
    pages: Pages,
}

impl<'a> Paged<'a> {
    /// The table of this problem; `None` if it has no pages.
    pub(crate) fn of(
        problem: &Problem,
        vector: impl Fn(Argument) -> Option<&'a [i32]>,
    ) -> Result<Option<Paged<'a>>, ProblemError> {
        let sizes = (problem.seqlen_k(), problem.n_table_entries());
        Paged::new(problem.pages(), sizes, vector)
    }

    /// The table of sequences of at most `seqlen` rows, with `needed` entries.
    fn new(
        pages: Option<Pages>,
        (seqlen, needed): (usize, u64),
        vector: impl Fn(Argument) -> Option<&'a [i32]>,
    ) -> Result<Option<Paged<'a>>, ProblemError> {
        let Some(pages) = pages else {
            return Ok(None);
        };
        let argument = Argument::PageTable;
        let table = vector(argument).ok_or(ProblemError::Missing { argument })?;
        if table.len() as u64 != needed {
            let given = table.len() as u64;
            return Err(ProblemError::ElementCount {
                argument,
                given,
                needed,
            });
        }
        let columns = pages.n_columns(seqlen);
        Ok(Some(Paged {
            table,
            columns,
            pages,
        }))
    }

    /// The table of one sequence whose pages were copied by `table`: each entry is its own index.
    pub(crate) fn of_copies(table: &'a [i32], page_size: usize) -> Paged<'a> {
        Paged {
            table,
            columns: table.len(),
            pages: Pages::new(table.len(), page_size),
        }
    }

    /// Rows of a page.
    pub(crate) fn page_size(&self) -> usize {
        self.pages.page_size()
    }

    /// The entries of a sequence.
    pub(crate) fn entries(&self, sequence: usize) -> &'a [i32] {
        &self.table[sequence * self.columns..][..self.columns]
    }

    /// The page of a row of a sequence: one that has been checked.
    pub(crate) fn page_of(&self, sequence: usize, row: usize) -> usize {
        self.entries(sequence)[row / self.page_size()] as usize
    }

    /// Refuses pages of these rows that the pool does not have.
    fn check(&self, sequence: usize, rows: Range<usize>) -> Result<(), ProblemError> {
        let n_pages = self.pages.n_pages();
        let slots = match rows.is_empty() {
            true => 0..0,
            false => rows.start / self.page_size()..self.pages.n_slots(rows.end),
        };
        let exists = |&given: &i32| usize::try_from(given).is_ok_and(|page| page < n_pages);
        let entries = self.entries(sequence).iter().enumerate();
        let mut entries = entries.take(slots.end).skip(slots.start);
        match entries.find(|(_, given)| !exists(given)) {
            None => Ok(()),
            Some((slot, &given)) => Err(ProblemError::Page {
                sequence,
                slot,
                given,
                n_pages,
            }),
        }
    }
}

/// The entry of the scales of a row of a cache: its sequence, or its page, which has been checked.
pub(crate) fn scale_entry(
    scales: Fp8Kv,
    pages: Option<Paged>,
    sequence: usize,
    row: usize,
) -> usize {
    match (scales, pages) {
        (Fp8Kv::PerPage, Some(paged)) => paged.page_of(sequence, row),
        (Fp8Kv::PerPage | Fp8Kv::PerSequence, _) => sequence,
    }
}

/// The rows of a sequence among those of a packed tensor.
fn room(
    argument: Argument,
    cu_seqlens: &[i32],
    sequence: usize,
    seqlen: usize,
    total: usize,
) -> Result<Range<usize>, ProblemError> {
    let at = LengthOf { argument, sequence };
    let start = at.within(cu_seqlens, sequence, 0..=total)?;
    let most = start.saturating_add(seqlen).min(total);
    let end = at.within(cu_seqlens, sequence + 1, start..=most)?;
    Ok(start..end)
}

/// The sequence of a length.
#[derive(Clone, Copy)]
struct LengthOf {
    argument: Argument,
    sequence: usize,
}

impl LengthOf {
    /// An element of a vector.
    fn within(
        self,
        vector: &[i32],
        index: usize,
        allowed: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, ProblemError> {
        let LengthOf { argument, sequence } = self;
        let &given = vector.get(index).ok_or(ProblemError::ElementCount {
            argument,
            given: vector.len() as u64,
            needed: index as u64 + 1,
        })?;
        match usize::try_from(given) {
            Ok(length) if allowed.contains(&length) => Ok(length),
            _ => Err(ProblemError::Length {
                argument,
                sequence,
                given,
                min: *allowed.start(),
                max: *allowed.end(),
            }),
        }
    }
}
