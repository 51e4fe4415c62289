//! A serving engine, simulated: sequences come, grow, share pages, lose rows and end, for thousands of random steps over one pool of pages.
//!
//! New rows go into the pages by [`Append`](ferroflash::Append), and queries attend over them, sequences of all lengths in one call. A ledger keeps the
//! rows of every sequence side by side, and after every step:
//!
//! - what was appended is what the oracle says, copied or rotated; o and lse are the oracle's;
//! - every row of the pools is, bit for bit, that of the sequences that have it, and NaN where none has it: so no call reads such a row into a
//!   result, or writes one;
//! - every page is free or some sequence's, and none is lost. When all sequences have ended, all pages are free.
//!
//! A failure says at which step of which engine; the same seed takes the same steps.

mod allocator;
mod bug;
mod engine;
mod ledger;
mod steps;
#[cfg(test)]
mod tests;

use ferroflash::{Algorithm, Device, Dtype, Element};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::bug::Bug;
use self::engine::{Engine, NewRows};
use self::ledger::Ledger;
use self::steps::{Call, Step, draw};
use crate::beside::check_cases;
use crate::buffer::Number;
use crate::cases::appends::Tables;
use crate::cases::serving::{self, ServingCase};
use crate::inputs::round;
use crate::sample;
use crate::subject::Subject;

/// Lets the engines of a subject run; panics with every failure. `test` is the path of the test.
pub fn check(subject: &Subject, algorithm: Algorithm, test: &str) {
    if subject.cannot_run(algorithm) {
        return;
    }
    let cases = serving::all(subject.backend, sample::seed());
    check_cases(subject, test, &cases, |case| {
        simulate(subject, algorithm, case, Bug::None).map(Some)
    });
}

/// How close the results of all steps came.
fn simulate(
    subject: &Subject,
    algorithm: Algorithm,
    case: &ServingCase,
    bug: Bug,
) -> Result<f64, String> {
    match case.dtype {
        Dtype::Bf16 => typed::<bf16>(subject, algorithm, case, bug),
        Dtype::F16 => typed::<f16>(subject, algorithm, case, bug),
        Dtype::F32 => typed::<f32>(subject, algorithm, case, bug),
    }
}

fn typed<T: Element + Number>(
    subject: &Subject,
    algorithm: Algorithm,
    case: &ServingCase,
    bug: Bug,
) -> Result<f64, String> {
    let mut simulation = Simulation {
        case: *case,
        algorithm,
        tables: case
            .rotary
            .and_then(|rotary| Tables::new(rotary, case.seqlen)),
        engine: Engine::<T>::new(case, bug).map_err(|error| error.to_string())?,
        ledger: Ledger::new(case),
    };
    // Held open: a GPU keeps its kernels.
    let _device = (subject.open)(case.seed)?;
    let mut rng = StdRng::seed_from_u64(case.seed);
    let mut worst = 0.0f64;
    for nth in 0..case.n_steps {
        let step = draw(&mut rng, case, &simulation.engine.pages);
        // The emulator's threads run in another order in every step.
        let device = (subject.open)(case.seed.wrapping_add(nth as u64))?;
        let close = simulation.take(&device, &step, &mut rng);
        worst =
            worst.max(close.map_err(|failure| {
                format!("step {nth} of {}, {step:?}: {failure}", case.n_steps)
            })?);
    }
    simulation.end()?;
    Ok(worst)
}

/// An engine, and what it must hold.
struct Simulation<T> {
    case: ServingCase,
    algorithm: Algorithm,
    tables: Option<Tables>,
    engine: Engine<T>,
    ledger: Ledger,
}

impl<T: Element + Number> Simulation<T> {
    /// Takes a step and checks everything; says how close results came.
    fn take(&mut self, device: &Device, step: &Step, rng: &mut StdRng) -> Result<f64, String> {
        let mut close = 0.0;
        match step {
            Step::Grow(call) => {
                let rows = self.rows(call, rng);
                let tables = self.tables.as_ref();
                let q = self.engine.append(device, tables, call, &rows)?;
                close = self.ledger.note(&self.engine, tables, call, &rows, &q)?;
                close = self.attend(device, call, &q)?.max(close);
            }
            Step::Read(call) => {
                let rows = self.rows(call, rng);
                close = self.attend(device, call, &rows.q)?;
            }
            _ => {
                self.engine.take(step);
                self.ledger.take(step);
            }
        }
        self.ledger.check_pools(&self.engine)?;
        self.engine.pages.check()?;
        Ok(close)
    }

    fn attend(&self, device: &Device, call: &Call, q: &[f64]) -> Result<f64, String> {
        let output = self.engine.attend(device, self.algorithm, call, q)?;
        self.ledger.judge(call, q, &output)
    }

    /// Random rows; those of nobody are NaN.
    fn rows(&self, call: &Call, rng: &mut StdRng) -> NewRows {
        let own: usize = call.parts.iter().map(|part| part.n_rows).sum();
        let mut of = |heads: usize| {
            let elems = heads * self.case.head_dim;
            let mut rows = vec![f64::NAN; call.total() * elems];
            for x in &mut rows[..own * elems] {
                *x = round(rng.random_range(-2.0..2.0), self.case.dtype);
            }
            rows
        };
        NewRows {
            q: of(self.case.heads_q),
            k: of(self.case.heads_k),
            v: of(self.case.heads_k),
        }
    }

    /// Ends every sequence: then all pages are free.
    fn end(&mut self) -> Result<(), String> {
        for slot in self.engine.pages.slots().0 {
            let step = Step::Finish { slot };
            self.engine.take(&step);
            self.ledger.take(&step);
        }
        self.ledger.check_pools(&self.engine)?;
        self.engine.pages.check()?;
        match self.engine.pages.n_free() == self.case.n_pages {
            true => Ok(()),
            false => Err(format!(
                "when all sequences had ended, {} of {} pages were free",
                self.engine.pages.n_free(),
                self.case.n_pages
            )),
        }
    }
}
