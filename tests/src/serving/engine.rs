//! A serving engine: two pools of pages, a table, and the library's calls.

use ferroflash::{
    Algorithm, Append, AppendInputs, AppendOutputs, AppendProblem, Attention, Device, Element,
    Error, Inputs, Outputs, Pages, Problem,
};

use super::allocator::{Allocator, Copy};
use super::bug::Bug;
use super::steps::{Call, Rows, Step};
use crate::buffer::{Arrangement, Buffer, Number};
use crate::cases::appends::Tables;
use crate::cases::serving::ServingCase;
use crate::oracle::Output;
use crate::trial;

/// The rows of a call, dense: `[rows, heads, head_dim]`.
#[derive(Clone, Debug)]
pub struct NewRows {
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub v: Vec<f64>,
}

/// What the engine has.
#[derive(Debug)]
pub struct Engine<T> {
    case: ServingCase,
    bug: Bug,
    /// Who has which pages.
    pub pages: Allocator,
    /// A row of entries for each slot, as the calls are given them.
    pub table: Vec<i32>,
    /// Keys, `[n_pages, page_size, heads_k, head_dim]`.
    pub k: Buffer<T>,
    /// Values.
    pub v: Buffer<T>,
}

impl<T: Element + Number> Engine<T> {
    pub fn new(case: &ServingCase, bug: Bug) -> Result<Engine<T>, Error> {
        let shape = [case.n_pages, case.page_size, case.heads_k, case.head_dim];
        let mut engine = Engine {
            case: *case,
            bug,
            pages: Allocator::new(case, bug),
            table: vec![-1; case.n_slots * case.columns()],
            k: Buffer::unwritten(shape, case.arrangement)?,
            v: Buffer::unwritten(shape, case.arrangement)?,
        };
        (0..case.n_slots).for_each(|slot| engine.enter(slot, None));
        Ok(engine)
    }

    /// Takes a step that calls nothing.
    pub fn take(&mut self, step: &Step) {
        let slot = match *step {
            Step::Admit { slot } => {
                self.pages.admit(slot);
                slot
            }
            Step::Fork { from, slot, len } => {
                self.pages.fork(from, slot, len);
                slot
            }
            Step::Cut { slot, len } => {
                self.pages.cut(slot, len);
                slot
            }
            Step::Finish { slot } => {
                self.pages.finish(slot);
                slot
            }
            Step::Grow(_) | Step::Read(_) => return,
        };
        self.enter(slot, None);
        self.forget();
    }

    /// Writes the pages of a slot into the table; behind the last one it says what no page is.
    fn enter(&mut self, slot: usize, copy: Option<Copy>) {
        let wrong = [i32::MIN, -1, self.case.n_pages as i32, i32::MAX];
        let columns = self.case.columns();
        let held = self.pages.sequence(slot);
        for column in 0..columns {
            let page = held.and_then(|held| held.pages.get(column));
            let entry = &mut self.table[slot * columns + column];
            *entry = match (page, copy) {
                (Some(&page), Some(copy)) if page == copy.to && self.bug == Bug::StaleEntry => {
                    copy.from as i32
                }
                (Some(&page), _) => page as i32,
                (None, _) => wrong[(slot + column) % wrong.len()],
            };
        }
    }

    /// Makes every row NaN that no sequence has.
    fn forget(&mut self) {
        for (row, owned) in self.pages.owned().into_iter().enumerate() {
            if !owned {
                let at = [row / self.case.page_size, row % self.case.page_size];
                self.k.forget_row(at);
                self.v.forget_row(at);
            }
        }
    }

    /// Appends the rows of a call; returns the queries, rotated where they are to be.
    pub fn append(
        &mut self,
        device: &Device,
        tables: Option<&Tables>,
        call: &Call,
        rows: &NewRows,
    ) -> Result<Vec<f64>, String> {
        let lens = self.lens(call);
        for part in &call.parts {
            let copy = self.pages.grow(part.slot, part.n_rows)?;
            if let Some(Copy { from, to, n_rows }) = copy {
                for row in 0..n_rows {
                    self.k.copy_row([from, row], [to, row]);
                    self.v.copy_row([from, row], [to, row]);
                }
            }
            self.enter(part.slot, copy);
        }
        // Rows that a sequence had alone in a page of which it has a copy now.
        self.forget();
        let q = self.run_append(device, tables, call, rows, &lens);
        if self.bug == Bug::StrayWrite
            && let Some(row) = self.pages.owned().iter().position(|owned| !owned)
        {
            let at = [row / self.case.page_size, row % self.case.page_size];
            let page = self.pages.slots().0.into_iter().find_map(|slot| {
                let held = self.pages.sequence(slot)?;
                held.pages.first().copied()
            });
            self.k.copy_row([page.unwrap_or(at[0]), 0], at);
        }
        q.map_err(|error| format!("the append: {error}"))
    }

    fn run_append(
        &mut self,
        device: &Device,
        tables: Option<&Tables>,
        call: &Call,
        rows: &NewRows,
        lens: &[i32],
    ) -> Result<Vec<f64>, Error> {
        let case = self.case;
        let builder = AppendProblem::builder(case.dtype)
            .batch(call.parts.len())
            .heads_k(case.heads_k)
            .head_dim(case.head_dim)
            .seqlen_cache(case.seqlen)
            .pages(case.pages());
        let builder = match call.rows {
            Rows::Padded => builder.seqlen_new(call.longest()),
            Rows::Packed { .. } => builder.packed_new(call.total()),
        };
        let builder = match case.rotary {
            Some(rotary) => builder
                .rotary(rotary.pairs, rotary.rotary_dim, case.seqlen)
                .heads_q(case.heads_q),
            None => builder,
        };
        let problem = builder.build()?;
        let filled = |values: &[f64], shape| Buffer::<T>::filled(values, shape, ROWS);
        let (k, v) = (
            filled(&rows.k, problem.shape_new())?,
            filled(&rows.v, problem.shape_new())?,
        );
        let q = filled(&rows.q, self.case.shape_q(call))?;
        let mut q_out = Buffer::<T>::unwritten(self.case.shape_q(call), ROWS)?;
        let (k, v, q) = (k.view()?, v.view()?, q.view()?);
        let (begins, table) = (begins(call), self.table_of(call));
        let mut inputs = AppendInputs::new(&k, &v, lens).page_table(&table);
        if let Rows::Packed { .. } = call.rows {
            inputs = inputs.cu_seqlens_new(&begins);
        }
        let mut outputs = AppendOutputs::new(self.k.view_mut()?, self.v.view_mut()?);
        if let Some(tables) = tables {
            inputs = inputs.rotary(tables.cos.slice(), tables.sin.slice());
            inputs.q = Some(q);
            outputs = outputs.q_out(q_out.view_mut()?);
        }
        Append::new(device, problem)?.run(&inputs, &mut outputs)?;
        Ok(match tables {
            Some(_) => q_out.values(),
            None => rows.q.clone(),
        })
    }

    /// Attends over all rows of the sequences of a call.
    pub fn attend(
        &self,
        device: &Device,
        algorithm: Algorithm,
        call: &Call,
        q: &[f64],
    ) -> Result<Output, String> {
        let output = self.run_attention(device, algorithm, call, q);
        output.map_err(|error| format!("attention: {error}"))?
    }

    /// The inner error says what was written that should not have been.
    fn run_attention(
        &self,
        device: &Device,
        algorithm: Algorithm,
        call: &Call,
        q: &[f64],
    ) -> Result<Result<Output, String>, Error> {
        let (case, shape) = (self.case, self.case.shape_q(call));
        let builder = Problem::builder(case.dtype)
            .batch(call.parts.len())
            .seqlen_q(call.longest())
            .seqlen_k(case.seqlen)
            .heads_q(case.heads_q)
            .heads_k(case.heads_k)
            .head_dim(case.head_dim)
            .mask(case.mask)
            .pages(case.pages());
        let problem = match call.rows {
            Rows::Padded => builder.build()?,
            Rows::Packed { .. } => builder.packed_q(call.total()).build()?,
        };
        let q = Buffer::<T>::filled(q, shape, ROWS)?;
        let (q, k, v) = (q.view()?, self.k.view()?, self.v.view()?);
        let (begins, table, mut lens) = (begins(call), self.table_of(call), self.lens(call));
        for (len, part) in lens.iter_mut().zip(&call.parts) {
            *len = match self.bug {
                Bug::OldLength => *len - part.n_rows.min(*len as usize) as i32,
                Bug::LongLength => (*len as usize + 1)
                    .min((*len as usize).next_multiple_of(case.page_size))
                    .min(case.seqlen) as i32,
                _ => *len,
            };
        }
        let mut inputs = Inputs::new(&q, &k, &v).seqused_k(&lens).page_table(&table);
        if let Rows::Packed { .. } = call.rows {
            inputs = inputs.cu_seqlens_q(&begins);
        }
        let mut o = Buffer::<T>::unwritten(shape, ROWS)?;
        let mut lse = trial::Rows::unwritten(problem.shape_lse().iter().product());
        let mut outputs = Outputs::new(o.view_mut()?, lse.slice_mut());
        let attention = Attention::new(device, problem)?.with_algorithm(algorithm);
        attention.forward(&inputs, &mut outputs)?;
        if o.strayed().is_some() || lse.strayed() {
            return Ok(Err("memory beside o or lse was written to".into()));
        }
        Ok(Ok(Output {
            o: o.values(),
            lse: lse.slice().iter().copied().map(f64::from).collect(),
        }))
    }

    /// Rows of the sequences of a call.
    fn lens(&self, call: &Call) -> Vec<i32> {
        let parts = call.parts.iter();
        parts.map(|part| self.pages.len(part.slot) as i32).collect()
    }

    /// The table of a call: the rows of its slots.
    fn table_of(&self, call: &Call) -> Vec<i32> {
        let columns = self.case.columns();
        let mut slots: Vec<usize> = call.parts.iter().map(|part| part.slot).collect();
        if self.bug == Bug::WrongSlot {
            slots.sort_unstable();
        }
        let rows = slots.into_iter();
        rows.flat_map(|slot| &self.table[slot * columns..][..columns])
            .copied()
            .collect()
    }
}

/// How the rows of a call lie.
const ROWS: Arrangement = Arrangement::Padded;

/// `cu_seqlens` of a call.
fn begins(call: &Call) -> Vec<i32> {
    call.begins().into_iter().map(|at| at as i32).collect()
}

impl ServingCase {
    /// Columns of the table: one more than the longest sequence needs.
    pub fn columns(&self) -> usize {
        self.seqlen.div_ceil(self.page_size) + 1
    }

    fn pages(&self) -> Pages {
        Pages::new(self.n_pages, self.page_size).columns(self.columns())
    }

    /// The shape of q in a call.
    fn shape_q(&self, call: &Call) -> [usize; 4] {
        let (heads, head_dim) = (self.heads_q, self.head_dim);
        match call.rows {
            Rows::Padded => [call.parts.len(), call.longest(), heads, head_dim],
            Rows::Packed { .. } => [1, call.total(), heads, head_dim],
        }
    }
}
