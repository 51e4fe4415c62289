//! Values of another number of columns than the keys, and values in the keys: shapes, what makes no sense, and who serves them.

use ferroflash::arguments::Argument;
use ferroflash::error::{PlanError, ProblemError};
use ferroflash::plan::{DeviceInfo, Outcome, Reason, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::{MAX_HEAD_DIM, check, sizes, without_tensors};
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Fp8Kv, Inputs, MergeProblem, Outputs, Pages,
    Pass, Problem, ProblemBuilder, Tensor, TensorMut,
};

/// Two sequences of ten queries and 20 keys.
fn problem(head_dim: usize, head_dim_v: usize) -> ProblemBuilder {
    Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen_q(10)
        .seqlen_k(20)
        .heads_q(6)
        .heads_k(3)
        .head_dim(head_dim)
        .head_dim_v(head_dim_v)
}

#[test]
fn v_and_o_have_columns_of_their_own() {
    let of = problem(64, 48).build().unwrap();
    assert_eq!((of.head_dim(), of.head_dim_v()), (64, 48));
    assert_eq!(of.shape_q(), [2, 10, 6, 64]);
    assert_eq!(of.shape_k(), [2, 20, 3, 64]);
    assert_eq!(of.shape_v(), [2, 20, 3, 48]);
    assert_eq!(of.shape_o(), [2, 10, 6, 48]);
    assert_eq!(MergeProblem::of(&of).shape(), of.shape_o());
    assert!(!of.values_in_keys());
    // The scale is that of the scores.
    assert_eq!(of.scale(), 0.125);
    let in_pages = of.to_builder().pages(Pages::new(7, 4)).build().unwrap();
    assert_eq!(in_pages.shape_v(), [7, 4, 3, 48]);
    let packed = of.to_builder().packed_q(15).packed_k(25).build().unwrap();
    assert_eq!(packed.shape_v(), [1, 25, 3, 48]);
    assert_eq!(packed.shape_o(), [1, 15, 6, 48]);
}

#[test]
fn without_a_word_they_have_as_many_as_the_keys() {
    let said = problem(64, 64).build().unwrap();
    let unset = said.to_builder().head_dim(64).build().unwrap();
    assert_eq!(said, unset);
    // A builder does not keep what was never said.
    let other = unset.to_builder().head_dim(32).build().unwrap();
    assert_eq!(other.head_dim_v(), 32);
    let kept = problem(64, 48).build().unwrap().to_builder().head_dim(32);
    assert_eq!(kept.build().unwrap().head_dim_v(), 48);
    let latent = said.to_builder().values_in_keys().build().unwrap();
    assert!(latent.values_in_keys() && latent != said);
    assert!(latent.to_builder().build().unwrap().values_in_keys());
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let refused = |problem: ProblemBuilder| sizes(&problem.build().unwrap());
    let out_of_range = |given, max| Err(ProblemError::HeadDimVOutOfRange { given, min: 1, max });
    assert_eq!(refused(problem(MAX_HEAD_DIM, 512)), Ok(()));
    assert_eq!(refused(problem(8, MAX_HEAD_DIM)), Ok(()));
    for given in [0, MAX_HEAD_DIM + 1, usize::MAX] {
        assert_eq!(refused(problem(8, given)), out_of_range(given, 576));
    }
    let latent = |head_dim_v| problem(64, head_dim_v).values_in_keys();
    assert_eq!(refused(latent(64)), Ok(()));
    for given in [0, 65] {
        assert_eq!(refused(latent(given)), out_of_range(given, 64));
    }
    let error = refused(latent(65)).unwrap_err().to_string();
    assert_eq!(error, "head_dim_v is 65; allowed: 1 to 64");
}

#[test]
fn what_does_not_go_together_with_values_in_keys_is_refused() {
    let with = |what| Err(ProblemError::ValuesInKeysWith { what });
    let latent = problem(64, 48).values_in_keys();
    let in_8_bits = latent.fp8_kv(Fp8Kv::PerSequence).build().unwrap();
    assert_eq!(sizes(&in_8_bits), with("keys and values in e4m3"));
    for pass in [Pass::Backward, Pass::ForwardWithWeights] {
        let outcome = without_tensors(&latent.build().unwrap(), pass, Location::Host);
        let expected = with("the backward pass or the weights");
        assert_eq!(outcome.map(|_| ()), expected);
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let values = problem(64, 48).build().unwrap();
    let latent = values.to_builder().values_in_keys().build().unwrap();
    let needed = |problem| without_tensors(problem, Pass::Forward, Location::Host).unwrap();
    let (of_values, of_latent) = (needed(&values), needed(&latent));
    let argument = Argument::V;
    let v = *of_values.arguments().tensor(argument).unwrap();
    assert_eq!(v.layout.shape(), values.shape_v());
    assert!(of_latent.arguments().tensor(argument).is_none());
    let given = |problem, arguments| check(problem, Pass::Forward, arguments).map(|_| ());
    assert_eq!(
        given(&values, of_values.arguments().without(argument)),
        Err(ProblemError::Missing { argument })
    );
    assert_eq!(
        given(&latent, of_latent.arguments().with(argument, v)),
        Err(ProblemError::NotTaken { argument })
    );
    // v and o like k and q.
    for (argument, like) in [(Argument::V, Argument::K), (Argument::O, Argument::Q)] {
        let other = *of_values.arguments().tensor(like).unwrap();
        let right = of_values.arguments().tensor(argument).unwrap();
        let expected = ProblemError::ShapeMismatch {
            argument,
            given: other.layout.shape(),
            needed: right.layout.shape(),
        };
        let arguments = of_values.arguments().with(argument, other);
        assert_eq!(given(&values, arguments), Err(expected));
    }
    // Gradients too.
    let backward = without_tensors(&values, Pass::Backward, Location::Host).unwrap();
    let shape = |argument| {
        backward
            .arguments()
            .tensor(argument)
            .unwrap()
            .layout
            .shape()
    };
    assert_eq!(shape(Argument::DO), values.shape_o());
    assert_eq!(shape(Argument::DQ), values.shape_q());
    assert_eq!(shape(Argument::DK), values.shape_k());
    assert_eq!(shape(Argument::DV), values.shape_v());
}

/// Why an algorithm does not run on an H200.
fn refusal(problem: &Problem, pass: Pass, algorithm: Algorithm) -> Option<Reason> {
    let checked = without_tensors(problem, pass, Location::Cuda(0)).unwrap();
    let candidates = match plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None) {
        Ok(plan) => plan.candidates,
        Err(PlanError::NoCandidate { candidates, .. }) => candidates,
        Err(error) => panic!("{error}"),
    };
    let mut candidates = candidates.into_iter();
    let candidate = candidates.find(|candidate| candidate.algorithm == algorithm)?;
    match candidate.outcome {
        Outcome::Refused(reason) => Some(reason),
        _ => None,
    }
}

const OF_GPU: [Algorithm; 3] = [Algorithm::Flash2, Algorithm::Flash3, Algorithm::Standard];

#[test]
fn kernels_for_other_values_say_so() {
    for (head_dim, head_dim_v) in [(64, 128), (128, 64), (192, 128), (64, 256)] {
        let of = problem(head_dim, head_dim_v).build().unwrap();
        let latent = problem(head_dim, 8).values_in_keys().build().unwrap();
        for pass in [Pass::Forward, Pass::Backward] {
            for algorithm in OF_GPU {
                assert_eq!(refusal(&of, pass, algorithm), None);
            }
        }
        for algorithm in OF_GPU {
            let expected = match algorithm {
                Algorithm::Flash3 => None,
                _ => Some(Reason::ValuesInKeys),
            };
            assert_eq!(refusal(&latent, Pass::Forward, algorithm), expected);
        }
    }
    for (head_dim_v, most, algorithm) in [
        (520, 512, Algorithm::Flash3),
        (36, 512, Algorithm::Flash3),
        (520, 512, Algorithm::Flash2),
        (36, 576, Algorithm::Standard),
    ] {
        let of = problem(64, head_dim_v).build().unwrap();
        let expected = Reason::HeadDimVMultiple {
            given: head_dim_v as u32,
            multiple: 8,
            most,
        };
        let refused = refusal(&of, Pass::Forward, algorithm);
        assert_eq!(refused, Some(expected), "{head_dim_v}");
    }
    for (head_dim, head_dim_v) in [(576, 512), (576, 520), (576, 12), (64, 64)] {
        let latent = problem(head_dim, head_dim_v).values_in_keys().build();
        let expected = Reason::HeadDimVMultiple {
            given: head_dim_v as u32,
            multiple: 8,
            most: 512,
        };
        let served = head_dim_v % 8 == 0 && head_dim_v <= 512;
        assert_eq!(
            refusal(&latent.unwrap(), Pass::Forward, Algorithm::Flash3),
            (!served).then_some(expected)
        );
    }
    let expected = Reason::HeadDimV {
        given: 32,
        needed: 64,
    };
    assert_eq!(
        expected.to_string(),
        "head_dim_v is 32; its kernels take 64 with this head_dim"
    );
    assert_eq!(
        Reason::ValuesInKeys.to_string(),
        "it does not find values in the keys"
    );
}

#[test]
fn the_processor_serves_them_and_its_plan_says_what_they_are() {
    let text = |problem: ProblemBuilder| {
        let attention = Attention::new(&Device::cpu(), problem.build().unwrap()).unwrap();
        let explained = attention.explain(Pass::Forward).unwrap();
        explained.plan.unwrap().to_string()
    };
    assert!(text(problem(64, 48)).contains(", head_dim_v 48 scale"));
    assert!(text(problem(64, 48).values_in_keys()).contains(", v the first 48 columns of k scale"));
    assert!(!text(problem(64, 64)).contains("head_dim_v"));
}

#[test]
fn values_in_keys_are_what_a_view_of_them_is() {
    let latent = problem(7, 5).values_in_keys().build().unwrap();
    let latent = Problem::builder(Dtype::F32)
        .batch(latent.batch())
        .seqlen_q(latent.seqlen_q())
        .seqlen_k(latent.seqlen_k())
        .heads_q(latent.heads_q())
        .heads_k(latent.heads_k())
        .head_dim(7)
        .head_dim_v(5)
        .values_in_keys();
    let latent = latent.build().unwrap();
    let numbers = |shape: [usize; 4], step: usize| -> Vec<f32> {
        let n = shape.iter().product();
        (0..n).map(|at| (at * step % 23) as f32 / 7.0).collect()
    };
    let (q, k) = (numbers(latent.shape_q(), 5), numbers(latent.shape_k(), 11));
    let n_o = latent.shape_o().iter().product();
    let n_rows = latent.shape_lse().iter().product();
    let q = Tensor::bshd(&q, latent.shape_q()).unwrap();
    let keys = Tensor::bshd(&k, latent.shape_k()).unwrap();
    let mut of_v = keys.layout();
    of_v.head_dim = 5;
    let v = Tensor::strided(&k, of_v).unwrap();
    let given = Problem::of(Dtype::F32, q.layout(), keys.layout()).head_dim_v(5);
    let run = |problem: Problem, inputs: Inputs| {
        let (mut o, mut lse) = (vec![f32::NAN; n_o], vec![f32::NAN; n_rows]);
        let o_mut = TensorMut::bshd(&mut o, problem.shape_o()).unwrap();
        let attention = Attention::new(&Device::cpu(), problem).unwrap();
        let mut outputs = Outputs::new(o_mut, &mut lse);
        attention.forward(&inputs, &mut outputs).unwrap();
        (o, lse)
    };
    let in_keys = run(latent, Inputs::latent(&q, &keys));
    let separate = run(given.build().unwrap(), Inputs::new(&q, &keys, &v));
    assert_eq!(in_keys, separate);
}
