//! Queries, keys and values in 8 bits against the oracle, which has what they stand for. Gradients: of that rounded to the type of o.

use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Element, Inputs, OutputGradients, Saved,
};
use float8::F8E4M3;
use half::{bf16, f16};

use crate::beside::{bits, check_numbers};
use crate::buffer::{Buffer, Number};
use crate::cases::e4m3::{E4m3Case, PAGE_SIZE};
use crate::edits::Edits;
use crate::inputs::Values;
use crate::oracle::{Gradients, Output};
use crate::pages::output;
use crate::reference::Reference;
use crate::sample;
use crate::subject::Subject;
use crate::tolerance::Arithmetic;
use crate::trial::{Refusal, Results, Rows, Vectors, refusal};

/// Puts the subject through those cases of a set that have these numbers; panics with every failure.
pub(crate) fn check_set(
    subject: &Subject,
    algorithm: Algorithm,
    test: &str,
    cases: &[E4m3Case],
    numbers: &[usize],
) {
    check_numbers(test, cases, numbers, |case| {
        check_case(subject, algorithm, case, |_| ())
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
        // The last number says which side it is.
        let tensors = [
            (&mut values.q, &of_q, sizes.heads_q, group_size, 0),
            (&mut values.k, &of_k, sizes.heads_k, 1, 1),
            (&mut values.v, &of_k, sizes.heads_k, 1, 1),
        ];
        for ((stands_for, spans, heads, group_size, side), (codes, scales)) in
            tensors.into_iter().zip(codes.iter_mut().zip(&scales))
        {
            for (sequence, span) in spans.iter().enumerate() {
                for row in span.first..span.first + span.len {
                    for head in 0..heads {
                        let of_sides = e4m3.scale(sequence, head / group_size, row - span.first);
                        let scale = f64::from(scales[of_sides[side]]);
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

/// `spoil` changes what the backend is given, and not what it should be.
fn check_case(
    subject: &Subject,
    algorithm: Algorithm,
    e4m3: &E4m3Case,
    spoil: impl FnOnce(&mut Codes),
) -> Result<Option<f64>, String> {
    let case = &e4m3.case;
    let device = |more: u64| {
        let seed = case.seed.wrapping_add(sample::seed()).wrapping_add(more);
        (subject.open)(seed)
    };
    let mut values = case.values();
    let mut codes = Codes::new(e4m3, &mut values);
    spoil(&mut codes);
    let run = |device: &Device| {
        let output = match case.dtype {
            Dtype::Bf16 => forward::<bf16>(e4m3, &codes, device, algorithm),
            Dtype::F16 => forward::<f16>(e4m3, &codes, device, algorithm),
            Dtype::F32 => forward::<f32>(e4m3, &codes, device, algorithm),
        };
        output.map_err(|refusal| format!("{refusal:?}"))
    };
    if e4m3.backward {
        return check_gradients(subject, algorithm, e4m3, &codes, values, device);
    }
    let output = run(&device(0)?)?;
    let problem = case.problem().map_err(|error| error.to_string())?;
    let edits = e4m3.edits();
    let reference = Reference::edited(case, &values, problem.scale(), edits.as_ref());
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

/// Gradients are those of what q, k and v stand for, rounded to the type of o.
fn check_gradients(
    subject: &Subject,
    algorithm: Algorithm,
    e4m3: &E4m3Case,
    codes: &Codes,
    mut values: Values,
    device: impl Fn(u64) -> Result<Device, String>,
) -> Result<Option<f64>, String> {
    let case = &e4m3.case;
    // What comes behind the kernel that takes them out is any algorithm's; flash3 has none of f32.
    let algorithm = match (algorithm, case.dtype) {
        (Algorithm::Flash3, Dtype::F32) => Algorithm::Flash2,
        (other, _) => other,
    };
    let round = |value: f64| match case.dtype {
        Dtype::Bf16 => bf16::from_f32(value as f32).to_f64(),
        Dtype::F16 => f16::from_f32(value as f32).to_f64(),
        Dtype::F32 => (value as f32).into(),
    };
    for tensor in [&mut values.q, &mut values.k, &mut values.v] {
        tensor.iter_mut().for_each(|value| *value = round(*value));
    }
    let problem = case.problem().map_err(|error| error.to_string())?;
    let edits = e4m3.edits();
    let reference = Reference::edited(case, &values, problem.scale(), edits.as_ref());
    let reference = reference.of_products(case.arithmetic(subject.backend));
    let run = |device: &Device| {
        let given = (codes, &values, &reference.output);
        let gradients = match case.dtype {
            Dtype::Bf16 => backward::<bf16>(e4m3, given, device, algorithm),
            Dtype::F16 => backward::<f16>(e4m3, given, device, algorithm),
            Dtype::F32 => backward::<f32>(e4m3, given, device, algorithm),
        };
        gradients.map_err(|refusal| format!("{refusal:?}"))
    };
    let results = Results {
        output: reference.output.clone(),
        gradients: run(&device(0)?)?,
        tensors: Vec::new(),
        forward_kernels: Vec::new(),
        backward_kernels: Vec::new(),
    };
    let close = reference.judge(case, &results)?;
    let all_bits = |of: &Gradients| [&of.d_q, &of.d_k, &of.d_v, &of.d_sinks].map(|x| bits(x));
    if all_bits(&results.gradients) != all_bits(&run(&device(1)?)?) {
        return Err("a second run gave other bits".to_owned());
    }
    Ok(Some(close.worst))
}

/// A pool of this shape with the rows of every sequence in its pages; all else is NaN.
fn pool(e4m3: &E4m3Case, table: &[i32], codes: &[f64], shape: [usize; 4]) -> Vec<f64> {
    let sizes = e4m3.case.sizes;
    let row_len = shape[2] * shape[3];
    let pages = sizes.seqlen_k.div_ceil(PAGE_SIZE);
    let mut pool = vec![f64::NAN; shape.iter().product()];
    for (from, row) in codes.chunks(row_len.max(1)).enumerate() {
        let (sequence, at) = (from / sizes.seqlen_k, from % sizes.seqlen_k);
        let page = table[sequence * pages + at / PAGE_SIZE] as usize;
        let to = (page * PAGE_SIZE + at % PAGE_SIZE) * row_len;
        pool[to..to + row_len].copy_from_slice(row);
    }
    pool
}

/// The gradients, from o and lse as they should be.
fn backward<T: Element + Number>(
    e4m3: &E4m3Case,
    (codes, values, saved): (&Codes, &Values, &Output),
    device: &Device,
    algorithm: Algorithm,
) -> Result<Gradients, Refusal> {
    let broken = |error: ferroflash::error::ProblemError| Refusal::Failed(error.to_string());
    let (case, problem) = (&e4m3.case, e4m3.problem().map_err(broken)?);
    let shapes = [problem.shape_q(), problem.shape_k(), problem.shape_v()];
    let mut buffers = Vec::new();
    for (codes, shape) in codes.codes.iter().zip(shapes) {
        let buffer = Buffer::<F8E4M3>::filled(codes, shape, case.arrangement);
        buffers.push(buffer.map_err(broken)?);
    }
    let filled = |values: &[f64]| {
        Buffer::<T>::filled(values, problem.shape_o(), case.arrangement).map_err(broken)
    };
    let (o, d_o, lse) = (
        filled(&saved.o)?,
        filled(&values.d_o)?,
        Rows::filled(&saved.lse),
    );
    let d_lse = values.d_lse.as_deref().map(Rows::filled);
    let views: Result<Vec<_>, _> = buffers.iter().map(Buffer::view).collect();
    let views = views.map_err(broken)?;
    let [of_q, of_k, of_v] = &codes.scales;
    let vectors = Vectors::of(case);
    let given = Inputs::new(&views[0], &views[1], &views[2])
        .q_descale(of_q)
        .k_descale(of_k)
        .v_descale(of_v);
    let given = vectors.give(given);
    let outputs = case.arrangement.of_outputs();
    let unwritten = |shape| Buffer::<T>::unwritten(shape, outputs).map_err(broken);
    let [mut d_q, mut d_k, mut d_v] = [
        unwritten(shapes[0])?,
        unwritten(shapes[1])?,
        unwritten(shapes[2])?,
    ];
    let mut gradients = ferroflash::Gradients::new(
        d_q.view_mut().map_err(broken)?,
        d_k.view_mut().map_err(broken)?,
        d_v.view_mut().map_err(broken)?,
    );
    let n_sinks = case.sink_values().map_or(0, |sinks| sinks.len());
    let mut d_sinks = Rows::unwritten(n_sinks);
    gradients.d_sinks = (n_sinks > 0).then(|| d_sinks.slice_mut().into());
    let d_o = d_o.view().map_err(broken)?;
    let mut of_output = OutputGradients::new(&d_o);
    of_output.d_lse = d_lse.as_ref().map(|d_lse| d_lse.slice().into());
    let saved = Saved::new(&o.view().map_err(broken)?, lse.slice());
    let refused = |error| refusal(error, algorithm);
    Attention::new(device, problem)
        .map_err(refused)?
        .with_algorithm(algorithm)
        .backward(&given, &saved, &of_output, &mut gradients)
        .map_err(refused)?;
    Ok(Gradients {
        d_q: d_q.values(),
        d_k: d_k.values(),
        d_v: d_v.values(),
        d_sinks: d_sinks.values(),
    })
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
    let (table, edits) = (e4m3.table(), e4m3.edits());
    let mut buffers = Vec::new();
    for (at, (codes, shape)) in codes.codes.iter().zip(shapes).enumerate() {
        let pooled = (e4m3.in_pages && at > 0).then(|| pool(e4m3, &table, codes, shape));
        let codes = pooled.as_ref().unwrap_or(codes);
        let buffer = Buffer::<F8E4M3>::filled(codes, shape, case.arrangement);
        buffers.push(buffer.map_err(broken)?);
    }
    let views: Result<Vec<_>, _> = buffers.iter().map(Buffer::view).collect();
    let views = views.map_err(broken)?;
    let [of_q, of_k, of_v] = &codes.scales;
    let mut given = Inputs::new(&views[0], &views[1], &views[2])
        .q_descale(of_q)
        .k_descale(of_k)
        .v_descale(of_v);
    given.page_table = e4m3.in_pages.then(|| (&table).into());
    let memory = edits.as_ref().map(Edits::memory).unwrap_or_default();
    if let Some(edits) = &edits {
        given = edits.give(given, &memory);
    }
    let vectors = Vectors::of(case);
    output::<T>(
        device,
        algorithm,
        problem,
        &vectors.give(given),
        case.arrangement,
    )
}

#[cfg(test)]
mod tests {
    use ferroflash::{Fp8, Fp8Sums, Mask};
    use half::f16;

    use super::*;
    use crate::cases::Case;
    use crate::subject::{CPU, EMULATED_HOPPER};

    const HEADS_K: usize = 2;
    const HEAD_DIM: usize = 64;

    fn case() -> E4m3Case {
        E4m3Case {
            case: Case::new(Dtype::Bf16, Mask::Full, HEAD_DIM, 70, 144).heads(2, 4, HEADS_K),
            scales: Fp8::PerHead,
            sums: Fp8Sums::TwoLevels,
            in_pages: false,
            rule: None,
            backward: false,
        }
    }

    /// The rows of v, 16 keys at a time, in another order: the `i`-th becomes the one of this number.
    fn reorder_keys(codes: &mut Codes, order: [usize; 16]) {
        let row = HEADS_K * HEAD_DIM;
        for keys in codes.codes[2].chunks_exact_mut(16 * row) {
            let given = keys.to_vec();
            for (to, from) in order.into_iter().enumerate() {
                keys[to * row..][..row].copy_from_slice(&given[from * row..][..row]);
            }
        }
    }

    /// The same with scales of blocks: two of queries and two of keys.
    fn case_of_blocks() -> E4m3Case {
        E4m3Case {
            case: Case::new(Dtype::Bf16, Mask::Full, HEAD_DIM, 200, 230).heads(1, 4, HEADS_K),
            scales: Fp8::PerBlock,
            ..case()
        }
    }

    fn is_noticed(what: &str, spoil: fn(&mut Codes)) {
        is_noticed_in(case(), what, spoil);
    }

    /// By o and lse, and by the gradients.
    fn is_noticed_in(case: E4m3Case, what: &str, spoil: fn(&mut Codes)) {
        for (subject, algorithm) in [
            (CPU, Algorithm::Tiled),
            (EMULATED_HOPPER, Algorithm::Flash3),
        ] {
            for backward in [false, true] {
                let case = E4m3Case { backward, ..case };
                let words = check_case(&subject, algorithm, &case, spoil).expect_err(what);
                assert!(words.contains("beyond tolerance"), "{what}: {words}");
            }
        }
    }

    #[test]
    fn mistakes_with_8_bits_are_noticed() {
        for (subject, algorithm) in [
            (CPU, Algorithm::Tiled),
            (EMULATED_HOPPER, Algorithm::Flash3),
        ] {
            for backward in [false, true] {
                for case in [case(), case_of_blocks()] {
                    let case = E4m3Case { backward, ..case };
                    check_case(&subject, algorithm, &case, |_| ()).unwrap();
                }
            }
        }
        is_noticed("the order of P's registers, not undone", |codes| {
            let order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
            reorder_keys(codes, order);
        });
        is_noticed("the bytes of a register in the wrong order", |codes| {
            reorder_keys(codes, std::array::from_fn(|at| at ^ 3));
        });
        is_noticed("a scale twice", |codes| {
            codes.scales[1]
                .iter_mut()
                .for_each(|scale| *scale *= *scale);
        });
        is_noticed("the scale of another head", |codes| {
            codes.scales[2].rotate_left(1);
        });
        let neighbours: [fn(&mut Codes); 3] = [
            |codes| {
                codes.scales[0]
                    .chunks_exact_mut(2)
                    .for_each(<[f32]>::reverse)
            },
            |codes| {
                codes.scales[1]
                    .chunks_exact_mut(2)
                    .for_each(<[f32]>::reverse)
            },
            |codes| {
                codes.scales[2]
                    .chunks_exact_mut(2)
                    .for_each(<[f32]>::reverse)
            },
        ];
        for (spoil, of) in neighbours.into_iter().zip(["q", "k", "v"]) {
            let what = format!("the scale of the neighbouring block of {of}");
            is_noticed_in(case_of_blocks(), &what, spoil);
        }
        is_noticed("e5m2 instead of e4m3", |codes| {
            for code in &mut codes.codes[1] {
                let bits = F8E4M3::from_f64(*code).to_bits();
                *code = f16::from_bits(u16::from(bits) << 8).to_f64();
            }
        });
    }
}
