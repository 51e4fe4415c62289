//! A slope that is NaN or infinite spoils the rows that see keys. A row that sees none is as without it: o = 0, lse = −∞.

use conformance::cases::Case;
use conformance::inputs::Values;
use conformance::subject::{CPU, CUDA, EMULATED, EMULATED_HOPPER, Subject};
use ferroflash::{
    Algorithm, Attention, Dtype, Inputs, Mask, Outputs, Problem, ReadTensor, Score, Tensor,
    TensorMut,
};
use half::bf16;

/// Of four heads.
const SLOPES: [f32; 4] = [0.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
/// Queries and keys: more than one block of keys, so that a row's maximum meets a second block.
const SEQLEN: usize = 260;
const HEAD_DIM: usize = 64;

/// Whether a query sees no key.
fn is_hidden(query: usize) -> bool {
    query % 3 == 1
}

fn problem() -> Problem {
    let alibi = Score::new(|s, at| {
        let slope = at.tensor_f32("slopes", [at.head]);
        s + slope * (at.k - at.q).to_f32()
    });
    let hides = Mask::new(|at| (at.q % 3).ne(1));
    Problem::builder(Dtype::Bf16)
        .seqlen(SEQLEN)
        .heads(SLOPES.len())
        .head_dim(HEAD_DIM)
        .mask(Mask::Causal)
        .score(alibi.unwrap())
        .mask_expression(hides.unwrap())
        .build()
        .unwrap()
}

fn check(subject: &Subject, algorithm: Algorithm) {
    if subject.cannot_run(algorithm) {
        return;
    }
    let heads = SLOPES.len();
    let case =
        Case::new(Dtype::Bf16, Mask::Causal, HEAD_DIM, SEQLEN, SEQLEN).heads(1, heads, heads);
    let values = Values::new(case.fill, case.sizes, case.dtype, case.seed);
    let parts = [&values.q, &values.k, &values.v].map(|part| {
        let elems = part.iter().map(|&x| bf16::from_f32(x as f32));
        elems.collect::<Vec<_>>()
    });
    let shape = [1, SEQLEN, heads, HEAD_DIM];
    let [q, k, v] = [0, 1, 2].map(|part| Tensor::bshd(&parts[part], shape).unwrap());
    let slopes = ReadTensor::new(&SLOPES, [heads]);
    let inputs = Inputs::new(&q, &k, &v).score_tensor("slopes", slopes);
    let mut o = vec![bf16::NAN; case.sizes.query_elems()];
    let mut lse = vec![f32::NAN; case.sizes.row_elems()];
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, shape).unwrap(), &mut lse);
    let device = (subject.open)(0).unwrap();
    Attention::new(&device, problem())
        .unwrap()
        .with_algorithm(algorithm)
        .forward(&inputs, &mut outputs)
        .unwrap();
    for query in 0..SEQLEN {
        for head in 0..heads {
            let row = &o[(query * heads + head) * HEAD_DIM..][..HEAD_DIM];
            let lse = lse[head * SEQLEN + query];
            let what = format!("{algorithm}: query {query}, head {head}: {lse}, {row:?}");
            if is_hidden(query) {
                assert!(row.iter().all(|x| x.to_f32() == 0.0), "{what}");
                assert_eq!(lse, f32::NEG_INFINITY, "{what}");
            } else if SLOPES[head].is_finite() {
                assert!(row.iter().all(|x| x.to_f32().is_finite()), "{what}");
                assert!(lse.is_finite(), "{what}");
            }
        }
    }
}

#[test]
fn cpu() {
    check(&CPU, Algorithm::Tiled);
}

#[test]
fn emulated() {
    check(&EMULATED, Algorithm::Flash2);
    check(&EMULATED_HOPPER, Algorithm::Flash3);
    check(&EMULATED, Algorithm::Standard);
}

#[test]
fn cuda() {
    check(&CUDA, Algorithm::Flash2);
    check(&CUDA, Algorithm::Flash3);
    check(&CUDA, Algorithm::Standard);
}
