//! The suite of merges, the same for every backend: two parts of the keys against the oracle, and parts of attention against attention
//! over all keys.

use ferroflash::error::PlanError;
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Element, Error, Merge, MergeInputs, MergeProblem,
    Outputs, Pass, Problem, Tensor, TensorMut,
};
use half::{bf16, f16};

use crate::beside::{F32_UNIT, bits, check_cases, judge_numbers, rounding};
use crate::buffer::{Buffer, Number};
use crate::cases::merges::MergeCase;
use crate::compare::{Comparison, Errors};
use crate::inputs::{Fill, Values};
use crate::oracle::{self, Inputs, MergeReference, Output, Sizes, Terms};
use crate::sample;
use crate::subject::Subject;
use crate::suite::say;
use crate::tolerance::Quantity;
use crate::trial::Rows;

/// Puts the subject through a set of merges; panics with every failure. `test` is the path of the test.
pub fn check(subject: &Subject, test: &str, cases: &[MergeCase]) {
    check_cases(subject, test, cases, |case| check_case(subject, case));
}

/// One case: how close it came, or `None` where it is refused, as it should be.
fn check_case(subject: &Subject, case: &MergeCase) -> Result<Option<f64>, String> {
    match case.dtype {
        Dtype::Bf16 => typed::<bf16>(subject, case),
        Dtype::F16 => typed::<f16>(subject, case),
        Dtype::F32 => typed::<f32>(subject, case),
    }
}

fn typed<T: Element + Number>(subject: &Subject, case: &MergeCase) -> Result<Option<f64>, String> {
    let eligible = subject.backend == Backend::Cpu || case.fits_kernels();
    let seed = case.seed.wrapping_add(sample::seed());
    let [first, second] = &case.parts();
    let output = match run::<T>(&(subject.open)(seed)?, case, [first, second]) {
        Err(Error::Plan(PlanError::Operation { .. })) if !eligible => return Ok(None),
        Ok(_) if !eligible => return Err("it ran; it should have been refused".into()),
        Err(error) => return Err(error.to_string()),
        Ok(output) => output?,
    };
    let reference = oracle::merge(case.shape, [first, second]);
    let close = judge(case, &reference, &output)?;
    check_alone(case, &reference, [first, second], &output)?;
    // The parts in the other order, on the emulator under another seed of its scheduler.
    let swapped_case = MergeCase {
        arrangements: [1, 0, 2].map(|at| case.arrangements[at]),
        ..*case
    };
    let device = (subject.open)(seed.wrapping_add(1))?;
    let swapped = run::<T>(&device, &swapped_case, [second, first]);
    let swapped = swapped.map_err(|error| error.to_string())??;
    match bits(&swapped.o) == bits(&output.o) && bits(&swapped.lse) == bits(&output.lse) {
        true => Ok(Some(close)),
        false => Err("the parts in the other order gave other bits".into()),
    }
}

/// Merges on a device. The inner error says what was written that should not have been.
fn run<T: Element + Number>(
    device: &Device,
    case: &MergeCase,
    parts: [&Output; 2],
) -> Result<Result<Output, String>, Error> {
    let [first, second, output] = case.arrangements;
    let merge = Merge::new(device, MergeProblem::new(case.dtype, case.shape))?;
    let o_1 = Buffer::<T>::filled(&parts[0].o, case.shape, first)?;
    let o_2 = Buffer::<T>::filled(&parts[1].o, case.shape, second)?;
    let [lse_1, lse_2] = parts.map(|part| Rows::filled(&part.lse));
    let inputs = MergeInputs::new(&o_1.view()?, lse_1.slice(), &o_2.view()?, lse_2.slice());
    let mut o = Buffer::<T>::unwritten(case.shape, output)?;
    let mut lse = Rows::unwritten(parts[0].lse.len());
    merge.run(&inputs, &mut Outputs::new(o.view_mut()?, lse.slice_mut()))?;
    // Without lse the same comes out.
    let mut alone = Buffer::<T>::unwritten(case.shape, output)?;
    merge.run(&inputs, &mut Outputs::without_lse(alone.view_mut()?))?;
    let values = o.values();
    Ok(if o.strayed().is_some() || lse.strayed() {
        Err("memory beside the outputs was written to".into())
    } else if bits(&values) != bits(&alone.values()) {
        Err("without lse, o has other bits".into())
    } else {
        Ok(Output {
            o: values,
            lse: lse.slice().iter().copied().map(f64::from).collect(),
        })
    })
}

/// How far an element may lie from the oracle's. One rounding to the element type; f32 errors of the weights (an exponential, the
/// inverse of their sum, products) and, by their difference, of lse.
fn judge(case: &MergeCase, reference: &MergeReference, output: &Output) -> Result<f64, String> {
    let (unit, smallest) = rounding(case.dtype);
    let allowed_o = |at: usize| {
        let reference_o: f64 = reference.output.o[at];
        unit * reference_o.abs() + 8.0 * F32_UNIT * reference.terms[at] + smallest
    };
    let allowed_lse = |at: usize| {
        let lse: f64 = reference.output.lse[at];
        F32_UNIT * (8.0 + lse.abs())
    };
    let [o, lse] = [
        (&output.o, &reference.output.o),
        (&output.lse, &reference.output.lse),
    ];
    let of_o = judge_numbers(o.0, o.1, allowed_o).map_err(|failure| format!("o: {failure}"))?;
    let of_lse = judge_numbers(lse.0, lse.1, allowed_lse);
    Ok(of_o.max(of_lse.map_err(|failure| format!("lse: {failure}"))?))
}

/// Where one part has all the weight, the result is that part bit for bit; where none has any, it is +0.
fn check_alone(
    case: &MergeCase,
    reference: &MergeReference,
    parts: [&Output; 2],
    output: &Output,
) -> Result<(), String> {
    let [_, seqlen, heads, head_dim] = case.shape;
    for (row, alone) in reference.alone.iter().enumerate() {
        let (b, h, i) = (row / seqlen / heads, row / seqlen % heads, row % seqlen);
        let first = ((b * seqlen + i) * heads + h) * head_dim;
        let o = bits(&output.o[first..first + head_dim]);
        let is_exact = match alone {
            Some(part) => {
                let of_part = &parts[*part].o[first..first + head_dim];
                o == bits(of_part) && output.lse[row] == parts[*part].lse[row]
            }
            None if reference.output.lse[row] == f64::NEG_INFINITY => o.iter().all(|&x| x == 0),
            None => true,
        };
        if !is_exact {
            return Err(format!("row {row}, of {alone:?} alone, differs from it"));
        }
    }
    Ok(())
}

/// Attention over the first keys and over the others, merged, is attention over all keys: with every algorithm of the device.
pub fn check_of_attention(subject: &Subject) {
    if subject.is_absent() {
        return;
    }
    let device = (subject.open)(sample::seed()).unwrap_or_else(|reason| panic!("{reason}"));
    let of_device = [
        Algorithm::Tiled,
        Algorithm::Standard,
        Algorithm::Flash2,
        Algorithm::Flash3,
    ];
    let mut n_compared = 0;
    for (algorithm, dtype) in of_device
        .into_iter()
        .flat_map(|a| [Dtype::Bf16, Dtype::F16, Dtype::F32].map(|dtype| (a, dtype)))
    {
        if dtype == Dtype::F32 && subject.backend != Backend::Cpu {
            // Merges of f32 run on the CPU alone.
            continue;
        }
        for n_first in [0, 1, 70, 128] {
            let outcome = match dtype {
                Dtype::Bf16 => of_attention::<bf16>(&device, algorithm, dtype, n_first),
                Dtype::F16 => of_attention::<f16>(&device, algorithm, dtype, n_first),
                Dtype::F32 => of_attention::<f32>(&device, algorithm, dtype, n_first),
            };
            match outcome {
                Ok(compared) => n_compared += usize::from(compared),
                Err(failure) => panic!("{algorithm}, {dtype}, {n_first} keys first: {failure}"),
            }
        }
    }
    assert!(n_compared >= 8, "{n_compared} compared");
    say(&format!(
        "conformance: parts of attention merged: {n_compared} compared"
    ));
}

const SIZES: Sizes = Sizes {
    batch: 2,
    seqlen_q: 19,
    seqlen_k: 150,
    heads_q: 4,
    heads_k: 2,
    head_dim: 64,
    head_dim_v: 64,
};

/// Whether there was something to compare: the algorithm serves these problems.
fn of_attention<T: Element + Number>(
    device: &Device,
    algorithm: Algorithm,
    dtype: Dtype,
    n_first: usize,
) -> Result<bool, Box<dyn std::error::Error>> {
    let values = Values::new(Fill::Normal, SIZES, dtype, sample::seed());
    let parts = [(0, n_first), (n_first, SIZES.seqlen_k - n_first)];
    let problem = |seqlen_k| {
        Problem::builder(dtype)
            .batch(SIZES.batch)
            .seqlen_q(SIZES.seqlen_q)
            .seqlen_k(seqlen_k)
            .heads_q(SIZES.heads_q)
            .heads_k(SIZES.heads_k)
            .head_dim(SIZES.head_dim)
            .build()
    };
    let typed =
        |values: &[f64]| -> Vec<T> { values.iter().map(|&x| T::from_f32(x as f32)).collect() };
    let (q, k, v) = (typed(&values.q), typed(&values.k), typed(&values.v));
    let whole = problem(SIZES.seqlen_k)?;
    let mut of_parts = Vec::new();
    for (first, seqlen_k) in parts {
        let problem = problem(seqlen_k)?;
        let attention = Attention::new(device, problem)?.with_algorithm(algorithm);
        if attention.explain(Pass::Forward)?.plan.is_err() {
            return Ok(false);
        }
        // Some keys of each sequence: a view of all.
        let layout = ferroflash::Layout {
            seqlen: seqlen_k,
            ..ferroflash::Layout::bshd(whole.shape_k())?
        };
        let at = first * layout.row_stride;
        let inputs = ferroflash::Inputs::new(
            &Tensor::bshd(&q, whole.shape_q())?,
            &Tensor::strided(&k[at..], layout)?,
            &Tensor::strided(&v[at..], layout)?,
        );
        let (mut o, mut lse) = (
            vec![T::from_f32(0.0); q.len()],
            vec![0f32; SIZES.row_elems()],
        );
        let o_mut = TensorMut::bshd(&mut o, whole.shape_q())?;
        attention.forward(&inputs, &mut Outputs::new(o_mut, &mut lse))?;
        of_parts.push((o, lse));
    }
    let shape = whole.shape_q();
    let [(o_1, lse_1), (o_2, lse_2)] = &of_parts[..] else {
        return Err("two parts".into());
    };
    let inputs = MergeInputs::new(
        &Tensor::bshd(o_1, shape)?,
        lse_1,
        &Tensor::bshd(o_2, shape)?,
        lse_2,
    );
    let (mut o, mut lse) = (
        vec![T::from_f32(f32::NAN); q.len()],
        vec![f32::NAN; SIZES.row_elems()],
    );
    let o_mut = TensorMut::bshd(&mut o, shape)?;
    let merge = Merge::new(device, MergeProblem::of(&whole))?;
    merge.run(&inputs, &mut Outputs::new(o_mut, &mut lse))?;
    compare(&values, dtype, whole.scale(), &o, &lse)?;
    Ok(true)
}

/// o and lse against the oracle of attention over all keys. Each part of o is rounded, too: the terms count twice.
fn compare<T: Element + Number>(
    values: &Values,
    dtype: Dtype,
    softmax_scale: f32,
    o: &[T],
    lse: &[f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let inputs = Inputs {
        sizes: SIZES,
        q: &values.q,
        k: &values.k,
        v: &values.v,
        softmax_scale: softmax_scale.into(),
        visible: &oracle::full,
        block: None,
        edit: None,
        sinks: None,
        dropout: None,
    };
    let output = oracle::forward(&inputs);
    let condition = oracle::condition(&inputs, &output, &values.d_o, None);
    let twice = |terms: &[f64]| terms.iter().map(|term| 2.0 * term).collect();
    let terms_o = Terms {
        relative: twice(&condition.o.relative),
        absolute: twice(&condition.o.absolute),
    };
    let o: Vec<f64> = o.iter().map(|x| f64::from(x.to_f32())).collect();
    let lse: Vec<f64> = lse.iter().copied().map(f64::from).collect();
    let shape = [SIZES.batch, SIZES.seqlen_q, SIZES.heads_q, SIZES.head_dim];
    let of_o = Comparison {
        quantity: Quantity::O,
        arithmetic: dtype.into(),
        shape,
        actual: &o,
        reference: &output.o,
        terms: &terms_o,
        n_terms: SIZES.seqlen_k,
        score: condition.score,
        errors: Errors::Independent,
    };
    of_o.check().map_err(|mismatch| mismatch.to_string())?;
    let of_lse = Comparison {
        quantity: Quantity::Lse,
        shape: [SIZES.batch, SIZES.heads_q, SIZES.seqlen_q, 1],
        actual: &lse,
        reference: &output.lse,
        terms: &Terms::uniform(lse.len(), 2.0, 0.0),
        ..of_o
    };
    of_lse.check().map_err(|mismatch| mismatch.to_string())?;
    Ok(())
}
