//! Values in the keys against the oracle, which has them as an array of its own; and bit by bit against the same keys side by side.

use ferroflash::{Algorithm, Backend, Device, Dtype, Element, Inputs};
use half::{bf16, f16};

use crate::beside::{check_cases, check_numbers};
use crate::buffer::{Buffer, Number};
use crate::cases::mla::{COLUMNS, MlaCase};
use crate::inputs::Values;
use crate::oracle::Output;
use crate::pages::{Runs, chooses_alike, output, pool};
use crate::subject::Subject;
use crate::trial::{Refusal, Vectors};

/// Puts the subject through a set as a whole; panics with every failure.
pub fn check_all(subject: &Subject, algorithm: Algorithm, test: &str, cases: &[MlaCase]) {
    if subject.cannot_run(algorithm) {
        return;
    }
    check_cases(subject, test, cases, |case| {
        check_case(subject, algorithm, case)
    });
}

/// The same of those cases of a set that have these numbers.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[MlaCase],
    numbers: &[usize],
) {
    check_numbers(test, cases, numbers, |case| {
        check_case(subject, algorithm, case)
    });
}

/// What each algorithm takes.
fn is_eligible(backend: Backend, algorithm: Algorithm, latent: &MlaCase) -> bool {
    let (case, sizes) = (&latent.paged.case, latent.paged.case.sizes);
    match (backend, algorithm) {
        (Backend::Cpu, algorithm) => algorithm == Algorithm::Tiled,
        (_, Algorithm::Flash3) => {
            let fits = |columns: usize, most| columns.is_multiple_of(8) && columns <= most;
            let (head_dim, head_dim_v) = COLUMNS;
            case.dtype != Dtype::F32
                && fits(sizes.head_dim, head_dim)
                && fits(sizes.head_dim_v, head_dim_v)
        }
        _ => false,
    }
}

fn check_case(
    subject: &Subject,
    algorithm: Algorithm,
    latent: &MlaCase,
) -> Result<Option<f64>, String> {
    let case = &latent.paged.case;
    let values = latent.values();
    let runs = Runs {
        subject,
        case,
        values: &values,
        table: &latent.paged.table(),
        edits: None,
        eligible: is_eligible(subject.backend, algorithm, latent),
        side_by_side: chooses_alike(case, latent.split_kv),
    };
    runs.check(|device, table| match case.dtype {
        Dtype::Bf16 => forward::<bf16>(latent, &values, device, algorithm, table),
        Dtype::F16 => forward::<f16>(latent, &values, device, algorithm, table),
        Dtype::F32 => forward::<f32>(latent, &values, device, algorithm, table),
    })
}

/// The forward pass, with keys in the pages of a table or, without one, side by side.
fn forward<T: Element + Number>(
    latent: &MlaCase,
    values: &Values,
    device: &Device,
    algorithm: Algorithm,
    table: Option<&[i32]>,
) -> Result<Output, Refusal> {
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let case = &latent.paged.case;
    let (problem, k) = match table {
        Some(table) => {
            let problem = latent.problem_in_pages().map_err(broken)?;
            let k = pool(&latent.paged, table, &values.k, problem.shape_k());
            (problem, k)
        }
        None => (latent.problem().map_err(broken)?, values.k.clone()),
    };
    let filled = |values: &[f64], shape| {
        Buffer::<T>::filled(values, shape, case.arrangement).map_err(broken)
    };
    let (q, k) = (
        filled(&values.q, problem.shape_q())?,
        filled(&k, problem.shape_k())?,
    );
    let mut given = Inputs::latent(&q.view().map_err(broken)?, &k.view().map_err(broken)?);
    let vectors = Vectors::of(case);
    given = vectors.give(given);
    given.page_table = table.map(Into::into);
    output::<T>(device, algorithm, problem, &given, case.arrangement)
}
