//! What suites of operations beside attention have in common: which cases run, and how numbers are judged.

use std::fmt::Debug;
use std::time::Instant;

use ferroflash::Dtype;

use crate::sample::Choice;
use crate::subject::Subject;
use crate::suite::{repeat, say};

/// Puts the subject through a set of cases; panics with every failure. `test` is the path of the test, `check_case` says how close a case came, or
/// `None` where it is refused, as it should be. The environment variable `CASES` chooses cases by number; otherwise all run, on every
/// backend.
pub(crate) fn check_cases<C: Debug>(
    subject: &Subject,
    test: &str,
    cases: &[C],
    check_case: impl Fn(&C) -> Result<Option<f64>, String>,
) {
    check_one_in(1, subject, test, cases, check_case);
}

/// The same, where the emulator runs one case of so many, by the seed of the run, unless `CASES` says otherwise.
pub(crate) fn check_one_in<C: Debug>(
    n: usize,
    subject: &Subject,
    test: &str,
    cases: &[C],
    check_case: impl Fn(&C) -> Result<Option<f64>, String>,
) {
    if subject.is_absent() {
        return;
    }
    let one_in = |seed: u64| {
        (0..cases.len())
            .filter(|number| (number + seed as usize).is_multiple_of(n))
            .collect()
    };
    let numbers = Choice::of(subject.backend).numbers(cases.len(), one_in);
    check_numbers(test, cases, &numbers, check_case);
}

/// The same of the cases with these numbers.
pub(crate) fn check_numbers<C: Debug>(
    test: &str,
    cases: &[C],
    numbers: &[usize],
    check_case: impl Fn(&C) -> Result<Option<f64>, String>,
) {
    let begun = Instant::now();
    let (mut n_passed, mut n_refused, mut worst, mut failures) = (0, 0, 0.0f64, Vec::new());
    for &number in numbers {
        let case = &cases[number];
        match check_case(case) {
            Ok(Some(close)) => {
                n_passed += 1;
                worst = worst.max(close);
            }
            Ok(None) => n_refused += 1,
            Err(failure) => {
                failures.push((number, format!("case {number}: {case:?}\n{failure}")));
            }
        }
    }
    say(&format!(
        "conformance: {test}: {} of {} cases: {n_passed} passed, {} failed, {n_refused} refused as they should be; at most {worst:.2} of the \
         tolerance; {:.1} s",
        numbers.len(),
        cases.len(),
        failures.len(),
        begun.elapsed().as_secs_f64(),
    ));
    let (failed, texts): (Vec<_>, Vec<_>) = failures.into_iter().unzip();
    assert!(
        failed.is_empty(),
        "{} failed; to repeat them: {}\n\n{}",
        failed.len(),
        repeat(test, Some(&failed)),
        texts.join("\n\n")
    );
}

/// The relative error of one rounding to an element type, and the absolute one of the smallest numbers.
pub(crate) fn rounding(dtype: Dtype) -> (f64, f64) {
    match dtype {
        Dtype::Bf16 => (2f64.powi(-8), 2f64.powi(-126)),
        Dtype::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        Dtype::F32 => (F32_UNIT, 2f64.powi(-126)),
    }
}

/// The relative error of one rounding to f32.
pub(crate) const F32_UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// The bits of numbers: NaN is like NaN, and 0 is not like −0.
pub(crate) fn bits(numbers: &[f64]) -> Vec<u64> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// The root mean square of an error may be this part of that of what is allowed.
const MOST_RMS: f64 = 0.6;

/// The largest error, as a part of what is allowed of its element.
pub(crate) fn judge_numbers(
    actual: &[f64],
    reference: &[f64],
    allowed: impl Fn(usize) -> f64,
) -> Result<f64, String> {
    let (mut worst, mut errors, mut limits) = (0.0f64, 0.0, 0.0);
    for (at, (&actual, &reference)) in actual.iter().zip(reference).enumerate() {
        // Infinities are exact.
        if !reference.is_finite() && actual == reference {
            continue;
        }
        let (error, allowed) = ((actual - reference).abs(), allowed(at));
        if error.is_nan() || error > allowed || !reference.is_finite() {
            return Err(format!("number {at} is {actual} instead of {reference}"));
        }
        worst = worst.max(error / allowed);
        errors += error.powi(2);
        limits += allowed.powi(2);
    }
    let rms = (errors / limits.max(f64::MIN_POSITIVE)).sqrt();
    let n = actual.len().max(1) as f64;
    match rms <= (MOST_RMS + 1.0 / n.sqrt()).min(1.0) {
        true => Ok(worst),
        false => Err(format!(
            "the root mean square of the error is {rms:.2} of the limit"
        )),
    }
}
