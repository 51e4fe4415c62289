//! Rules one by one, and that none of them changes a value.

use crate::random::{Kind, Sample, random};
use crate::{
    At, Binary, Cond, Expression, Index, NoTensors, Node, Num, Real, ScoreIndices, Unary, Value,
};

fn score(f: impl FnOnce(Num, At) -> Num) -> Expression {
    Expression::score(f).unwrap()
}

fn mask(f: impl FnOnce(At) -> Cond) -> Expression {
    Expression::mask(f).unwrap()
}

fn n_nodes(f: impl FnOnce(Num, At) -> Num) -> usize {
    score(f).nodes().len()
}

/// The value's bits; one for all NaN.
fn bits<R: Real + Into<f64>>(value: Value<R>) -> (u64, i32, bool) {
    let x: f64 = value.num().into();
    let x = if x.is_nan() { f64::NAN } else { x };
    (x.to_bits(), value.int(), value.cond())
}

#[test]
fn no_value_changes() {
    let mut n_simpler = 0;
    for seed in 0..6000 {
        let kind = if seed % 2 == 0 {
            Kind::Score
        } else {
            Kind::Mask
        };
        let drawn = random(seed, 4 + seed as u32 % 60, kind);
        let simple = drawn.simplified().unwrap();
        assert_eq!(simple.simplified().as_ref(), Ok(&simple), "seed {seed}");
        n_simpler += usize::from(simple.nodes().len() < drawn.nodes().len());
        let mut sample = Sample::new(&drawn, seed);
        for _ in 0..3 {
            let (place, score) = (sample.place(), sample.score());
            let f32 = |of: &Expression| {
                bits(
                    of.evaluate(&sample.params, &sample.tensors, &place, score)
                        .unwrap(),
                )
            };
            assert_eq!(
                f32(&drawn),
                f32(&simple),
                "seed {seed}: {drawn} became {simple}"
            );
            let score = f64::from(score);
            let f64 = |of: &Expression| {
                bits(
                    of.evaluate(&sample.params, &sample.tensors, &place, score)
                        .unwrap(),
                )
            };
            assert_eq!(
                f64(&drawn),
                f64(&simple),
                "seed {seed}: {drawn} became {simple}"
            );
        }
    }
    assert!(n_simpler > 2000, "{n_simpler}");
}

#[test]
fn what_changes_nothing_of_a_number_goes() {
    assert_eq!(n_nodes(|s, _| s * 1.0), 1);
    assert_eq!(n_nodes(|s, _| 1.0 * s / 1.0), 1);
    assert_eq!(n_nodes(|s, _| s + -0.0), 1);
    assert_eq!(n_nodes(|s, _| s - 0.0), 1);
    assert_eq!(n_nodes(|s, _| -(-s)), 1);
    assert_eq!(n_nodes(|s, _| s.min(s).max(f32::NAN)), 1);
    assert_eq!(score(|s, _| (-s).abs().abs()), score(|s, _| s.abs()));
    assert_eq!(score(|s, _| s / 8.0), score(|s, _| 0.125 * s));
    assert_eq!(
        score(|s, at| s - -at.f32("x")),
        score(|s, at| at.f32("x") + s)
    );
    assert_eq!(score(|s, _| s * -1.0), score(|s, _| -s));
    assert_eq!(n_nodes(|s, _| s + f32::NAN), 1);
    // Not for −0, NaN and infinities.
    assert_eq!(n_nodes(|s, _| s + 0.0), 3);
    assert_eq!(n_nodes(|s, _| s * 0.0), 3);
    assert_eq!(n_nodes(|s, _| s - s), 2);
    assert_eq!(n_nodes(|s, _| s / s), 2);
    assert_eq!(n_nodes(|s, _| s.min(f32::INFINITY)), 3);
    assert_eq!(n_nodes(|s, _| s.eq(s).select(s, 0.0)), 4);
}

#[test]
fn constants_are_folded_where_they_are_exact() {
    let folded = |x: f32| score(|_, at| at.constant(x));
    assert_eq!(score(|_, at| at.constant(3.0) * 0.5 + 1.0), folded(2.5));
    assert_eq!(score(|_, at| at.constant(4.0).sqrt()), folded(2.0));
    assert_eq!(score(|_, at| at.constant(7).to_f32()), folded(7.0));
    assert_eq!(
        score(|_, at| at.constant(-2.9).to_i32().to_f32()),
        folded(-2.0)
    );
    // In f64 these are other numbers.
    assert_eq!(n_nodes(|_, at| at.constant(1.0) / 3.0), 3);
    assert_eq!(n_nodes(|_, at| at.constant(2.0).sqrt()), 2);
    assert_eq!(n_nodes(|_, at| at.constant(16_777_217).to_f32()), 2);
    assert!(folded(1.0).is_constant() && !score(|s, _| s).is_constant());
}

#[test]
fn whole_numbers_are_simplified_where_they_wrap_around() {
    let int = |f: fn(At) -> crate::Int| score(|_, at| f(at).to_f32());
    assert_eq!(int(|at| at.q + 3 - 3), int(|at| at.q));
    assert_eq!(int(|at| 5 - (5 - at.q)), int(|at| 5 - (5 - at.q)));
    assert_eq!(int(|at| (at.q * 3) * 5), int(|at| at.q * 15));
    assert_eq!(int(|at| at.q - -at.k), int(|at| at.q + at.k));
    assert_eq!(int(|at| at.k + at.q), int(|at| at.q + at.k));
    assert_eq!(int(|at| (at.q & 12) & 6), int(|at| at.q & 4));
    assert_eq!(int(|at| at.q.min(9).min(7)), int(|at| at.q.min(7)));
    assert_eq!(int(|at| (at.q << 32) >> 64), int(|at| at.q));
    for zero in [
        int(|at| at.q * at.constant(0)),
        int(|at| at.q - at.q),
        int(|at| at.q ^ at.q),
        int(|at| at.q % at.q),
        int(|at| at.q / 0),
        int(|at| at.q % at.constant(-1)),
        int(|at| at.q & at.constant(0)),
    ] {
        assert_eq!(zero, score(|_, at| at.constant(0.0)), "{zero}");
    }
    assert_eq!(int(|at| at.q / at.q).nodes().len(), 3);
}

#[test]
fn truth_values_and_choices_are_simplified() {
    assert_eq!(mask(|at| !at.q.lt(at.k)), mask(|at| at.k.le(at.q)));
    assert_eq!(mask(|at| !at.q.eq(at.k)), mask(|at| at.k.ne(at.q)));
    let all = mask(|at| at.constant(true));
    assert_eq!(mask(|at| at.q.le(at.q)), all);
    assert_eq!(mask(|at| at.q.le(i32::MAX)), all);
    assert_eq!(
        mask(|at| at.q.lt(7) | !at.q.lt(7) | at.k.eq(2)),
        mask(|at| at.q.lt(7) | at.q.ge(7) | at.k.eq(2))
    );
    let contrary = |f: fn(Cond, Cond) -> Cond| {
        let x = |at: At| at.f32("x").lt(1.0);
        mask(|at| f(x(at), !x(at))).nodes().to_vec()
    };
    assert_eq!(contrary(|a, b| a ^ b), [Node::Bool(true)]);
    assert_eq!(contrary(|a, b| b | a), [Node::Bool(true)]);
    assert_eq!(contrary(|a, b| a & b), [Node::Bool(false)]);
    // Beside NaN neither is true.
    assert_eq!(mask(|at| !at.f32("x").lt(at.f32("y"))).nodes().len(), 4);
    let c = |at: At| at.q.lt(at.k);
    assert_eq!(score(|s, at| c(at).select(s, s)), score(|s, _| s));
    assert_eq!(
        score(|s, at| c(at).select(c(at).select(s, 1.0), 2.0)),
        score(|s, at| c(at).select(s, 2.0))
    );
    assert_eq!(
        mask(|at| c(at).select(at.k.lt(9), false)),
        mask(|at| c(at) & at.k.lt(9))
    );
    assert_eq!(
        score(|s, at| at.f32("x").eq(1.0).select(s, 2.0)),
        score(|s, at| (!at.f32("x").eq(1.0)).select(2.0, s))
    );
}

/// The values of a function of a constant and something else, on either side, as drawn and simplified.
fn check_constant(
    op: Binary,
    constant: Node,
    variable: Node,
    is_first: bool,
    place: ScoreIndices,
    score: f64,
) {
    let mut nodes = vec![variable, constant];
    let (a, b) = if is_first { (1, 0) } else { (0, 1) };
    nodes.push(Node::Binary(op, a, b));
    if matches!(constant, Node::I32(_)) {
        nodes.push(Node::Unary(Unary::ToF32, 2));
    }
    let drawn = Expression::from_nodes(&nodes, &[], &[]).unwrap();
    let simple = drawn.simplified().unwrap();
    let double = |of: &Expression| of.evaluate(&[], &NoTensors, &place, score).map(bits);
    assert_eq!(
        double(&drawn),
        double(&simple),
        "{drawn} became {simple}: {place:?} {score}"
    );
    let single = |of: &Expression| of.evaluate(&[], &NoTensors, &place, score as f32).map(bits);
    assert_eq!(
        single(&drawn),
        single(&simple),
        "{drawn} became {simple}: {place:?} {score}"
    );
}

#[test]
fn rules_for_constants_hold_for_all_values() {
    use Binary::{Add, And, Div, Max, Min, Mul, Or, Rem, Shl, Shr, Sub, Xor};
    let ints = [
        i32::MIN,
        i32::MIN + 1,
        -64,
        -33,
        -2,
        -1,
        0,
        1,
        2,
        7,
        15,
        16,
        31,
        32,
        33,
        64,
        i32::MAX,
    ];
    for op in [Add, Sub, Mul, Div, Rem, Min, Max, And, Or, Xor, Shl, Shr] {
        for (c, x) in ints.into_iter().flat_map(|c| ints.map(|x| (c, x))) {
            let place = ScoreIndices::default().with(Index::Query, x);
            for is_first in [false, true] {
                check_constant(
                    op,
                    Node::I32(c),
                    Node::Index(Index::Query),
                    is_first,
                    place,
                    0.0,
                );
            }
        }
    }
    let (inf, tiny) = (f32::INFINITY, f32::MIN_POSITIVE);
    let positive = [
        0.0,
        1e-45,
        tiny,
        2.0 * tiny,
        0.1,
        0.5,
        1.0,
        2.0,
        3.0,
        1.7e38,
        f32::MAX,
        inf,
        f32::NAN,
    ];
    let nums: Vec<f32> = positive.into_iter().flat_map(|x| [x, -x]).collect();
    for op in [Add, Sub, Mul, Div, Min, Max] {
        for &c in &nums {
            for &x in &nums {
                for is_first in [false, true] {
                    let (constant, place) = (Node::F32(c.to_bits()), ScoreIndices::default());
                    check_constant(op, constant, Node::Score, is_first, place, f64::from(x));
                }
            }
        }
    }
}
