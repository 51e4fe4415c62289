//! Scores and masks of the user's own against the oracle, which evaluates their expressions in f64.
//!
//! What no score needs is NaN: elements of tensors that no pair reads which counts, and the memory around them. A backward pass that no kernel of the
//! algorithm can take is counted as such.

use ferroflash::error::PlanError;
use ferroflash::plan::{MaskBlocks, Outcome, Plan, Reason};
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Element, Inputs, Mask, Order, Pass,
};
use ferroflash_kernels::variants::{Kind, VARIANTS};
use half::{bf16, f16};

use crate::beside::{bits, check_numbers, check_one_in};
use crate::buffer::{Buffer, Number};
use crate::cases::Case;
use crate::cases::scores::{Rule, ScoreCase};
use crate::edits::Edits;
use crate::inputs::Values;
use crate::oracle::Output;
use crate::pages::output;
use crate::reference::Reference;
use crate::sample;
use crate::subject::{Subject, TileShape, Tiles};
use crate::suite::{is_eligible, say};
use crate::trial::{self, Refusal, Vectors, problem_of};

/// Of the random cases, the emulator runs one in so many.
const ONE_IN: usize = 6;

/// Puts the subject through random cases; panics with every failure.
pub fn check(subject: &Subject, algorithm: Algorithm, test: &str, cases: &[ScoreCase]) {
    check_some(ONE_IN, subject, algorithm, test, cases);
}

/// The same of a set that runs as a whole.
pub fn check_all(subject: &Subject, algorithm: Algorithm, test: &str, cases: &[ScoreCase]) {
    check_some(1, subject, algorithm, test, cases);
}

fn check_some(
    one_in: usize,
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[ScoreCase],
) {
    if subject.cannot_run(algorithm) {
        return;
    }
    counting_backward(test, |check_case| {
        check_one_in(one_in, subject, test, cases, |scores| {
            check_case(&Trial::new(subject, algorithm, scores)?)
        });
    });
}

/// The same of those cases of a set that have these numbers.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[ScoreCase],
    numbers: &[usize],
) {
    counting_backward(test, |check_case| {
        check_numbers(test, cases, numbers, |scores| {
            check_case(&Trial::new(subject, algorithm, scores)?)
        });
    });
}

/// Hands on what checks a case, and says in how many there was a backward pass.
fn counting_backward(
    test: &str,
    check: impl FnOnce(&dyn Fn(&Trial) -> Result<Option<f64>, String>),
) {
    let n_backward = std::cell::Cell::new(0);
    check(&|trial: &Trial| {
        let Some(close) = trial.check_forward()? else {
            return Ok(None);
        };
        if !trial.takes_backward()? {
            return Ok(Some(close));
        }
        n_backward.set(n_backward.get() + 1);
        Ok(Some(close.max(trial.check_backward()?)))
    });
    let n = n_backward.get();
    say(&format!(
        "conformance: {test}: {n} of them with a backward pass"
    ));
}

/// A case on a subject.
struct Trial<'a> {
    subject: &'a Subject,
    algorithm: Algorithm,
    case: &'a Case,
    edits: Edits,
    values: Values,
    rule: Rule,
    built_in: Option<Mask>,
    reference: Reference,
}

impl<'a> Trial<'a> {
    fn new(
        subject: &'a Subject,
        algorithm: Algorithm,
        scores: &'a ScoreCase,
    ) -> Result<Trial<'a>, String> {
        let case = &scores.case;
        let problem = case.problem().map_err(|error| error.to_string())?;
        let edits = scores.edits();
        let values = scores.values(&edits);
        Ok(Trial {
            subject,
            algorithm,
            case,
            reference: Reference::edited(case, &values, problem.scale(), Some(&edits))
                .of_products(case.arithmetic(subject.backend)),
            values,
            rule: scores.rule,
            built_in: scores.rule.built_in().filter(|_| case.mask == Mask::Full),
            edits,
        })
    }

    /// A device; on the emulator with the order of threads that follows from this number, too.
    fn device(&self, more: u64) -> Result<Device, String> {
        let seed = self.case.seed.wrapping_add(sample::seed());
        (self.subject.open)(seed.wrapping_add(more))
    }

    /// Refused, as it should be; or close to the oracle, and with the same bits again.
    fn check_forward(&self) -> Result<Option<f64>, String> {
        // A mask that is a band leaves no expression.
        let eligible = is_editable(self.subject.backend, self.algorithm, self.case)
            || self.is_band() && is_eligible(self.subject.backend, self.algorithm, self.case);
        let output = match self.forward(&self.device(0)?, self.case, Some(&self.edits)) {
            Ok(_) if !eligible => return Err("it ran; it should have been refused".into()),
            Err(Refusal::NotEligible(_)) if !eligible => return Ok(None),
            Ok(output) => output,
            Err(refusal) => return Err(format!("{refusal:?}")),
        };
        let close = self.reference.judge_output(self.case, &output)?;
        let again = self.forward(&self.device(1)?, self.case, Some(&self.edits));
        let again = again.map_err(|refusal| format!("in the second run: {refusal:?}"))?;
        if all_bits(&output) != all_bits(&again) {
            return Err("a second run gave other bits".into());
        }
        self.check_tiles()?;
        self.check_skips(Pass::Forward)?;
        self.check_built_in(&output)?;
        Ok(Some(close.worst))
    }

    /// The tiles are those that the subject is there for. Where no kernel of compact tiles holds the case's columns, others may serve.
    fn check_tiles(&self) -> Result<(), String> {
        let needed = match self.subject.tiles {
            Tiles::WideForward => TileShape::Wide,
            Tiles::CompactForward => TileShape::Compact,
            _ => return Ok(()),
        };
        let (device, edits) = (self.device(0)?, Some(&self.edits));
        let plan = self.plan(&device, self.case, edits, Pass::Forward)?;
        let plan = plan.map_err(|error| error.to_string())?;
        let sizes = self.case.sizes;
        let (head_dim, head_dim_v) = (sizes.head_dim as u32, sizes.head_dim_v as u32);
        let is_needed = needed == TileShape::Wide
            || VARIANTS.iter().any(|row| {
                row.kind == Kind::TmaForward
                    && row.tiles == needed
                    && row.holds_columns(head_dim, head_dim_v)
            });
        let other = plan.launches.iter().find(|launch| {
            let variant = launch.variant;
            variant.kind == Kind::TmaForward && is_needed && variant.tiles != needed
        });
        match other {
            Some(launch) => Err(format!(
                "{} ran; needed: {needed:?} tiles",
                launch.variant.name
            )),
            None => Ok(()),
        }
    }

    /// Whether the mask is a band that the problem's own mask can hold.
    fn is_band(&self) -> bool {
        self.rule.is_band() && self.case.blocks.is_none() && self.case.mask.prefix() == 0
    }

    /// The plan skips blocks that the mask hides where it should, said a second time: where an SM has sixteen blocks of scores or more, and the
    /// kernels are for lists of blocks.
    fn check_skips(&self, pass: Pass) -> Result<(), String> {
        let Case { sizes, .. } = self.case;
        let device = self.device(0)?;
        let plan = self.plan(&device, self.case, Some(&self.edits), pass)?;
        let plan = plan.map_err(|error| error.to_string())?;
        let takes_lists = match self.algorithm {
            Algorithm::Flash3 if sizes.head_dim > 128 => return Ok(()),
            Algorithm::Flash3 | Algorithm::Flash2 => true,
            _ => false,
        };
        let blocks = |rows: usize| rows.div_ceil(128);
        let tiles = sizes.batch * sizes.heads_q * blocks(sizes.seqlen_q);
        let rounds = tiles.div_ceil((device.info().n_sms as usize).max(1));
        let is_alone = self.case.blocks.is_none()
            && self.case.lengths.is_none()
            && self.case.split_kv.is_none();
        let pays = sizes.seqlen_q >= 128 && rounds * blocks(sizes.seqlen_k) >= 16;
        let expected = self.edits.mask.is_some() && takes_lists && is_alone && pays;
        match plan.mask_blocks {
            Some(MaskBlocks::Band) if self.is_band() => Ok(()),
            Some(MaskBlocks::Band) if matches!(self.rule, Rule::Random(_)) => Ok(()),
            other if self.is_band() => Err(format!("{pass:?}: no band: {other:?}")),
            Some(MaskBlocks::Skipped) if expected => Ok(()),
            None | Some(MaskBlocks::Computed(_)) if !expected => Ok(()),
            other => Err(format!("{pass:?}: what the mask hides: {other:?}")),
        }
    }

    /// The same mask that is built in gives the same results: where the kernels are the same, to the bit, as blocks that it hides add nothing.
    fn check_built_in(&self, output: &Output) -> Result<(), String> {
        let Some(mask) = self.built_in else {
            return Ok(());
        };
        let case = Case { mask, ..*self.case };
        let device = self.device(2)?;
        let built_in = self.forward(&device, &case, None);
        let built_in = built_in.map_err(|refusal| format!("built in: {refusal:?}"))?;
        let judged = self.reference.judge_output(&case, &built_in);
        judged.map_err(|failure| format!("built in: {failure}"))?;
        let kernels = |case: &Case, edits: Option<&Edits>| -> Result<Vec<_>, String> {
            let plan = self.plan(&device, case, edits, Pass::Forward)?;
            let plan = plan.map_err(|error| error.to_string())?;
            Ok(plan
                .launches
                .iter()
                .map(|launch| launch.variant.name)
                .collect())
        };
        let ours = kernels(self.case, Some(&self.edits))?;
        let are_same = !ours.is_empty() && ours == kernels(&case, None)?;
        match are_same && all_bits(output) != all_bits(&built_in) {
            true => Err("the mask that is built in gives other bits".into()),
            false => Ok(()),
        }
    }

    /// What would run a pass.
    fn plan(
        &self,
        device: &Device,
        case: &Case,
        edits: Option<&Edits>,
        pass: Pass,
    ) -> Result<Result<Plan, PlanError>, String> {
        let problem = case.problem().map_err(|error| error.to_string())?;
        let problem = edits.map_or(Ok(problem), |edits| edits.edit(&problem));
        let problem = problem.map_err(|error| error.to_string())?;
        let attention = Attention::new(device, problem).map_err(|error| error.to_string())?;
        let why = attention.with_algorithm(self.algorithm).explain(pass);
        Ok(why.map_err(|error| error.to_string())?.plan)
    }

    /// Whether the algorithm has kernels for the backward pass. Who has none says that it is for the expression.
    fn takes_backward(&self) -> Result<bool, String> {
        let is_flash = matches!(self.algorithm, Algorithm::Flash2 | Algorithm::Flash3);
        if is_flash && self.case.sizes.head_dim.max(self.case.sizes.head_dim_v) > 256 {
            return Ok(false);
        }
        let device = self.device(0)?;
        match self.plan(&device, self.case, Some(&self.edits), Pass::Backward)? {
            Ok(_) => Ok(true),
            Err(error) if self.subject.backend == Backend::Cpu => Err(error.to_string()),
            Err(PlanError::NoCandidate { candidates, .. }) => {
                let ours = candidates
                    .into_iter()
                    .find(|candidate| candidate.algorithm == self.algorithm);
                match ours.map(|candidate| candidate.outcome) {
                    Some(Outcome::Refused(Reason::Score { .. })) => Ok(false),
                    outcome => Err(format!("the backward pass: {outcome:?}")),
                }
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// All five results, in the deterministic order, twice, and in the other one; on the emulator, which is slow, twice or in the other one.
    fn check_backward(&self) -> Result<f64, String> {
        let run = |more: u64, order: Order| {
            let (case, edits) = (self.case, Some(&self.edits));
            let device = self.device(more)?;
            trial::run_edited(case, &self.values, edits, &device, self.algorithm, order)
                .map_err(|refusal| format!("{order:?}: {refusal:?}"))
        };
        self.check_skips(Pass::Backward)?;
        let results = run(2, Order::Deterministic)?;
        let mut worst = self.reference.judge(self.case, &results)?.worst;
        let is_slow = self.subject.backend == Backend::Emulated;
        let is_even = self.case.seed.is_multiple_of(2);
        if !is_slow || is_even {
            let again = run(3, Order::Deterministic)?;
            let of_gradients = |results: &trial::Results| {
                let all = &results.gradients;
                let passes = [&all.d_q, &all.d_k, &all.d_v, &all.d_sinks];
                let all = passes.into_iter().chain(&results.tensors);
                all.map(|gradient| bits(gradient)).collect::<Vec<_>>()
            };
            if of_gradients(&results) != of_gradients(&again) {
                return Err("a second run gave other gradients".into());
            }
        }
        if !is_slow || !is_even {
            let fastest = run(4, Order::Fastest)?;
            let judged = self.reference.judge(self.case, &fastest);
            let judged = judged.map_err(|failure| format!("in the fastest order: {failure}"))?;
            worst = worst.max(judged.worst);
        }
        Ok(worst)
    }

    fn forward(
        &self,
        device: &Device,
        case: &Case,
        edits: Option<&Edits>,
    ) -> Result<Output, Refusal> {
        forward(device, self.algorithm, case, &self.values, edits)
    }
}

/// What the forward pass gives of a case, with its edits.
pub(crate) fn forward(
    device: &Device,
    algorithm: Algorithm,
    case: &Case,
    values: &Values,
    edits: Option<&Edits>,
) -> Result<Output, Refusal> {
    match case.dtype {
        Dtype::Bf16 => typed::<bf16>(device, algorithm, case, values, edits),
        Dtype::F16 => typed::<f16>(device, algorithm, case, values, edits),
        Dtype::F32 => typed::<f32>(device, algorithm, case, values, edits),
    }
}

fn typed<T: Element + Number>(
    device: &Device,
    algorithm: Algorithm,
    case: &Case,
    values: &Values,
    edits: Option<&Edits>,
) -> Result<Output, Refusal> {
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let problem = problem_of(case, edits, Order::Deterministic).map_err(broken)?;
    let filled = |values: &[f64], shape| {
        Buffer::<T>::filled(values, shape, case.arrangement).map_err(broken)
    };
    let q = filled(&values.q, problem.shape_q())?;
    let k = filled(&values.k, problem.shape_k())?;
    let v = filled(&values.v, problem.shape_v())?;
    let [q, k, v] = [&q, &k, &v].map(|tensor| tensor.view().map_err(broken));
    let mut given = Inputs::new(&q?, &k?, &v?);
    let vectors = Vectors::of(case);
    given = vectors.give(given);
    if let Some(dropout) = &case.dropout {
        given = dropout.give(given);
    }
    let memory = edits.map(Edits::memory).unwrap_or_default();
    if let Some(edits) = edits {
        given = edits.give(given, &memory);
    }
    output::<T>(device, algorithm, problem, &given, case.arrangement)
}

/// What each algorithm takes: as without expressions, but that of those which divide keys only flash3's kernels have a place for them.
pub(crate) fn is_editable(backend: Backend, algorithm: Algorithm, case: &Case) -> bool {
    let divides =
        matches!(algorithm, Algorithm::Flash2 | Algorithm::Standard) && case.split_kv.is_some();
    is_eligible(backend, algorithm, case) && !divides
}

fn all_bits(output: &Output) -> [Vec<u64>; 2] {
    [bits(&output.o), bits(&output.lse)]
}
