//! Keys and values in 8 bits, and queries in 16 or in 8, against the oracle, which has what they stand for.

use ferroflash::{Algorithm, Device, Dtype, Element, Fp8Kv, Inputs};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::beside::{bits, check_numbers};
use crate::buffer::{Buffer, Number};
use crate::cases::fp8::{Fp8Case, Scales};
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

/// A cache in 8 bits: the numbers, as `f64` that are exact, and the scales. And queries, as values or as numbers.
struct Cache {
    table: Vec<i32>,
    q: Vec<f64>,
    codes: [Vec<f64>; 2],
    /// Of q, k and v.
    scales: [Vec<f32>; 3],
}

impl Cache {
    /// Of a case's numbers, which become what these stand for.
    fn new(case: &Fp8Case, values: &mut Values) -> Cache {
        let table = case.paged.table();
        let scales = case.scales(&table);
        let sizes = case.paged.case.sizes;
        let spans = case.paged.spans();
        let mut codes = [values.k.clone(), values.v.clone()];
        let stands_for = [&mut values.k, &mut values.v];
        for ((codes, scales), stands_for) in codes.iter_mut().zip(&scales[1..]).zip(stands_for) {
            codes.fill(f64::NAN);
            for (sequence, span) in spans.iter().copied().enumerate() {
                for row in span.first..span.first + span.len {
                    for head in 0..sizes.heads_k {
                        let scaled = case.scaled((sequence, span), row, head, &table);
                        if let Some(scaled) = scaled {
                            let at = (row * sizes.heads_k + head) * sizes.head_dim;
                            let row = at..at + sizes.head_dim;
                            encode(
                                &mut codes[row.clone()],
                                &mut stands_for[row],
                                scales[scaled],
                            );
                        }
                    }
                }
            }
        }
        let mut q = values.q.clone();
        if matches!(case.scales, Scales::All(_)) {
            q.fill(f64::NAN);
        }
        let group_size = sizes.heads_q / sizes.heads_k;
        for (sequence, Span { first, len }) in case.spans_q().into_iter().enumerate() {
            for row in 0..len {
                for head in 0..sizes.heads_q {
                    if let Some(scaled) = case.scaled_query(sequence, row, head / group_size) {
                        let at = ((first + row) * sizes.heads_q + head) * sizes.head_dim;
                        let row = at..at + sizes.head_dim;
                        let scale = scales[0][scaled];
                        encode(&mut q[row.clone()], &mut values.q[row], scale);
                    }
                }
            }
        }
        Cache {
            table,
            q,
            codes,
            scales,
        }
    }
}

/// A row's numbers of 8 bits; its values become what these stand for.
fn encode(codes: &mut [f64], stands_for: &mut [f64], scale: f32) {
    for (code, value) in codes.iter_mut().zip(stands_for) {
        // Normally distributed numbers use most of the range.
        *code = F8E4M3::from_f64(*value * 60.0).to_f64();
        *value = *code * f64::from(scale);
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
            Dtype::Bf16 => forward::<bf16>(fp8, &cache, device, algorithm, in_pages),
            Dtype::F16 => forward::<f16>(fp8, &cache, device, algorithm, in_pages),
            Dtype::F32 => forward::<f32>(fp8, &cache, device, algorithm, in_pages),
        };
        output.map_err(|refusal| format!("{refusal:?}"))
    };
    let output = run(&device(0)?, true)?;
    let problem = case.problem().map_err(|error| error.to_string())?;
    let reference = Reference::new(case, &values, problem.scale());
    let close = reference.judge_output(case, &output)?;
    let all_bits = |output: &Output| [bits(&output.o), bits(&output.lse)];
    let mut others = vec![("a second run", run(&device(1)?, true)?)];
    if fp8.scales != Scales::Cache(Fp8Kv::PerPage) {
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
        let problem = case.problem().map_err(broken)?;
        let problem = fp8.with_scales(problem).map_err(broken)?;
        (problem, cache.codes.clone())
    };
    let (like_q, like_k) = (problem.shape_q(), problem.shape_k());
    let q = Buffer::<T>::filled(&cache.q, like_q, case.arrangement).map_err(broken)?;
    let in_8_bits = |codes: &[f64], like| {
        Buffer::<F8E4M3>::filled(codes, like, case.arrangement).map_err(broken)
    };
    let (k, v) = (in_8_bits(&k, like_k)?, in_8_bits(&v, like_k)?);
    let q_in_8_bits = in_8_bits(&cache.q, like_q)?;
    let (of_k, of_v) = (k.view().map_err(broken)?, v.view().map_err(broken)?);
    let [scales_q, scales_k, scales_v] = &cache.scales;
    let mut given = match fp8.scales {
        Scales::Cache(_) => Inputs::new(&q.view().map_err(broken)?, &of_k, &of_v),
        Scales::All(_) => {
            let of_q = q_in_8_bits.view().map_err(broken)?;
            Inputs::new(&of_q, &of_k, &of_v).q_descale(scales_q)
        }
    }
    .k_descale(scales_k)
    .v_descale(scales_v);
    let vectors = Vectors::of(case);
    given = vectors.give(given);
    given.page_table = in_pages.then_some((&*cache.table).into());
    output::<T>(device, algorithm, problem, &given, case.arrangement)
}
