//! What calls refuse.

use ferroflash::error::{ProblemError, ScoreError};
use ferroflash::expression::{ElementType, Expression, Type, Use};
use ferroflash::{
    Attention, Device, Dtype, Error, Inputs, Mask, Outputs, Pass, Problem, ReadTensor, Score,
    Tensor, TensorMut,
};

/// Two sequences of five rows, four query heads, two of keys; reads `bias[batch, head, k + offset]` and `table[q]`.
fn problem() -> Problem {
    let score = Score::new(|s, at| {
        let bias = at.tensor_f32("bias", [at.batch, at.head, at.k + at.i32("offset")]);
        s * at.f32("factor") + bias + at.tensor_i32("table", [at.q]).to_f32()
    });
    builder().score(score.unwrap()).build().unwrap()
}

fn builder() -> ferroflash::ProblemBuilder {
    Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen(5)
        .heads_q(4)
        .heads_k(2)
        .head_dim(1)
}

fn run(problem: Problem, given: impl for<'a> Fn(Inputs<'a>) -> Inputs<'a>) -> Result<(), Error> {
    let (q, k) = ([0.5f32; 40], [0.5f32; 20]);
    let (mut o, mut lse) = ([0f32; 40], [0f32; 40]);
    let k = Tensor::bshd(&k, problem.shape_k())?;
    let inputs = given(Inputs::new(&Tensor::bshd(&q, problem.shape_q())?, &k, &k));
    let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
    let attention = Attention::new(&Device::cpu(), problem)?;
    attention.forward(&inputs, &mut outputs).map(|_| ())
}

static BIAS: [f32; 40] = [0.25; 40];
static TABLE: [i32; 7] = [1; 7];

fn bias() -> ReadTensor<'static> {
    ReadTensor::new(&BIAS, [2, 4, 5])
}

/// All but the bias.
fn others(inputs: Inputs<'_>) -> Inputs<'_> {
    inputs
        .score_param("offset", -1)
        .score_param("factor", 0.5)
        .score_tensor("table", ReadTensor::new(&TABLE, [7]))
}

fn all(inputs: Inputs<'_>) -> Inputs<'_> {
    others(inputs).score_tensor("bias", bias())
}

fn refusal(given: impl for<'a> Fn(Inputs<'a>) -> Inputs<'a>) -> ScoreError {
    match run(problem(), given) {
        Err(Error::Problem(ProblemError::Score(error))) => error,
        other => panic!("{other:?}"),
    }
}

fn refusal_of_bias(bias: ReadTensor<'static>) -> ScoreError {
    refusal(|inputs| others(inputs).score_tensor("bias", bias))
}

fn name() -> String {
    "bias".to_owned()
}

#[test]
fn what_expressions_take_is_accepted() {
    run(problem(), all).unwrap();
    let fits = |bias: ReadTensor<'static>| {
        run(problem(), |inputs| {
            others(inputs).score_tensor("bias", bias)
        })
        .unwrap();
    };
    fits(ReadTensor::new(&BIAS, [3, 4, 1]));
    fits(ReadTensor::new(&BIAS, [2, 4, 36]).strides([0, 1, 1]));
    // The stride of a single element says nothing.
    fits(ReadTensor::new(&BIAS, [2, 4, 1]).strides([1, 1, -7]));
}

#[test]
fn names_are_those_of_the_expressions() {
    assert_eq!(
        refusal(|inputs| all(inputs).score_tensor("other", bias())).to_string(),
        "tensor other was given; the expressions take bias, table"
    );
    assert_eq!(
        refusal(|inputs| all(inputs).score_param("bias", 1.0)).to_string(),
        "parameter bias was given; the expressions take offset, factor"
    );
    assert_eq!(
        refusal(|inputs| all(inputs).score_param("factor", 2.0)).to_string(),
        "factor was given twice; allowed: once"
    );
    let missing = ScoreError::Missing {
        name: name(),
        needed: Use::Tensor {
            element: ElementType::F32,
            rank: 3,
        },
    };
    assert_eq!(refusal(others), missing);
    assert_eq!(
        missing.to_string(),
        "bias is missing: the expressions take a tensor of f32 with 3 dimensions"
    );
    let nothing = run(builder().build().unwrap(), |inputs| {
        inputs.score_param("factor", 1.0)
    });
    assert_eq!(
        nothing.unwrap_err().to_string(),
        "parameter factor was given; the expressions take none"
    );
    let many =
        refusal(|inputs| (0..17).fold(inputs, |inputs, _| inputs.score_param("factor", 1.0)));
    assert_eq!(
        many.to_string(),
        "17 parameters were given to the expressions; at most 16 are allowed"
    );
}

#[test]
fn types_and_ranks_are_those_of_the_expressions() {
    let param = refusal(|inputs| {
        inputs
            .score_param("offset", 1.0)
            .score_param("factor", 0.5)
            .score_tensor("table", ReadTensor::new(&TABLE, [5]))
            .score_tensor("bias", bias())
    });
    assert_eq!(
        param,
        ScoreError::ParamType {
            name: "offset".to_owned(),
            given: Type::F32,
            needed: Type::I32
        }
    );
    assert_eq!(
        refusal_of_bias(ReadTensor::new(&TABLE, [1, 1, 1])).to_string(),
        "tensor bias is i32; needed: f32"
    );
    for (bias, text) in [
        (
            ReadTensor::new(&BIAS, [8, 5]),
            "tensor bias has 2 dimensions; needed: 3",
        ),
        (
            ReadTensor::new(&BIAS, [2, 4, 5, 1, 1]),
            "tensor bias has 5 dimensions; needed: 3",
        ),
        (
            bias().strides([1, 1]),
            "tensor bias has 2 strides; needed: 3",
        ),
    ] {
        assert_eq!(refusal_of_bias(bias).to_string(), text);
    }
}

#[test]
fn tensors_stay_inside_their_memory() {
    let extent = |dim, given, min| ScoreError::TensorExtent {
        name: name(),
        dim,
        given,
        min,
        max: 1 << 30,
    };
    for (shape, refused) in [
        ([1, 4, 5], extent(0, 1, 2)),
        ([2, 3, 5], extent(1, 3, 4)),
        ([2, 4, 0], extent(2, 0, 1)),
        ([2, 4, (1 << 30) + 1], extent(2, (1 << 30) + 1, 1)),
        (
            [2, 4, 6],
            ScoreError::TensorMemory {
                name: name(),
                needed: 48,
                given: 40,
            },
        ),
    ] {
        assert_eq!(refusal_of_bias(ReadTensor::new(&BIAS, shape)), refused);
    }
    let stride = |dim, given, max| ScoreError::TensorStride {
        name: name(),
        dim,
        given,
        max,
    };
    let of_k = i64::from(i32::MAX) / 4;
    for (strides, refused) in [
        ([20, -5, 1], stride(1, -5, i64::MAX)),
        ([20, 5, of_k + 1], stride(2, of_k + 1, of_k)),
        (
            [i64::MAX, 5, 1],
            ScoreError::TensorMemory {
                name: name(),
                needed: (1 << 63) + 19,
                given: 40,
            },
        ),
    ] {
        assert_eq!(refusal_of_bias(bias().strides(strides)), refused);
    }
}

#[test]
fn a_score_and_a_mask_go_together() {
    let score = Score::new(|s, at| s * at.f32("x")).unwrap();
    let mask = Mask::new(|at| at.k.lt(at.i32("x"))).unwrap();
    let problem = builder()
        .score(score)
        .mask_expression(mask)
        .build()
        .unwrap();
    let refused = Attention::new(&Device::cpu(), problem).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the expressions of the score and the mask together: x is a parameter of type f32 and later a parameter of type i32"
    );
}

#[test]
fn the_backward_pass_needs_a_derivative() {
    // Its derivative has more nodes than an expression may have.
    let mut made = Err(());
    for n in (10..120).rev() {
        let expression =
            Expression::score(|s, at| (0..n).fold(s, |s, i| (s * at.k.to_f32() + i as f32).tanh()));
        if let Ok(expression) = expression
            && expression.derivative_by_score().is_err()
        {
            made = Score::from_expression(expression).map_err(|_| ());
            break;
        }
    }
    let problem = builder().score(made.unwrap()).build().unwrap();
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    assert!(attention.explain(Pass::Forward).is_ok());
    let refused = attention.explain(Pass::Backward).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Problem(ProblemError::Score(ScoreError::NoDerivative { .. }))
        ),
        "{refused}"
    );
}
