//! The weights that `standard` gives beside o and lse: softmax of the scores, each row 0 where it sees no key; and chosen rows of them, which the
//! CPU computes.

use conformance::blocks::{Blocks, Each, Map};
use conformance::cases::{self, Case};
use conformance::compare::{Comparison, Errors};
use conformance::inputs::Values;
use conformance::oracle::{self, Terms};
use conformance::reference::with_inputs;
use conformance::sample;
use conformance::subject::{CPU, CUDA, EMULATED, Subject};
use conformance::tolerance::Quantity;
use conformance::weights::check as check_rows;
use ferroflash::{Algorithm, Attention, Dtype, Element, Inputs, Mask, Outputs, Tensor, TensorMut};
use half::{bf16, f16};

/// The weights as a device computes them, `[batch, heads_q, seqlen_q, seqlen_k]`.
fn weights<T: Element>(subject: &Subject, case: &Case, values: &Values) -> Vec<f64> {
    let problem = case.problem().unwrap();
    let elements =
        |values: &[f64]| -> Vec<T> { values.iter().map(|&x| T::from_f32(x as f32)).collect() };
    let (q, k, v) = (
        elements(&values.q),
        elements(&values.k),
        elements(&values.v),
    );
    let layout = problem.weights_layout().unwrap();
    let mut weights = vec![T::from_f32(f32::NAN); layout.n_elems().unwrap()];
    let mut o = vec![T::from_f32(f32::NAN); q.len()];
    let mut lse = vec![f32::NAN; case.sizes.row_elems()];
    let attention = Attention::new(&(subject.open)(case.seed).unwrap(), problem).unwrap();
    let inputs = Inputs::new(
        &Tensor::bshd(&q, problem.shape_q()).unwrap(),
        &Tensor::bshd(&k, problem.shape_k()).unwrap(),
        &Tensor::bshd(&v, problem.shape_k()).unwrap(),
    );
    let table = case.block_table();
    let inputs = match &table {
        Some(table) => inputs.block_mask(&table.bytes),
        None => inputs,
    };
    let o = TensorMut::bshd(&mut o, problem.shape_q()).unwrap();
    let mut outputs =
        Outputs::new(o, &mut lse).weights(TensorMut::strided(&mut weights, layout).unwrap());
    let ran = attention
        .with_algorithm(Algorithm::Standard)
        .forward(&inputs, &mut outputs)
        .unwrap();
    assert_eq!(ran.algorithm, Algorithm::Standard);
    let rows = weights.chunks_exact(layout.row_stride.max(1));
    rows.flat_map(|row| {
        row[..case.sizes.seqlen_k]
            .iter()
            .map(|x| f64::from(x.to_f32()))
    })
    .collect()
}

fn check(subject: &Subject) {
    if subject.is_absent() {
        return;
    }
    let random = Blocks {
        block_q: 128,
        block_k: 128,
        each: Each::BatchAndHead,
        map: Map::Random,
    };
    for (dtype, mask, seqlen_q, seqlen_k, blocks) in [
        (Dtype::Bf16, Mask::Full, 130, 65, None),
        (Dtype::F16, Mask::Causal, 70, 133, None),
        (Dtype::Bf16, Mask::Causal, 90, 30, None),
        (Dtype::F16, Mask::Full, 3, 1, None),
        (Dtype::Bf16, Mask::Causal, 270, 300, Some(random)),
    ] {
        let case = Case {
            blocks,
            ..Case::new(dtype, mask, 64, seqlen_q, seqlen_k).heads(2, 2, 1)
        };
        let values = Values::new(case.fill, case.sizes, dtype, case.seed);
        let actual = match dtype {
            Dtype::F16 => weights::<f16>(subject, &case, &values),
            _ => weights::<bf16>(subject, &case, &values),
        };
        let scale = case.problem().unwrap().scale();
        let (reference, score) = with_inputs(&case, &values, scale, |inputs| {
            let score = inputs.product_error();
            (oracle::probabilities(inputs), score)
        });
        let terms = Terms {
            relative: reference.clone(),
            absolute: vec![0.0; reference.len()],
        };
        let comparison = Comparison {
            quantity: Quantity::Weights,
            arithmetic: dtype.into(),
            shape: [2, 2, seqlen_q, seqlen_k],
            actual: &actual,
            reference: &reference,
            terms: &terms,
            n_terms: 1,
            score,
            errors: Errors::Independent,
        };
        comparison
            .check()
            .unwrap_or_else(|mismatch| panic!("{case:?}: {mismatch}"));
    }
}

#[test]
fn emulated() {
    check(&EMULATED);
}

#[test]
fn cuda() {
    check(&CUDA);
}

/// Of a set of cases one in so many, others with every seed: their rows against the oracle.
fn rows_of(n: usize, cases: Vec<Case>) {
    let first = sample::seed() as usize % n;
    for case in cases.into_iter().skip(first).step_by(n) {
        rows_of_case(&case);
    }
}

fn rows_of_case(case: &Case) {
    let device = (CPU.open)(case.seed).unwrap();
    if let Err(error) = check_rows(case, &case.values(), None, &device) {
        panic!("{case:?}: {error}");
    }
}

#[test]
fn rows_of_random_problems() {
    let mut runner = cases::runner(40, sample::seed());
    let random = cases::random(&[8, 32, 64, 96], 140);
    runner
        .run(&random, |case| {
            rows_of_case(&case);
            Ok(())
        })
        .unwrap();
}

#[test]
fn rows_of_masks_and_edges() {
    rows_of(6, cases::edge());
    rows_of(9, cases::windows::all());
    rows_of(9, cases::blocks::all());
    rows_of(9, cases::wide());
}

#[test]
fn rows_of_sequences_with_lengths() {
    rows_of(6, cases::lengths::all());
}

#[test]
fn rows_beside_sinks() {
    rows_of(9, cases::sinks::masks());
    rows_of(9, cases::sinks::lengths());
    rows_of(9, cases::sinks::blocks());
}

#[test]
fn rows_of_edited_scores() {
    let mut all = cases::scores::all();
    all.extend(cases::scores::masks());
    all.extend(cases::scores::blocks());
    all.extend(cases::scores::lengths());
    let first = sample::seed() as usize % 16;
    for scores in all.into_iter().skip(first).step_by(16) {
        let case = &scores.case;
        let edits = scores.edits();
        let values = scores.values(&edits);
        let device = (CPU.open)(case.seed).unwrap();
        if let Err(error) = check_rows(case, &values, Some(&edits), &device) {
            panic!("{scores:?}: {error}");
        }
    }
}
