//! Queries, keys and values in 8 bits against the oracle, which has what they stand for.

use ferroflash::{Algorithm, Backend, Device, Dtype, Element, Inputs};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::beside::{bits, check_numbers};
use crate::buffer::{Buffer, Number};
use crate::cases::e4m3::E4m3Case;
use crate::inputs::Values;
use crate::oracle::Output;
use crate::pages::output;
use crate::reference::Reference;
use crate::sample;
use crate::subject::Subject;
use crate::tolerance::Arithmetic;
use crate::trial::{Refusal, Vectors};

/// Puts the subject through those cases of a set that have these numbers; panics with every failure.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[E4m3Case],
    numbers: &[usize],
) {
    check_numbers(test, cases, numbers, |case| {
        check_case(subject, algorithm, case)
    });
}

/// The numbers, as `f64` that are exact, and the scales, of q, k and v.
struct Codes {
    codes: [Vec<f64>; 3],
    scales: [Vec<f32>; 3],
}

impl Codes {
    /// Of a case's inputs, which become what the numbers stand for. Rows of no sequence are NaN.
    fn new(e4m3: &E4m3Case, values: &mut Values) -> Codes {
        let sizes = e4m3.case.sizes;
        let (scales, [of_q, of_k]) = (e4m3.scales(), e4m3.spans());
        let group_size = sizes.heads_q.checked_div(sizes.heads_k).unwrap_or(1);
        let mut codes = [&values.q, &values.k, &values.v].map(|x| vec![f64::NAN; x.len()]);
        let tensors = [
            (&mut values.q, &of_q, sizes.heads_q, group_size),
            (&mut values.k, &of_k, sizes.heads_k, 1),
            (&mut values.v, &of_k, sizes.heads_k, 1),
        ];
        for ((stands_for, spans, heads, group_size), (codes, scales)) in
            tensors.into_iter().zip(codes.iter_mut().zip(&scales))
        {
            for (sequence, span) in spans.iter().enumerate() {
                for row in span.first..span.first + span.len {
                    for head in 0..heads {
                        let scale = f64::from(scales[e4m3.scale(sequence, head / group_size)]);
                        let at = (row * heads + head) * sizes.head_dim;
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
        Codes { codes, scales }
    }
}

fn check_case(
    subject: &Subject,
    algorithm: Algorithm,
    e4m3: &E4m3Case,
) -> Result<Option<f64>, String> {
    let case = &e4m3.case;
    let device = |more: u64| {
        let seed = case.seed.wrapping_add(sample::seed()).wrapping_add(more);
        (subject.open)(seed)
    };
    let mut values = case.values();
    let codes = Codes::new(e4m3, &mut values);
    let run = |device: &Device| {
        let output = match case.dtype {
            Dtype::Bf16 => forward::<bf16>(e4m3, &codes, device, algorithm),
            Dtype::F16 => forward::<f16>(e4m3, &codes, device, algorithm),
            Dtype::F32 => forward::<f32>(e4m3, &codes, device, algorithm),
        };
        output.map_err(|refusal| format!("{refusal:?}"))
    };
    let output = run(&device(0)?)?;
    let problem = case.problem().map_err(|error| error.to_string())?;
    let reference = Reference::new(case, &values, problem.scale());
    let reference = match subject.backend {
        Backend::Cpu => reference,
        _ => reference.of_products(Arithmetic::E4m3(case.dtype)),
    };
    let close = reference.judge_output(case, &output)?;
    let all_bits = |output: &Output| [bits(&output.o), bits(&output.lse)];
    if all_bits(&output) != all_bits(&run(&device(1)?)?) {
        return Err("a second run gave other bits".to_owned());
    }
    Ok(Some(close.worst))
}

fn forward<T: Element + Number>(
    e4m3: &E4m3Case,
    codes: &Codes,
    device: &Device,
    algorithm: Algorithm,
) -> Result<Output, Refusal> {
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let (case, problem) = (&e4m3.case, e4m3.problem().map_err(broken)?);
    let shapes = [problem.shape_q(), problem.shape_k(), problem.shape_v()];
    let mut buffers = Vec::new();
    for (codes, shape) in codes.codes.iter().zip(shapes) {
        let buffer = Buffer::<F8E4M3>::filled(codes, shape, case.arrangement);
        buffers.push(buffer.map_err(broken)?);
    }
    let views: Result<Vec<_>, _> = buffers.iter().map(Buffer::view).collect();
    let views = views.map_err(broken)?;
    let [of_q, of_k, of_v] = &codes.scales;
    let given = Inputs::new(&views[0], &views[1], &views[2])
        .q_descale(of_q)
        .k_descale(of_k)
        .v_descale(of_v);
    let vectors = Vectors::of(case);
    output::<T>(
        device,
        algorithm,
        problem,
        &vectors.give(given),
        case.arrangement,
    )
}
