//! f32 tensors in both precisions against the oracle: o and lse, and the same bits again.

use ferroflash::{Algorithm, Pass};

use crate::beside::{bits, check_one_in};
use crate::cases::Case;
use crate::reference::Reference;
use crate::sample;
use crate::scores::forward;
use crate::subject::Subject;
use crate::suite::is_eligible;
use crate::trial::Refusal;

/// Of the cases, the emulator runs one in so many.
const ONE_IN: usize = 3;

/// Puts the subject through cases; panics with every failure.
pub fn check(subject: &Subject, algorithm: Algorithm, test: &str, cases: &[Case]) {
    if subject.cannot_run(algorithm) {
        return;
    }
    check_one_in(ONE_IN, subject, test, cases, |case| {
        check_case(subject, algorithm, case)
    });
}

fn check_case(subject: &Subject, algorithm: Algorithm, case: &Case) -> Result<Option<f64>, String> {
    let values = case.values();
    let problem = case.problem().map_err(|error| error.to_string())?;
    let run = |more: u64| {
        let seed = case.seed.wrapping_add(sample::seed());
        let device = (subject.open)(seed.wrapping_add(more)).map_err(Refusal::Failed)?;
        forward(&device, algorithm, case, &values, None)
    };
    let eligible = is_eligible(subject.backend, algorithm, Pass::Forward, case);
    let output = match run(0) {
        Ok(_) if !eligible => return Err("it ran; it should have been refused".into()),
        Err(Refusal::NotEligible(_)) if !eligible => return Ok(None),
        Ok(output) => output,
        Err(refusal) => return Err(format!("{refusal:?}")),
    };
    let arithmetic = case.arithmetic(subject.backend);
    let reference = Reference::new(case, &values, problem.scale()).of_products(arithmetic);
    let close = reference.judge_output(case, &output)?;
    let again = run(1).map_err(|refusal| format!("in the second run: {refusal:?}"))?;
    match bits(&output.o) == bits(&again.o) && bits(&output.lse) == bits(&again.lse) {
        true => Ok(Some(close.worst)),
        false => Err("a second run gave other bits".into()),
    }
}
