//! Derivatives against finite differences, and at kinks.

use crate::random::{Kind, Sample, random};
use crate::{
    At, Dependencies, Evaluator, Expression, NoTensors, Num, ParamValue, ScoreIndices, Type, Value,
};

fn derivative(f: impl FnOnce(Num, At) -> Num) -> Expression {
    Expression::score(f).unwrap().derivative_by_score().unwrap()
}

/// What all nodes that are not of a slope say at a place: truth values and whole numbers, and the signs and order of numbers at kinks. None where
/// numbers that depend on the score are too large for a small difference.
fn side(expression: &Expression, evaluator: &Evaluator<f64>) -> Option<Vec<i64>> {
    use crate::{Binary, Node, Unary};
    let values = evaluator.values();
    let num = |id: u32| values[id as usize].num();
    let depends = expression.dependencies();
    let of_score = depends.iter().map(|of| of.meets(Dependencies::SCORE));
    let mut numbers = of_score.zip(values).filter(|(depends, _)| *depends);
    if !numbers.all(|(_, value)| value.num().abs() < 1e4) {
        return None;
    }
    let nodes = expression.nodes().iter().zip(values);
    nodes
        .map(|(node, value)| match (node, value) {
            (_, Value::Int(x)) => i64::from(*x),
            (_, Value::Cond(x)) => i64::from(*x),
            (Node::Unary(Unary::Abs, a), _) => i64::from(num(*a) < 0.0),
            (Node::Binary(Binary::Min | Binary::Max, a, b), _) => i64::from(num(*a) < num(*b)),
            _ => 0,
        })
        .collect::<Vec<i64>>()
        .into()
}

#[test]
fn derivatives_are_finite_differences() {
    let (mut n_checked, mut n_sloped) = (0, 0);
    for seed in 0..6000 {
        let expression = random(seed, 4 + seed as u32 % 30, Kind::Score)
            .simplified()
            .unwrap();
        let slope = expression.derivative_by_score().unwrap();
        assert_eq!(
            slope.simplified().as_ref(),
            Ok(&slope),
            "{expression}: {slope}"
        );
        assert_eq!(
            (slope.params(), slope.tensors()),
            (expression.params(), expression.tensors())
        );
        let mut sample = Sample::new(&expression, seed);
        let place = sample.place();
        let scores = [(); 3].map(|()| f64::from(sample.score()));
        let evaluator = |of| Evaluator::<f64>::new(of, &sample.params, &sample.tensors).unwrap();
        let (mut value, mut slope_value) = (evaluator(&expression), evaluator(&slope));
        for x in scores {
            if x.is_nan() || x.abs() > 100.0 {
                continue;
            }
            // Two steps: where they disagree there is a kink or a rounding error, and no finite difference.
            let step = 1e-5;
            let mut at = |x: f64| {
                let y = value.score(&place, x);
                (y, side(&expression, &value))
            };
            let points = [-2.0, -1.0, 0.0, 1.0, 2.0].map(|n| at(x + n * step));
            let is_smooth = points
                .iter()
                .all(|point| point.1.is_some() && point.1 == points[0].1);
            let [far_before, before, here, after, far_after] = points.map(|point| point.0);
            let near = (after - before) / (2.0 * step);
            let far = (far_after - far_before) / (4.0 * step);
            let scale = near.abs() + here.abs() * 1e-6 + 1e-3;
            if !(is_smooth && here.is_finite() && (near - far).abs() < 1e-6 * scale) {
                continue;
            }
            let wanted = (4.0 * near - far) / 3.0;
            let given = slope_value.score(&place, x);
            // 0 · ∞, the slope of a root at 0 times that of a constant.
            let mut slopes = slope_value.values().iter();
            if given.is_nan() && slopes.any(|slope| slope.num().is_infinite()) {
                continue;
            }
            assert!(
                (given - wanted).abs() < 1e-5 * scale,
                "seed {seed}, {x}: {expression} has {wanted}, {slope} gives {given}"
            );
            n_checked += 1;
            n_sloped += usize::from(wanted != 0.0 && wanted != 1.0);
        }
    }
    assert!(n_checked > 3000 && n_sloped > 300, "{n_checked} {n_sloped}");
}

#[test]
fn known_derivatives_are_short() {
    let text = |f: fn(Num, At) -> Num| derivative(f).to_string();
    assert_eq!(text(|s, at| s + at.tensor_f32("slopes", [at.head])), "1.0");
    assert_eq!(text(|_, at| at.q.to_f32()), "0.0");
    assert_eq!(text(|s, at| s * at.f32("scale")), "scale");
    assert_eq!(
        text(|s, at| at.q.ge(at.k).select(s, f32::NEG_INFINITY)),
        "select(k <= q, 1.0, 0.0)"
    );
    assert_eq!(
        text(|s, _| (s * 0.25).tanh() * 4.0),
        "let a = tanh(score * 0.25); 4.0 * (0.25 * (1.0 - a * a))"
    );
    assert_eq!(text(|s, _| s.exp()), "exp2(score * 1.442695)");
    assert_eq!(
        text(|s, _| s.sigmoid()),
        "let a = sigmoid(score); a * (1.0 - a)"
    );
    assert_eq!(text(|s, at| at.f32("x") - s / at.f32("y")), "-(1.0 / y)");
}

#[test]
fn at_a_kink_there_is_one_side() {
    let at = |f: fn(Num, At) -> Num, x: f32| {
        let value = derivative(f).evaluate(&[], &NoTensors, &ScoreIndices::default(), x);
        value.unwrap().num()
    };
    for (x, wanted) in [(-2.0, -1.0), (-0.0, 0.0), (0.0, 0.0), (3.0, 1.0)] {
        assert_eq!(at(|s, _| s.abs(), x), wanted);
    }
    for (x, wanted) in [(-2.0, 0.0), (0.0, 0.0), (3.0, 1.0), (f32::NAN, 0.0)] {
        assert_eq!(at(|s, _| s.max(0.0), x), wanted);
        assert_eq!(at(|s, at| at.constant(0.0).max(s), x), wanted);
        assert_eq!(at(|s, _| -((-s).min(0.0)), x), wanted);
    }
    // What depends on the place alone is no constant, and stays in front.
    for (x, wanted) in [(-2.0, 0.0), (0.0, 0.0), (3.0, 2.0)] {
        assert_eq!(at(|s, at| at.q.to_f32().max(s * 2.0), x), wanted);
        assert_eq!(at(|s, at| -at.q.to_f32().min(s * -2.0), x), wanted);
    }
    assert_eq!(at(|s, _| s.min(s * 2.0), 0.0), 1.0);
    assert_eq!(at(|s, _| s.min(s * 2.0), -1.0), 2.0);
}

#[test]
fn a_number_that_is_no_number_has_no_slope_of_its_own() {
    // Beside NaN the other is chosen, and its slope with it.
    let slope = derivative(|s, at| s.min(at.f32("cap")));
    let at = |cap: f32, x: f32| {
        let value = slope.evaluate(
            &[ParamValue::F32(cap)],
            &NoTensors,
            &ScoreIndices::default(),
            x,
        );
        value.unwrap().num()
    };
    assert_eq!(at(1.0, 0.5), 1.0);
    assert_eq!(at(1.0, 2.0), 0.0);
    assert_eq!(at(1.0, f32::NAN), 0.0);
    assert_eq!(at(f32::NAN, 2.0), 1.0);
}

#[test]
fn a_mask_has_no_derivative() {
    let mask = Expression::mask(|at| at.q.ge(at.k)).unwrap();
    let error = mask.derivative_by_score().unwrap_err();
    let (given, wanted) = (Type::Bool, Type::F32);
    assert_eq!(error, crate::ExpressionError::Value { given, wanted });
}
