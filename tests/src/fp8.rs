//! Keys and values in 8 bits against the oracle, which has what they stand for.

use ferroflash::{Algorithm, Device, Dtype, Element, Fp8Kv, Inputs};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::beside::{bits, check_numbers};
use crate::buffer::{Buffer, Number};
use crate::cases::fp8::Fp8Case;
use crate::inputs::Values;
use crate::lengths::Span;
use crate::oracle::Output;
use crate::pages::{output, pool};
use crate::reference::Reference;
use crate::sample;
use crate::subject::Subject;
use crate::trial::{Refusal, Vectors};

/// Puts the subject through those cases of a set that have these numbers; panics with every failure.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[Fp8Case],
    numbers: &[usize],
) {
    check_numbers(test, cases, numbers, |case| {
        check_case(subject, algorithm, case)
    });
}

/// A cache in 8 bits: the numbers, as `f64` that are exact, and the scales.
struct Cache {
    table: Vec<i32>,
    codes: [Vec<f64>; 2],
    scales: [Vec<f32>; 2],
}

impl Cache {
    /// Of a case's keys and values, which become what it stands for.
    fn new(case: &Fp8Case, values: &mut Values) -> Cache {
        let table = case.paged.table();
        let scales = case.scales(&table);
        let sizes = case.paged.case.sizes;
        let spans = case.paged.spans();
        let mut codes = [values.k.clone(), values.v.clone()];
        let stands_for = [&mut values.k, &mut values.v];
        for ((codes, scales), stands_for) in codes.iter_mut().zip(&scales).zip(stands_for) {
            codes.fill(f64::NAN);
            for (sequence, Span { first, len }) in spans.iter().copied().enumerate() {
                for row in first..first + len {
                    let Some(scaled) =
                        case.scaled(sequence, row - sequence * sizes.seqlen_k, &table)
                    else {
                        continue;
                    };
                    for head in 0..sizes.heads_k {
                        let scale = f64::from(scales[scaled * sizes.heads_k + head]);
                        let at = (row * sizes.heads_k + head) * sizes.head_dim;
                        for at in at..at + sizes.head_dim {
                            // Normally distributed numbers use most of the range.
                            let code = F8E4M3::from_f64(stands_for[at] * 60.0).to_f64();
                            codes[at] = code;
                            stands_for[at] = code * scale;
                        }
                    }
                }
            }
        }
        Cache {
            table,
            codes,
            scales,
        }
    }
}

fn check_case(
    subject: &Subject,
    algorithm: Algorithm,
    fp8: &Fp8Case,
) -> Result<Option<f64>, String> {
    let case = &fp8.paged.case;
    let device = |more: u64| {
        let seed = case.seed.wrapping_add(sample::seed()).wrapping_add(more);
        (subject.open)(seed)
    };
    let mut values = fp8.paged.values();
    let cache = Cache::new(fp8, &mut values);
    let run = |device: &Device, in_pages: bool| {
        let output = match case.dtype {
            Dtype::Bf16 => forward::<bf16>(fp8, &values.q, &cache, device, algorithm, in_pages),
            Dtype::F16 => forward::<f16>(fp8, &values.q, &cache, device, algorithm, in_pages),
            Dtype::F32 => forward::<f32>(fp8, &values.q, &cache, device, algorithm, in_pages),
        };
        output.map_err(|refusal| format!("{refusal:?}"))
    };
    let output = run(&device(0)?, true)?;
    let problem = case.problem().map_err(|error| error.to_string())?;
    let reference = Reference::new(case, &values, problem.scale());
    let close = reference.judge_output(case, &output)?;
    let all_bits = |output: &Output| [bits(&output.o), bits(&output.lse)];
    let mut others = vec![("a second run", run(&device(1)?, true)?)];
    if fp8.scales == Fp8Kv::PerSequence {
        others.push(("keys side by side", run(&device(2)?, false)?));
    }
    for (what, other) in others {
        if all_bits(&output) != all_bits(&other) {
            return Err(format!("{what} gave other bits"));
        }
    }
    Ok(Some(close.worst))
}

/// The forward pass, with keys and values in pages or side by side.
fn forward<T: Element + Number>(
    fp8: &Fp8Case,
    q: &[f64],
    cache: &Cache,
    device: &Device,
    algorithm: Algorithm,
    in_pages: bool,
) -> Result<Output, Refusal> {
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let case = &fp8.paged.case;
    let (problem, [k, v]) = if in_pages {
        let problem = fp8.problem().map_err(broken)?;
        let pooled = |codes: &Vec<f64>| pool(&fp8.paged, &cache.table, codes, problem.shape_k());
        (problem, cache.codes.each_ref().map(pooled))
    } else {
        let builder = case.problem().map_err(broken)?.to_builder();
        let problem = builder.fp8_kv(fp8.scales).build().map_err(broken)?;
        (problem, cache.codes.clone())
    };
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let q = Buffer::<T>::filled(q, like_q, case.arrangement).map_err(broken)?;
    let cached = |codes: &[f64]| Buffer::<F8E4M3>::filled(codes, like_k, case.arrangement);
    let (k, v) = (cached(&k).map_err(broken)?, cached(&v).map_err(broken)?);
    let mut given = Inputs::new(
        &q.view().map_err(broken)?,
        &k.view().map_err(broken)?,
        &v.view().map_err(broken)?,
    )
    .k_descale(&cache.scales[0])
    .v_descale(&cache.scales[1]);
    let vectors = Vectors::of(case);
    given = vectors.give(given);
    given.page_table = in_pages.then_some((&*cache.table).into());
    output::<T>(device, algorithm, problem, &given, case.arrangement)
}
