//! What an evaluator keeps from one place to the next, and what it is given.

use crate::random::{Kind, Random, Sample, random};
use crate::{
    Contiguous, Elements, Evaluator, Expression, Index, NoTensors, ParamValue, ScoreIndices, Value,
};

#[test]
fn what_is_kept_is_what_would_be_computed() {
    for seed in 0..2000 {
        let kind = if seed % 2 == 0 {
            Kind::Score
        } else {
            Kind::Mask
        };
        let expression = random(seed, 4 + seed as u32 % 60, kind);
        let mut sample = Sample::new(&expression, seed);
        let mut random = Random(seed);
        let (mut place, mut score) = (sample.place(), sample.score());
        let (params, tensors) = (sample.params.clone(), sample.tensors.clone());
        let mut evaluator = Evaluator::<f32>::new(&expression, &params, &tensors).unwrap();
        for _ in 0..12 {
            let index = random.choose(&Index::ALL);
            match random.below(4) {
                0 => score = sample.score(),
                1 => place = sample.place(),
                _ => place.set(index, random.below(300) as i32),
            }
            let given = evaluator.evaluate(&place, score);
            let wanted = expression
                .evaluate(&params, &tensors, &place, score)
                .unwrap();
            let is_same = match (given, wanted) {
                (Value::Num(a), Value::Num(b)) => {
                    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
                }
                (a, b) => a == b,
            };
            assert!(is_same, "seed {seed}: {given:?}, not {wanted:?}");
        }
    }
}

#[test]
fn indices_outside_a_tensor_are_moved_inside() {
    let expression = Expression::score(|_, at| {
        at.tensor_f32("table", [at.q - 5, at.k]) + at.tensor_i32("row", [at.k - 5]).to_f32()
    });
    let expression = expression.unwrap();
    let table = Contiguous::new(&[2, 3], Elements::F32((0..6).map(|x| x as f32).collect()));
    let row = Contiguous::new(&[3], Elements::I32(vec![100, 200, 300]));
    let tensors = vec![table.unwrap(), row.unwrap()];
    let mut evaluator = Evaluator::<f32>::new(&expression, &[], &tensors).unwrap();
    for (q, k, wanted) in [
        (0, 0, 100.0),
        (5, 1, 101.0),
        (6, 2, 105.0),
        (i32::MAX, 6, 205.0),
        (i32::MIN, i32::MAX, 305.0),
        (0, -7, 100.0),
    ] {
        let place = ScoreIndices::default()
            .with(Index::Query, q)
            .with(Index::Key, k);
        // i32::MIN − 5 wraps around.
        assert_eq!(evaluator.score(&place, 0.0), wanted, "{q} {k}");
    }
}

#[test]
fn what_a_call_gives_must_fit() {
    let expression =
        Expression::score(|s, at| s * at.f32("scale") + at.tensor_f16("slopes", [at.head, at.k]));
    let expression = expression.unwrap();
    let reason = |params: &[ParamValue], tensors: &Vec<Contiguous>| {
        let given = expression.evaluate(params, tensors, &ScoreIndices::default(), 1.0_f64);
        given
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    let tensor = |extents: &[usize]| {
        let n = extents.iter().product();
        vec![Contiguous::new(extents, Elements::F32(vec![0.5; n])).unwrap()]
    };
    let scale = [ParamValue::F32(2.0)];
    assert_eq!(reason(&scale, &tensor(&[1, 2])), "");
    assert!(reason(&[], &tensor(&[1, 2])).contains("1 parameters and 0 are given"));
    assert!(reason(&[ParamValue::I32(1)], &tensor(&[1, 2])).contains("scale"));
    assert!(reason(&scale, &tensor(&[3, 0])).contains("slopes has no elements"));
    assert!(reason(&scale, &vec![]).contains("slopes"));
    let given = expression.evaluate(&scale, &NoTensors, &ScoreIndices::default(), 1.0_f64);
    assert!(given.is_err());
    assert!(Contiguous::new(&[2, 3], Elements::I32(vec![0; 5])).is_err());
    assert!(Contiguous::new(&[usize::MAX, 2], Elements::I32(vec![])).is_err());
    assert!(Contiguous::new(&[], Elements::I32(vec![1])).is_err());
}

#[test]
fn an_oracle_computes_in_double_precision() {
    let third = Expression::score(|s, at| (s + 0.1) / at.f32("by")).unwrap();
    let params = [ParamValue::F32(3.0)];
    let single = third.evaluate(&params, &NoTensors, &ScoreIndices::default(), 1.0_f32);
    let double = third.evaluate(&params, &NoTensors, &ScoreIndices::default(), 1.0_f64);
    assert_eq!(single, Ok(Value::Num((1.0 + 0.1) / 3.0)));
    assert_eq!(double, Ok(Value::Num((1.0 + f64::from(0.1_f32)) / 3.0)));
}
