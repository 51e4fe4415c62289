//! One suite for every backend: the same cases, both passes, every result; a second run for the same bits, and the
//! order that is not deterministic.
//!
//! The emulator runs a sample of the cases: [`mod@crate::sample`] says which, and how to run them all.
//!
//! What a backend cannot serve is counted as not eligible, never as passed, and only where this file expects it. A
//! backend that is not there says `[not run]` with the reason on standard error; the environment variable `REQUIRE`
//! (`REQUIRE=cuda`) makes a failure of that.

mod eligibility;

use std::io::Write;
use std::time::Instant;

use ferroflash::plan::DeviceInfo;
use ferroflash::plan::kinds;
use ferroflash::{Algorithm, Backend, Device, Mask, Order, Pass};
use ferroflash_kernels::variants::{self, Kind, TileShape};

use crate::cases::compact::has_compact_tiles;
use crate::cases::decode::is_decode;
use crate::cases::{self, Case};
use crate::compare::Closeness;
use crate::inputs::Values;
use crate::reference::Reference;
use crate::sample::{self, Choice};
use crate::subject::{Subject, Tiles};
use crate::trial::{self, Refusal};
pub(crate) use eligibility::is_eligible;

/// What is checked of a case beside its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// Both of these.
    Everything,
    /// That a second run gives the same bits.
    SecondRun,
    /// The results in the order that is not deterministic.
    FastestOrder,
    /// Neither.
    Nothing,
}

impl Beside {
    /// Everything; on the emulator, which is slow, one or the other, in an order that no cycle of the cases repeats.
    fn of_case(subject: &Subject, at: usize) -> Beside {
        match subject.backend {
            Backend::Emulated if at.count_ones().is_multiple_of(2) => Beside::SecondRun,
            Backend::Emulated => Beside::FastestOrder,
            _ => Beside::Everything,
        }
    }
}

/// What became of the cases of a set.
#[derive(Clone, Debug, Default)]
struct Counts {
    n_passed: usize,
    n_not_eligible: usize,
    closest: Closeness,
    /// The numbers of the cases that failed, and what is wrong with them.
    failures: Vec<(usize, String)>,
}

/// Puts the subject through those cases of a set that have these numbers; panics with every failure. `test` is the path of the test, from the name
/// of the test program on.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[Case],
    numbers: &[usize],
) {
    let choice = Choice::of(subject.backend);
    let beside = |number| match choice.runs_once(number) {
        true => Beside::Nothing,
        false => Beside::of_case(subject, number),
    };
    check_numbers(subject, algorithm, test, cases, numbers, beside);
}

/// Of a set whose cases are each there for a mistake of its own, a sample has one in so many.
const AIMED_ONE_IN: usize = 3;

/// Puts the subject through a set whose cases are each there for a mistake of its own, once. A sample has a third of them, whatever they have in common
/// with others: three seeds, one after the other, have all.
pub fn check_aimed(subject: &Subject, algorithm: Algorithm, test: &str, cases: Vec<Case>) {
    if subject.cannot_run(algorithm) {
        return;
    }
    let numbers = Choice::of(subject.backend).numbers(cases.len(), |seed| aimed(cases.len(), seed));
    check_numbers(subject, algorithm, test, &cases, &numbers, |_| {
        Beside::Nothing
    });
}

/// A third of so many numbers. Sets have a dozen cases for each kernel: each has some, and each of the dozen is some kernel's.
fn aimed(n_cases: usize, seed: u64) -> Vec<usize> {
    let first = (seed % AIMED_ONE_IN as u64) as usize;
    let is_chosen = |number: &usize| {
        n_cases <= AIMED_ONE_IN || (number + number / 12 + first).is_multiple_of(AIMED_ONE_IN)
    };
    (0..n_cases).filter(is_chosen).collect()
}

fn check_numbers(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[Case],
    numbers: &[usize],
    beside: impl Fn(usize) -> Beside,
) {
    let begun = Instant::now();
    let mut counts = Counts::default();
    for &number in numbers {
        let case = &cases[number];
        match check_case(subject, algorithm, case, beside(number)) {
            Ok(Some(close)) => {
                counts.n_passed += 1;
                counts.closest.worst = counts.closest.worst.max(close.worst);
                counts.closest.rms = counts.closest.rms.max(close.rms);
            }
            Ok(None) => counts.n_not_eligible += 1,
            Err(failure) => {
                let failure = format!("case {number}: {case:?}\n{failure}");
                counts.failures.push((number, failure));
            }
        }
    }
    let Counts {
        n_passed,
        n_not_eligible,
        closest,
        failures,
    } = &counts;
    say(&format!(
        "conformance: {test}: {} of {} cases: {n_passed} passed, {} failed, {n_not_eligible} not eligible; \
         at most {:.2} of the tolerance (root mean square {:.2}); {:.1} s",
        numbers.len(),
        cases.len(),
        failures.len(),
        closest.worst,
        closest.rms,
        begun.elapsed().as_secs_f64(),
    ));
    let (failed, texts): (Vec<_>, Vec<_>) = failures.iter().cloned().unzip();
    assert!(
        failures.is_empty(),
        "{} of {} cases failed; to repeat them: {}\n\n{}",
        failures.len(),
        numbers.len(),
        repeat(test, Some(&failed)),
        texts.join("\n\n")
    );
}

/// The command that runs a test again, with these cases alone.
pub(crate) fn repeat(test: &str, numbers: Option<&[usize]>) -> String {
    let seed = sample::seed();
    let (program, path) = test.split_once("::").unwrap_or((test, ""));
    let cases = numbers.map(|numbers| {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        format!(" CASES={}", numbers.join(","))
    });
    let cases = cases.unwrap_or_default();
    format!("SEED={seed}{cases} cargo test -p conformance --test {program} -- --exact {path}")
}

/// Puts the subject through random cases, as many as it has time for; a failure is made smaller before it is shown.
pub fn check_random(subject: &Subject, algorithm: Algorithm, test: &str) {
    if subject.cannot_run(algorithm) {
        return;
    }
    let n_cases = Choice::of(subject.backend).n_random(subject.n_random);
    let strategy = cases::random(subject.head_dims, 200);
    let mut runner = cases::runner(n_cases, sample::seed());
    let outcome = runner.run(&strategy, |case| {
        let beside = Beside::of_case(subject, case.seed as usize);
        match check_case(subject, algorithm, &case, beside) {
            Ok(_) => Ok(()),
            Err(failure) => Err(proptest::test_runner::TestCaseError::fail(failure)),
        }
    });
    if let Err(failure) = outcome {
        panic!("{failure}\nto repeat it: {}", repeat(test, None));
    }
}

/// The seed of the emulator's scheduler: another one for every case and for every seed of the run.
fn scheduler_seed(case: &Case) -> u64 {
    case.seed.wrapping_add(sample::seed())
}

/// One case: `None` where the algorithm cannot serve it, as it should not.
fn check_case(
    subject: &Subject,
    algorithm: Algorithm,
    case: &Case,
    beside: Beside,
) -> Result<Option<Closeness>, String> {
    let values = case.values();
    let device = (subject.open)(scheduler_seed(case))?;
    let eligible = is_eligible(subject.backend, algorithm, case);
    let results = match trial::run(case, &values, &device, algorithm, Order::Deterministic) {
        Ok(_) if !eligible => return Err("it ran; it should have been refused".into()),
        Err(Refusal::NotEligible(_)) if !eligible => return Ok(None),
        Ok(results) => results,
        Err(Refusal::NotEligible(reason)) => return Err(format!("it was refused: {reason}")),
        Err(Refusal::Failed(failure)) => return Err(failure),
    };
    check_tiles(subject, device.info(), case, &results)?;
    let problem = case.problem().map_err(|error| error.to_string())?;
    let arithmetic = case.arithmetic(subject.backend);
    let reference = Reference::new(case, &values, problem.scale()).of_products(arithmetic);
    let close = reference.judge(case, &results)?;
    if matches!(beside, Beside::Everything | Beside::SecondRun) {
        check_again(subject, algorithm, case, &values, &results)?;
    }
    if matches!(beside, Beside::Everything | Beside::FastestOrder) {
        check_fastest(&device, algorithm, case, &values, &reference)?;
    }
    Ok(Some(close))
}

/// The kernels that ran are of the shape that the subject is there for: flash1's and flash2's backward above head_dim 64 where that is
/// compact, flash3's forward where it is wide or short, and otherwise of the default one, but for the few queries of which
/// flash3 makes compact tiles on any device, and the many whose gradients it makes in wide ones.
fn check_tiles(
    subject: &Subject,
    device: &DeviceInfo,
    case: &Case,
    results: &trial::Results,
) -> Result<(), String> {
    let of_another = results
        .forward_kernels
        .iter()
        .chain(&results.backward_kernels)
        .filter_map(|kernel| variants::by_name(kernel.name))
        .find(|row| {
            let flash2_backward = [Algorithm::Flash1, Algorithm::Flash2]
                .iter()
                .any(|algorithm| kinds(*algorithm, Pass::Backward).contains(&row.kind));
            let flash3_forward = row.kind == Kind::TmaForward;
            let flash3_backward = kinds(Algorithm::Flash3, Pass::Backward).contains(&row.kind);
            let special = match subject.tiles {
                _ if flash3_backward && has_wide_gradients(device, case) => Some(TileShape::Wide),
                // Wide, unless something is asked for that these tiles cannot, or lengths are few on average.
                _ if flash3_backward && divides_columns(case) => Some(row.tiles),
                Tiles::Default => None,
                Tiles::Any => Some(row.tiles),
                Tiles::CompactBackward => (flash2_backward
                    && has_compact_tiles(case.sizes.head_dim))
                .then_some(TileShape::Compact),
                Tiles::CompactForward => flash3_forward.then_some(TileShape::Compact),
                // Of wide tiles none drops weights.
                Tiles::WideForward => {
                    (flash3_forward && case.dropout.is_none()).then_some(TileShape::Wide)
                }
                Tiles::GroupedForward => flash3_forward.then_some(TileShape::Grouped),
            };
            let few = subject.tiles == Tiles::Default && flash3_forward && is_short(case)
                || row.kind == Kind::Forward && is_decode(case);
            row.tiles != special.unwrap_or(TileShape::Default)
                && !(few && row.tiles == TileShape::Compact)
        });
    match of_another {
        Some(row) => Err(format!(
            "{} ran, but the subject is there for {:?} tiles",
            row.name, subject.tiles
        )),
        None => Ok(()),
    }
}

/// Whether queries are so many that flash3's backward pass takes wide tiles of them.
fn has_wide_gradients(device: &DeviceInfo, case: &Case) -> bool {
    let sizes = case.sizes;
    let per_sm = if case.lengths.is_some() { 46 } else { 62 };
    let long = sizes.seqlen_q >= 1024.max(per_sm * device.n_sms as usize);
    let drops = case.dropout.is_some();
    let pays = case.mask == Mask::Full && (97..=128).contains(&sizes.head_dim);
    pays && long && !drops
}

/// Whether flash3's backward pass may take the wide tiles of head_dim 256.
fn divides_columns(case: &Case) -> bool {
    let sizes = case.sizes;
    sizes.head_dim.max(sizes.head_dim_v) > 192 && sizes.seqlen_q >= 512
}

/// Whether queries are so few that two SMs may take compact tiles of them.
fn is_short(case: &Case) -> bool {
    let sizes = case.sizes;
    if case.lengths.is_some() {
        // The average of packed sequences decides.
        return true;
    }
    let heads = sizes.batch * sizes.heads_q;
    sizes.seqlen_q <= 64
        || heads * sizes.seqlen_q.div_ceil(64) <= 4
        || sizes.heads_k < sizes.heads_q
}

/// A second run, on the emulator under another seed of its scheduler, gives the same bits.
fn check_again(
    subject: &Subject,
    algorithm: Algorithm,
    case: &Case,
    values: &Values,
    first: &trial::Results,
) -> Result<(), String> {
    let device = (subject.open)(scheduler_seed(case).wrapping_add(1))?;
    let second = match trial::run(case, values, &device, algorithm, Order::Deterministic) {
        Ok(second) => second,
        Err(refusal) => return Err(format!("in the second run: {refusal:?}")),
    };
    let bits = |results: &trial::Results| -> Vec<u64> {
        let trial::Results {
            output, gradients, ..
        } = results;
        [
            &output.o,
            &output.lse,
            &gradients.d_q,
            &gradients.d_k,
            &gradients.d_v,
            &gradients.d_sinks,
        ]
        .into_iter()
        .flatten()
        .map(|x| x.to_bits())
        .collect()
    };
    if bits(first) == bits(&second) {
        Ok(())
    } else {
        Err("a second run gave other bits".into())
    }
}

/// The order that is not deterministic, where there is one.
fn check_fastest(
    device: &Device,
    algorithm: Algorithm,
    case: &Case,
    values: &Values,
    reference: &Reference,
) -> Result<(), String> {
    if !matches!(algorithm, Algorithm::Flash2 | Algorithm::Flash3) {
        return Ok(());
    }
    let results = trial::run(case, values, device, algorithm, Order::Fastest)
        .map_err(|refusal| format!("in the fastest order: {refusal:?}"))?;
    let judged = reference.judge(case, &results);
    judged
        .map(|_| ())
        .map_err(|failure| format!("in the fastest order: {failure}"))
}

/// A line on standard error that the test harness does not swallow.
pub(crate) fn say(line: &str) {
    // In one piece: other tests write at the same time.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
