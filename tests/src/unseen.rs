//! Lengths and tables of pages that are any numbers, and that nobody looks at before the kernels do: every call ends, touches no memory but its
//! own, leaves the counters of its workspace at 0, and gives what the same rows give by numbers that contradict nothing. Sequences that do not
//! follow one another have no rows.
//!
//! On the emulator what would hang or go astray is a fault, and a counter that is not 0 an error. On a GPU all calls of a case run on one queue,
//! between calls that must give the same bits; a margin lies around what they write; and a watchdog ends the program when a case does not end.

pub mod append;
mod gpu;

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use ferroflash::{
    Algorithm, Attention, Device, Error, Gradients, Inputs, OutputGradients, Outputs, Problem,
    Saved, Tensor,
};
use half::bf16;

use crate::beside::check_cases;
use crate::buffer::{Arrangement, Buffer};
use crate::cases::unseen::{Numbers, UnseenCase};
use crate::sample::{self, Choice};
use crate::subject::Subject;
use crate::suite::say;
use crate::trial::Rows;

/// How many times the numbers of a case are drawn.
const DRAWS: u64 = 48;

/// The same on the emulator, of all cases and of a sample.
const EMULATED_DRAWS: u64 = 12;
const SAMPLED_DRAWS: u64 = 6;

/// As long may a case take on a GPU, of which each kernel is compiled first.
const LIMIT: Duration = Duration::from_secs(120);
const LIMIT_OF_APPENDS: Duration = Duration::from_secs(30);

/// What a call writes, element by element as bits: o, lse and, of a backward pass, dQ, dK and dV.
type Bits = Vec<Vec<u32>>;

/// What a call reads beside its numbers.
struct Values {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_o: Vec<f64>,
}

/// Puts attention over such numbers to the test; panics with every failure.
pub fn check(subject: &Subject, test: &str, cases: &[UnseenCase]) {
    if cases.iter().any(|case| subject.cannot_run(case.algorithm)) {
        return;
    }
    check_cases(subject, test, cases, |case| {
        let problem = case.problem().map_err(|error| error.to_string())?;
        let values = Values::new(case, &problem);
        let device = (subject.open)(sample::seed())?;
        if device.as_cuda().is_some() {
            let _watched = Watchdog::new(format!("{test}: {case:?}"), LIMIT);
            gpu::check(&device, case, problem, &values)?;
            return Ok(Some(0.0));
        }
        let draws = match Choice::of(subject.backend) {
            Choice::All => EMULATED_DRAWS,
            _ => SAMPLED_DRAWS,
        };
        let first = sample::seed().wrapping_mul(SAMPLED_DRAWS) % DRAWS;
        for draw in first..first + draws {
            let numbers = case.draw(draw);
            let device = (subject.open)(draw.wrapping_add(sample::seed()))?;
            let failed = |error: String| format!("draw {draw}, {numbers:?}:\n{error}");
            check_emulated(&device, case, problem, &values, &numbers).map_err(failed)?;
        }
        Ok(Some(0.0))
    });
}

fn check_emulated(
    device: &Device,
    case: &UnseenCase,
    problem: Problem,
    values: &Values,
    numbers: &Numbers,
) -> Result<(), String> {
    let wild = match run(device, case, problem, values, numbers) {
        // Kernels that make no list work out every sequence, and then write rows that two of them have in either order.
        Err(Error::Emulator { report, .. })
            if makes_no_list(case)
                && case.tamed(numbers).is_none()
                && report.starts_with("data race") =>
        {
            return Ok(());
        }
        wild => wild.map_err(|error| error.to_string())?,
    };
    let Some(expected) = expected(case, numbers) else {
        return Ok(());
    };
    let tamed = match expected {
        Expected::Nothing => None,
        Expected::SameAs(tamed) => {
            let tamed = run(device, case, problem, values, &tamed);
            Some(tamed.map_err(|error| format!("tamed: {error}"))?)
        }
    };
    compare(&wild, tamed.as_ref())
}

/// What a call gives.
enum Expected {
    /// As a call in which no sequence has a row.
    Nothing,
    /// As one with these numbers.
    SameAs(Numbers),
}

/// What a call gives; `None`, where nobody says so.
fn expected(case: &UnseenCase, numbers: &Numbers) -> Option<Expected> {
    match case.tamed(numbers) {
        Some(tamed) => Some(Expected::SameAs(tamed)),
        None if makes_no_list(case) => None,
        None => Some(Expected::Nothing),
    }
}

/// Whether kernels look sequences up by themselves: those of `standard`, and flash2's for few queries.
fn makes_no_list(case: &UnseenCase) -> bool {
    let few = case.packed[0].is_none() && case.seqlens[0] * case.heads.0 / case.heads.1 <= 32;
    case.algorithm == Algorithm::Standard || case.algorithm == Algorithm::Flash2 && few
}

/// Bits are those of the tamed call or, without one, those of nothing: o and gradients of 0, and lse of −∞.
fn compare(wild: &Bits, tamed: Option<&Bits>) -> Result<(), String> {
    for (of, bits) in wild.iter().enumerate() {
        let nothing = match of {
            1 => f32::NEG_INFINITY.to_bits(),
            _ => 0,
        };
        let should_be = |at: usize| tamed.map_or(nothing, |tamed| tamed[of][at]);
        let wrong = (0..bits.len()).find(|&at| bits[at] != should_be(at));
        if let Some(at) = wrong {
            let [is, should_be] = [bits[at], should_be(at)].map(f32::from_bits);
            let name = ["o", "lse", "d_q", "d_k", "d_v"][of];
            let like = tamed.map_or("without a sequence", |_| "with tamed numbers");
            return Err(format!(
                "element {at} of {name} is {is} and, {like}, {should_be}"
            ));
        }
    }
    Ok(())
}

impl Values {
    fn new(case: &UnseenCase, problem: &Problem) -> Values {
        let waves = |shape: [usize; 4], step: f64| -> Vec<f64> {
            (0..shape.iter().product())
                .map(|at| (at as f64 * step).sin())
                .collect()
        };
        // Rows of a page that there is not are zeros: so are those of page 0.
        let pool = |shape: [usize; 4], step: f64| {
            let mut rows = waves(shape, step);
            let of_page = rows.len() / shape[0].max(1);
            rows[..case.page_size.map_or(0, |_| of_page)].fill(0.0);
            rows
        };
        Values {
            q: waves(problem.shape_q(), 0.37),
            k: pool(problem.shape_k(), 0.59),
            v: pool(problem.shape_v(), 0.83),
            d_o: waves(problem.shape_o(), 0.71),
        }
    }
}

/// The call's inputs.
fn inputs<'a>(case: &UnseenCase, [q, k, v]: [&Tensor<'a>; 3]) -> Inputs<'a> {
    match case.latent {
        true => Inputs::latent(q, k),
        false => Inputs::new(q, k, v),
    }
}

/// A call on the emulator.
fn run(
    device: &Device,
    case: &UnseenCase,
    problem: Problem,
    values: &Values,
    numbers: &Numbers,
) -> Result<Bits, Error> {
    let filled = |values: &[f64], shape| Buffer::<bf16>::filled(values, shape, Arrangement::Bshd);
    let unwritten = |shape| Buffer::<bf16>::unwritten(shape, Arrangement::Bshd);
    let (shape_q, shape_o) = (problem.shape_q(), problem.shape_o());
    let (shape_k, shape_v) = (problem.shape_k(), problem.shape_v());
    let (q, d_o) = (filled(&values.q, shape_q)?, filled(&values.d_o, shape_o)?);
    let (k, v) = (filled(&values.k, shape_k)?, filled(&values.v, shape_v)?);
    let mut given = inputs(case, [&q.view()?, &k.view()?, &v.view()?]);
    for (argument, numbers) in numbers.given() {
        given = given.with(argument, numbers);
    }
    let attention = Attention::new(device, problem)?.with_algorithm(case.algorithm);
    let mut o = unwritten(shape_o)?;
    let mut lse = Rows::unwritten(problem.shape_lse().iter().product());
    attention.forward(&given, &mut Outputs::new(o.view_mut()?, lse.slice_mut()))?;
    let mut written = vec![bits(&o), lse.slice().iter().map(|x| x.to_bits()).collect()];
    if case.backward {
        let mut gradients = [
            unwritten(shape_q)?,
            unwritten(shape_k)?,
            unwritten(shape_v)?,
        ];
        let [d_q, d_k, d_v] = &mut gradients;
        let mut into = Gradients::new(d_q.view_mut()?, d_k.view_mut()?, d_v.view_mut()?);
        let d_o = d_o.view()?;
        let saved = Saved::new(&o.view()?, lse.slice());
        attention.backward(&given, &saved, &OutputGradients::new(&d_o), &mut into)?;
        written.extend(gradients.iter().map(bits));
    }
    Ok(written)
}

fn bits(tensor: &Buffer<bf16>) -> Vec<u32> {
    tensor
        .values()
        .into_iter()
        .map(|x| (x as f32).to_bits())
        .collect()
}

/// Ends the program where a case takes too long: a GPU that waits for itself waits forever, and whoever waits for it.
struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    fn new(of: String, limit: Duration) -> Watchdog {
        let (alive, ended) = channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                say(&format!("{of}: has not ended after {} s", limit.as_secs()));
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}
