//! Keys and values in pages against the oracle, and bit by bit against the same keys and values side by side.
//!
//! What is nobody's is NaN: pages of no sequence, and the rows of a last page behind the sequence's end.

pub mod beyond;

use ferroflash::plan::PlannedLaunch;
use ferroflash::{
    Algorithm, Attention, Device, Dtype, Element, Inputs, Outputs, Pass, Problem, SplitKv,
};
use ferroflash_kernels::spec::Constant;
use half::{bf16, f16};

use crate::beside::{bits, check_numbers, check_one_in};
use crate::buffer::{Arrangement, Buffer, Number};
use crate::cases::Case;
use crate::cases::paged_scores::PagedScoreCase;
use crate::cases::pages::PagedCase;
use crate::edits::Edits;
use crate::inputs::Values;
use crate::lengths::Span;
use crate::oracle::Output;
use crate::reference::Reference;
use crate::sample;
use crate::scores::is_editable;
use crate::subject::Subject;
use crate::suite::is_eligible;
use crate::trial::{Refusal, Rows, Vectors, refusal};
use crate::ways::{self, Given};

/// Of the random cases, the emulator runs one in so many.
const ONE_IN: usize = 3;

/// Puts the subject through random cases; panics with every failure.
pub fn check(subject: &Subject, algorithm: Algorithm, test: &str, cases: &[PagedCase]) {
    if subject.cannot_run(algorithm) {
        return;
    }
    check_one_in(ONE_IN, subject, test, cases, |paged| {
        check_case(subject, algorithm, paged, None)
    });
}

/// The same of those cases of a set that have these numbers.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[PagedCase],
    numbers: &[usize],
) {
    check_numbers(test, cases, numbers, |paged| {
        check_case(subject, algorithm, paged, None)
    });
}

/// The same with scores and masks of the user's own.
pub(crate) fn check_scores(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[PagedScoreCase],
    numbers: &[usize],
) {
    check_numbers(test, cases, numbers, |case| {
        check_case(subject, algorithm, &case.paged, Some(&case.edits()))
    });
}

fn check_case(
    subject: &Subject,
    algorithm: Algorithm,
    paged: &PagedCase,
    edits: Option<&Edits>,
) -> Result<Option<f64>, String> {
    let case = &paged.case;
    let values = paged.values();
    let split_kv = case.split_kv.map_or(SplitKv::Auto, SplitKv::Keys);
    let either = [paged.problem(), case.problem()];
    let divided = either
        .iter()
        .flatten()
        .any(|problem| divides(subject, algorithm, case, problem));
    let runs = Runs {
        subject,
        case,
        values: &values,
        table: &paged.table(),
        edits,
        eligible: match edits {
            Some(_) => is_editable(subject.backend, algorithm, case),
            None => is_eligible(subject.backend, algorithm, case),
        },
        side_by_side: !divided || chooses_alike(case, split_kv),
    };
    let given = (&values, edits);
    runs.check(|device, table| match case.dtype {
        Dtype::Bf16 => forward::<bf16>(paged, given, device, algorithm, table),
        Dtype::F16 => forward::<f16>(paged, given, device, algorithm, table),
        Dtype::F32 => forward::<f32>(paged, given, device, algorithm, table),
    })
}

/// Whether the same chooses how keys are divided, in pages and side by side: not where a plan does and there are no lengths, since a table is one,
/// and with lengths the device divides.
pub(crate) fn chooses_alike(case: &Case, split_kv: SplitKv) -> bool {
    split_kv != SplitKv::Auto || !case.vectors().is_empty()
}

/// Whether a plan divides the keys of a case.
fn divides(subject: &Subject, algorithm: Algorithm, case: &Case, problem: &Problem) -> bool {
    let Ok(device) = (subject.open)(case.seed) else {
        return false;
    };
    let call = (problem, Given::of_case(case));
    let (info, place) = (device.info(), device.location());
    let asked = Some(algorithm);
    let plan = ways::planned(info, subject.backend, place, asked, Pass::Forward, call);
    let divides = |launch: &PlannedLaunch| launch.spec.has(Constant::SplitKv);
    plan.is_some_and(|plan| plan.launches.iter().any(divides))
}

/// Runs of a case whose keys lie in pages.
pub(crate) struct Runs<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) case: &'a Case,
    /// What the oracle is given.
    pub(crate) values: &'a Values,
    pub(crate) table: &'a [i32],
    /// What becomes of scores.
    pub(crate) edits: Option<&'a Edits>,
    /// Whether the subject takes the case.
    pub(crate) eligible: bool,
    /// Whether keys side by side give the same bits.
    pub(crate) side_by_side: bool,
}

impl Runs<'_> {
    /// Refused, as it should be; or close to the oracle, and with the same bits again, and side by side. `run` is given the table, or none for
    /// keys side by side.
    pub(crate) fn check(
        &self,
        run: impl Fn(&Device, Option<&[i32]>) -> Result<Output, Refusal>,
    ) -> Result<Option<f64>, String> {
        let device = |more: u64| {
            let seed = self.case.seed.wrapping_add(sample::seed());
            (self.subject.open)(seed.wrapping_add(more))
        };
        let output = match run(&device(0)?, Some(self.table)) {
            Ok(_) if !self.eligible => return Err("it ran; it should have been refused".into()),
            Err(Refusal::NotEligible(_)) if !self.eligible => return Ok(None),
            Ok(output) => output,
            Err(Refusal::NotEligible(reason)) => return Err(format!("it was refused: {reason}")),
            Err(Refusal::Failed(failure)) => return Err(failure),
        };
        let problem = self.case.problem().map_err(|error| error.to_string())?;
        let arithmetic = self.case.arithmetic(self.subject.backend);
        let reference = Reference::edited(self.case, self.values, problem.scale(), self.edits);
        let reference = reference.of_products(arithmetic);
        let close = reference.judge_output(self.case, &output)?;
        let all_bits = |output: &Output| [bits(&output.o), bits(&output.lse)];
        let again = ("a second run", Some(self.table));
        let side_by_side = self.side_by_side.then_some(("keys side by side", None));
        for (what, table) in [again].into_iter().chain(side_by_side) {
            let other =
                run(&device(1)?, table).map_err(|refusal| format!("{what}: {refusal:?}"))?;
            if all_bits(&output) != all_bits(&other) {
                return Err(format!("{what} gave other bits"));
            }
        }
        Ok(Some(close.worst))
    }
}

/// The forward pass, with keys and values in the pages of a table or, without one, side by side.
fn forward<T: Element + Number>(
    paged: &PagedCase,
    (values, edits): (&Values, Option<&Edits>),
    device: &Device,
    algorithm: Algorithm,
    table: Option<&[i32]>,
) -> Result<Output, Refusal> {
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let case = &paged.case;
    let edited = |problem: Problem| edits.map_or(Ok(problem), |edits| edits.edit(&problem));
    let problem = case.problem().and_then(edited).map_err(broken)?;
    let (problem, k, v) = match table {
        Some(table) => {
            let in_pages = paged.problem().and_then(edited).map_err(broken)?;
            let pool = |rows: &[f64], shape| pool(paged, table, rows, shape);
            let k = pool(&values.k, in_pages.shape_k());
            (in_pages, k, pool(&values.v, in_pages.shape_v()))
        }
        None => (problem, values.k.clone(), values.v.clone()),
    };
    let filled = |values: &[f64], shape| {
        Buffer::<T>::filled(values, shape, case.arrangement).map_err(broken)
    };
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let inputs = [
        filled(&values.q, like_q)?,
        filled(&k, like_k)?,
        filled(&v, problem.shape_v())?,
    ];
    let view = |at: usize| inputs[at].view().map_err(broken);
    let mut given = Inputs::new(&view(0)?, &view(1)?, &view(2)?);
    let vectors = Vectors::of(case);
    given = vectors.give(given);
    given.page_table = table.map(Into::into);
    if let Some(dropout) = &case.dropout {
        given = dropout.give(given);
    }
    let memory = edits.map(Edits::memory).unwrap_or_default();
    if let Some(edits) = edits {
        given = edits.give(given, &memory);
    }
    output::<T>(device, algorithm, problem, &given, case.arrangement)
}

/// What a forward pass writes, o of elements like q's; nothing beside it.
pub(crate) fn output<T: Element + Number>(
    device: &Device,
    algorithm: Algorithm,
    problem: Problem,
    given: &Inputs,
    arrangement: Arrangement,
) -> Result<Output, Refusal> {
    let refusal = |error| refusal(error, algorithm);
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let mut o = Buffer::<T>::unwritten(problem.shape_o(), arrangement).map_err(broken)?;
    let mut rows = Rows::unwritten(problem.shape_lse().iter().product());
    Attention::new(device, problem)
        .map_err(refusal)?
        .with_algorithm(algorithm)
        .forward(
            given,
            &mut Outputs::new(o.view_mut().map_err(broken)?, rows.slice_mut()),
        )
        .map_err(refusal)?;
    if o.strayed().is_some() || rows.strayed() {
        return Err(Refusal::Failed(
            "memory beside o or lse was written to".into(),
        ));
    }
    Ok(Output {
        o: o.values(),
        lse: rows.values(),
    })
}

/// The pool of this shape with the rows of every sequence in those of its pages that there are; all else is NaN.
pub(crate) fn pool(paged: &PagedCase, table: &[i32], rows: &[f64], shape: [usize; 4]) -> Vec<f64> {
    let [_, page_size, heads, columns] = shape;
    let row_len = heads * columns;
    let mut pool = vec![f64::NAN; shape.iter().product()];
    let Some(lengths) = paged.case.lengths else {
        return pool;
    };
    let spans = lengths.k.spans(lengths.n).into_iter().enumerate();
    for (sequence, Span { first, len }) in spans {
        let begin = sequence * paged.case.sizes.seqlen_k;
        for from in first..first + len {
            let row = from - begin;
            let entry = table[sequence * paged.columns() + row / page_size];
            let Some(page) = paged.page(entry) else {
                continue;
            };
            let to = (page * page_size + row % page_size) * row_len;
            let from = from * row_len;
            pool[to..to + row_len].copy_from_slice(&rows[from..from + row_len]);
        }
    }
    pool
}
