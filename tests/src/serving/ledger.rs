//! What every sequence's rows must be: plain caches side by side, which know of no page.

use ferroflash::Element;
use ferroflash::rotary::Direction;

use super::engine::{Engine, NewRows};
use super::steps::{Call, Part, Rows, Step};
use crate::append::{Row, judge_row};
use crate::beside::bits;
use crate::buffer::{Buffer, Number};
use crate::cases::appends::Tables;
use crate::cases::serving::ServingCase;
use crate::compare::{Closeness, Comparison, Errors};
use crate::oracle::{self, Inputs, Output, Sizes, Terms};
use crate::tolerance::Quantity;

/// The rows of every sequence, `[rows, heads_k, head_dim]`.
#[derive(Clone, Debug)]
pub struct Ledger {
    case: ServingCase,
    sequences: Vec<Option<Caches>>,
}

#[derive(Clone, Debug, Default)]
struct Caches {
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Ledger {
    pub fn new(case: &ServingCase) -> Ledger {
        Ledger {
            case: *case,
            sequences: vec![None; case.n_slots],
        }
    }

    /// Elements of a row of k or v.
    fn row_elems(&self) -> usize {
        self.case.heads_k * self.case.head_dim
    }

    /// Takes a step that calls nothing.
    pub fn take(&mut self, step: &Step) {
        let of = |from: usize, len: usize| {
            let mut caches = self.sequences[from].clone().unwrap_or_default();
            caches.k.truncate(len * self.row_elems());
            caches.v.truncate(len * self.row_elems());
            Some(caches)
        };
        let (slot, caches) = match *step {
            Step::Admit { slot } => (slot, Some(Caches::default())),
            Step::Fork { from, slot, len } => (slot, of(from, len)),
            Step::Cut { slot, len } => (slot, of(slot, len)),
            Step::Finish { slot } => (slot, None),
            Step::Grow(_) | Step::Read(_) => return,
        };
        self.sequences[slot] = caches;
    }

    /// Judges rows that were appended, and queries that were rotated, and notes the rows' bits; says how close they came.
    pub fn note<T: Element + Number>(
        &mut self,
        engine: &Engine<T>,
        tables: Option<&Tables>,
        call: &Call,
        rows: &NewRows,
        q: &[f64],
    ) -> Result<f64, String> {
        let (case, elems) = (self.case, self.row_elems());
        let (pool_k, pool_v) = (engine.k.values(), engine.v.values());
        let mut worst = 0.0f64;
        let mut judge = |from: &[f64], to: &[f64], position: Option<usize>| {
            let heads = from.chunks(case.head_dim).zip(to.chunks(case.head_dim));
            for (from, to) in heads {
                let row = Row {
                    from,
                    to,
                    position,
                    descale: None,
                };
                let close = judge_row(case.dtype, tables, Direction::Forth, &row)?;
                worst = worst.max(close);
            }
            Ok::<(), String>(())
        };
        for (&Part { slot, n_rows }, first) in call.parts.iter().zip(call.begins()) {
            let caches = self.sequences[slot].get_or_insert_default();
            let before = caches.k.len() / elems;
            for row in 0..n_rows {
                let (position, new) = (before + row, first + row);
                let at = place(engine, &case, slot, position)? * elems;
                let (k, v) = (&pool_k[at..at + elems], &pool_v[at..at + elems]);
                let of_new = new * elems..(new + 1) * elems;
                let of_q = case.heads_q * case.head_dim;
                let of_q = new * of_q..(new + 1) * of_q;
                let judged = judge(&rows.k[of_new.clone()], k, Some(position))
                    .and_then(|()| judge(&rows.v[of_new], v, None))
                    .and_then(|()| judge(&rows.q[of_q.clone()], &q[of_q], Some(position)));
                judged.map_err(|failure| {
                    format!("new row {position} of sequence {slot}: {failure}")
                })?;
                caches.k.extend_from_slice(k);
                caches.v.extend_from_slice(v);
            }
        }
        Ok(worst)
    }

    /// Compares o and lse of a call with the oracle's; says how close they came.
    pub fn judge(&self, call: &Call, q: &[f64], output: &Output) -> Result<f64, String> {
        let (case, mut worst) = (self.case, 0.0f64);
        let q_elems = case.heads_q * case.head_dim;
        for (nth, (part, first)) in call.parts.iter().zip(call.begins()).enumerate() {
            let rows = first * q_elems..(first + part.n_rows) * q_elems;
            let lse: Vec<f64> = (0..case.heads_q * part.n_rows)
                .map(|at| {
                    let (head, row) = (at / part.n_rows, at % part.n_rows);
                    output.lse[match call.rows {
                        Rows::Padded => nth * case.heads_q * part.n_rows + at,
                        Rows::Packed { .. } => head * call.total() + first + row,
                    }]
                })
                .collect();
            let close = self.judge_part(part, &q[rows.clone()], &output.o[rows], &lse);
            let close = close.map_err(|failure| format!("sequence {}: {failure}", part.slot))?;
            worst = worst.max(close.worst);
        }
        if let Rows::Packed { behind } = call.rows {
            let n = call.total() - behind;
            let o = output.o[n * q_elems..].iter().all(|&o| o == 0.0);
            let mut lse = output.lse.chunks(call.total().max(1));
            let lse = lse.all(|lse| lse[n..].iter().all(|&lse| lse == f64::NEG_INFINITY));
            if !(o && lse) {
                return Err("a row of nobody is not o = 0 and lse = −∞".into());
            }
        }
        Ok(worst)
    }

    fn judge_part(
        &self,
        part: &Part,
        q: &[f64],
        o: &[f64],
        lse: &[f64],
    ) -> Result<Closeness, String> {
        let case = self.case;
        let none = Caches::default();
        let caches = self.sequences[part.slot].as_ref().unwrap_or(&none);
        let sizes = Sizes {
            batch: 1,
            seqlen_q: part.n_rows,
            seqlen_k: caches.k.len() / self.row_elems(),
            heads_q: case.heads_q,
            heads_k: case.heads_k,
            head_dim: case.head_dim,
            head_dim_v: case.head_dim,
        };
        let visible = oracle::visible(sizes, case.mask.window(), case.mask.prefix());
        let softmax_scale = 1.0 / (case.head_dim as f32).sqrt();
        let inputs = Inputs {
            sizes,
            q,
            k: &caches.k,
            v: &caches.v,
            softmax_scale: softmax_scale.into(),
            visible: &visible,
            block: None,
            edit: None,
            sinks: None,
            dropout: None,
        };
        let reference = oracle::forward(&inputs);
        let condition = oracle::condition(&inputs, &reference, &vec![0.0; q.len()], None);
        let of_lse = Terms::uniform(lse.len(), 1.0, 0.0);
        let check = |quantity, shape, actual, reference, terms| {
            let comparison = Comparison {
                quantity,
                arithmetic: case.dtype.into(),
                shape,
                actual,
                reference,
                terms,
                n_terms: sizes.seqlen_k,
                score: condition.score,
                errors: Errors::Independent,
            };
            comparison.check().map_err(|mismatch| mismatch.to_string())
        };
        let (n, heads) = (part.n_rows, case.heads_q);
        let of_o = [1, n, heads, case.head_dim];
        let o = check(Quantity::O, of_o, o, &reference.o, &condition.o)?;
        let of_rows = [1, heads, n, 1];
        Ok(o.and(check(Quantity::Lse, of_rows, lse, &reference.lse, &of_lse)?))
    }

    /// Every row of both pools is that of the sequence that has it, bit for bit, or NaN where none has it; and nothing beside the pools was
    /// written to.
    pub fn check_pools<T: Element + Number>(&self, engine: &Engine<T>) -> Result<(), String> {
        let (case, elems) = (self.case, self.row_elems());
        let pools = [engine.k.values(), engine.v.values()];
        let mut owned = vec![false; case.n_pages * case.page_size];
        for (slot, caches) in self.sequences.iter().enumerate() {
            let Some(Caches { k, v }) = caches else {
                continue;
            };
            for row in 0..k.len() / elems {
                let at = place(engine, &case, slot, row)?;
                owned[at] = true;
                for (pool, cache) in pools.iter().zip([k, v]) {
                    let (is, should_be) = (&pool[at * elems..], &cache[row * elems..]);
                    if bits(&is[..elems]) != bits(&should_be[..elems]) {
                        return Err(format!("row {row} of sequence {slot} has other bits"));
                    }
                }
            }
        }
        for (at, _) in owned.iter().enumerate().filter(|(_, owned)| !**owned) {
            let mut rows = pools.iter().map(|pool| &pool[at * elems..][..elems]);
            if !rows.all(|row| row.iter().all(|x| x.is_nan())) {
                let (page, row) = (at / case.page_size, at % case.page_size);
                return Err(format!("row {row} of page {page} is nobody's, and not NaN"));
            }
        }
        match [&engine.k, &engine.v].map(Buffer::strayed) {
            [None, None] => Ok(()),
            _ => Err("memory beside the pools was written to".into()),
        }
    }
}

/// Where in the pools, counted in rows, the table says that a row of a sequence lies.
fn place<T>(
    engine: &Engine<T>,
    case: &ServingCase,
    slot: usize,
    row: usize,
) -> Result<usize, String> {
    let entry = engine.table[slot * case.columns() + row / case.page_size];
    match usize::try_from(entry) {
        Ok(page) if page < case.n_pages => Ok(page * case.page_size + row % case.page_size),
        _ => Err(format!("row {row} of sequence {slot} is in page {entry}")),
    }
}
