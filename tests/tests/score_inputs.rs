//! What a call gives the expressions of its scores may be anything: names, types, ranks, sizes and strides. A call runs where all of it fits, and
//! otherwise ends in a typed error that has a text, never in a panic.

use std::collections::BTreeMap;

use ferroflash::expression::ParamValue;
use ferroflash::{
    Attention, Device, Dtype, Error, Inputs, Mask, Outputs, Problem, ReadTensor, Score, Tensor,
    TensorMut,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const CASES: u32 = 40_000;

const HEADS: usize = 2;
const SEQLEN: usize = 3;

/// What the expressions take and some that they do not; an empty name, and one that is no identifier.
const NAMES: [&str; 8] = ["bias", "documents", "cap", "n", "other", "", "bias ", "Cap"];

/// Elements that every tensor has.
const N_ELEMS: usize = 24;

/// A tensor of a call.
#[derive(Clone, Debug)]
struct GivenTensor {
    element: usize,
    shape: Vec<usize>,
    strides: Option<Vec<i64>>,
}

/// What a call gives by name.
#[derive(Clone, Debug)]
struct Given {
    params: Vec<(&'static str, ParamValue)>,
    tensors: Vec<(&'static str, GivenTensor)>,
}

fn problem() -> Problem {
    let score = Score::new(|s, at| {
        let biased = s + at.tensor_f16("bias", [at.head, at.q + at.k]);
        biased.min(at.f32("cap"))
    });
    let mask = Mask::new(|at| at.tensor_i32("documents", [at.k]).ne(at.i32("n")));
    Problem::builder(Dtype::F32)
        .seqlen(SEQLEN)
        .heads(HEADS)
        .head_dim(1)
        .score(score.unwrap())
        .mask_expression(mask.unwrap())
        .build()
        .unwrap()
}

/// What fits.
fn right() -> Given {
    let tensor = |element, shape: &[usize]| GivenTensor {
        element,
        shape: shape.to_vec(),
        strides: None,
    };
    Given {
        params: vec![("cap", ParamValue::F32(1.0)), ("n", ParamValue::I32(1))],
        tensors: vec![
            ("bias", tensor(1, &[HEADS, 5])),
            ("documents", tensor(3, &[SEQLEN])),
        ],
    }
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0usize..7,
        1 => select(vec![12, 24, 25, 1 << 30, (1 << 30) + 1, 1 << 32, usize::MAX]),
    ]
}

fn stride() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0i64..6,
        1 => select(vec![-1, 1 << 29, 1 << 31, i64::MAX, i64::MIN]),
    ]
}

fn tensor() -> impl Strategy<Value = GivenTensor> {
    let shape = proptest::collection::vec(size(), 0..6);
    let strides = proptest::option::of(proptest::collection::vec(stride(), 0..6));
    (0usize..5, shape, strides).prop_map(|(element, shape, strides)| GivenTensor {
        element,
        shape,
        strides,
    })
}

fn param() -> impl Strategy<Value = ParamValue> {
    prop_oneof![
        any::<f32>().prop_map(ParamValue::F32),
        any::<i32>().prop_map(ParamValue::I32),
    ]
}

/// What fits, with some of it left out, replaced, or given beside.
fn given() -> impl Strategy<Value = Given> {
    let params = proptest::collection::vec((select(NAMES.to_vec()), param()), 0..3);
    let tensors = proptest::collection::vec((select(NAMES.to_vec()), tensor()), 0..3);
    let many = prop_oneof![20 => Just(0usize), 1 => 0usize..20];
    let near = (
        0usize..2,
        prop_oneof![size().boxed(), (1usize..6).boxed()],
        stride(),
    );
    (params, tensors, any::<[bool; 4]>(), many, near).prop_map(
        |(params, tensors, keep, many, (dim, extent, stride))| {
            let mut given = right();
            let mut keep = keep.into_iter().map(|keep| keep || many == 0);
            given.params.retain(|_| keep.next() == Some(true));
            given.tensors.retain(|_| keep.next() == Some(true));
            let changes = tensors.len();
            if let Some((_, bias)) = given.tensors.first_mut().filter(|_| changes == 1) {
                let of = dim.min(bias.shape.len() - 1);
                bias.shape[of] = extent;
                bias.strides = Some(vec![stride, 1][2 - bias.shape.len()..].to_vec());
                return given;
            }
            if changes == 2 {
                given.params.extend(params);
                given.tensors.extend(tensors);
            }
            let more = (0..many).map(|at| (NAMES[at % NAMES.len()], ParamValue::I32(0)));
            given.params.extend(more);
            given
        },
    )
}

/// Whether a call with it runs, said a second time.
fn fits(given: &Given) -> bool {
    let params: BTreeMap<_, _> = given.params.iter().copied().collect();
    let are_params = params.len() == 2
        && given.params.len() == 2
        && matches!(params.get("cap"), Some(ParamValue::F32(_)))
        && matches!(params.get("n"), Some(ParamValue::I32(_)));
    let tensors: BTreeMap<_, _> = given.tensors.iter().map(|(name, of)| (*name, of)).collect();
    let fits = |name: &str, element: usize, least: &[usize]| {
        let Some(tensor) = tensors.get(name) else {
            return false;
        };
        let GivenTensor { shape, strides, .. } = tensor;
        let contiguous = |dim: usize| shape[dim + 1..].iter().map(|&n| n as i128).product();
        let stride = |dim: usize| match strides {
            Some(strides) => i128::from(strides[dim]),
            None => contiguous(dim),
        };
        let ranks = shape.len() == least.len()
            && strides
                .as_ref()
                .is_none_or(|strides| strides.len() == least.len());
        // Kernels count distances of 4 GiB from an index that they move into the tensor.
        let most = |dim: usize| match (name, dim) {
            ("bias", 0) => i128::MAX,
            ("bias", _) => i128::from(i32::MAX / 2),
            _ => i128::from(i32::MAX / 4),
        };
        let inside = |dim: usize| {
            let strides = 0..=most(dim);
            (least[dim]..=1 << 30).contains(&shape[dim])
                && (shape[dim] == 1 || strides.contains(&stride(dim)))
        };
        let last = || (0..shape.len()).map(|dim| (shape[dim] as i128 - 1) * stride(dim));
        tensor.element == element
            && ranks
            && (0..shape.len()).all(inside)
            && last().sum::<i128>() < N_ELEMS as i128
    };
    are_params
        && given.tensors.len() == 2
        && fits("bias", 1, &[HEADS, 1])
        && fits("documents", 3, &[1])
}

/// A call with it, on the CPU.
fn run(given: &Given) -> Result<(), Error> {
    let problem = problem();
    let shape = problem.shape_q();
    let numbers = [0.5f32; HEADS * SEQLEN];
    let tensor = Tensor::bshd(&numbers, shape)?;
    let (f32s, i32s) = ([0.25f32; N_ELEMS], [7i32; N_ELEMS]);
    let f16s = [half::f16::ONE; N_ELEMS];
    let bf16s = [half::bf16::ONE; N_ELEMS];
    let bytes = [1u8; N_ELEMS];
    let mut inputs = Inputs::new(&tensor, &tensor, &tensor);
    for &(name, value) in &given.params {
        inputs = inputs.score_param(name, value);
    }
    for (name, of) in &given.tensors {
        let tensor = match of.element {
            0 => ReadTensor::new(&f32s, &of.shape),
            1 => ReadTensor::new(&f16s, &of.shape),
            2 => ReadTensor::new(&bf16s, &of.shape),
            3 => ReadTensor::new(&i32s, &of.shape),
            _ => ReadTensor::new(&bytes, &of.shape),
        };
        inputs = inputs.score_tensor(
            name,
            match &of.strides {
                Some(strides) => tensor.strides(strides),
                None => tensor,
            },
        );
    }
    let (mut o, mut lse) = ([0f32; HEADS * SEQLEN], [0f32; HEADS * SEQLEN]);
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, shape)?, &mut lse);
    Attention::new(&Device::cpu(), problem)?.forward(&inputs, &mut outputs)?;
    Ok(())
}

#[test]
fn anything_by_name_ends_in_a_result_or_in_an_error() {
    assert!(fits(&right()) && run(&right()).is_ok());
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (n_ran, n_refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let outcome = runner.run(&given(), |given| {
        match run(&given) {
            Ok(()) => n_ran.set(n_ran.get() + 1),
            Err(error) => {
                n_refused.set(n_refused.get() + 1);
                prop_assert!(!error.to_string().is_empty());
                prop_assert!(!fits(&given), "{given:?} is refused: {error}");
                return Ok(());
            }
        }
        prop_assert!(fits(&given), "{given:?} is not refused");
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    let (n_ran, n_refused) = (n_ran.get(), n_refused.get());
    assert!(
        CASES / 20 < n_ran && CASES / 20 < n_refused,
        "{n_ran} {n_refused}"
    );
}
