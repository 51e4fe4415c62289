//! What is traced, and what cannot be.

use std::cell::Cell;

use crate::{
    At, Cond, ElementType, Expression, ExpressionError, Index, Int, NoTensors, Node, Num,
    ScoreIndices, Type, Use,
};

fn worth(expression: &Expression, place: ScoreIndices, score: f32) -> f32 {
    let value = expression.evaluate(&[], &NoTensors, &place, score);
    value.unwrap().num()
}

#[test]
// The references are what is tested.
#[allow(clippy::op_ref)]
fn operators_take_constants_and_references_on_either_side() {
    let expression = Expression::score(|s, at| {
        let mut sum = at.constant(0.5);
        for term in [s + 1.0, 2.0 * s, &s - 3.0, s / &s, 1.0 - &s] {
            sum += term;
        }
        sum + (&at.q - &at.k).to_f32()
            + (7 % at.k).to_f32()
            + (1 << at.k & 0xff | 3 ^ !at.q).to_f32()
    });
    let expression = expression.unwrap();
    let (q, k, s) = (9, 4, 6.0_f32);
    let place = ScoreIndices::default()
        .with(Index::Query, q)
        .with(Index::Key, k);
    let ints = (q - k) + 7 % k + (1 << k & 0xff | 3 ^ !q);
    let wanted = 0.5 + (s + 1.0) + 2.0 * s + (s - 3.0) + 1.0 + (1.0 - s) + ints as f32;
    assert_eq!(worth(&expression, place, s), wanted);
}

#[test]
fn functions_and_choices_are_what_they_say() {
    let place = ScoreIndices::default()
        .with(Index::Query, 5)
        .with(Index::Key, 7);
    let check = |f: fn(Num, At) -> Num, wanted: fn(f32) -> f32| {
        let expression = Expression::score(f).unwrap();
        for x in [0.25_f32, 1.0, 3.5] {
            let (given, wanted) = (worth(&expression, place, x), wanted(x));
            assert!(
                (given - wanted).abs() <= 1e-6 * wanted.abs(),
                "{expression}: {given}, not {wanted}"
            );
        }
    };
    check(|s, _| s.exp(), f32::exp);
    check(|s, _| s.exp_full(), f32::exp);
    check(|s, _| s.exp2(), f32::exp2);
    check(|s, _| s.ln_full(), f32::ln);
    check(|s, _| s.tanh(), f32::tanh);
    check(|s, _| s.sqrt_full(), f32::sqrt);
    check(|s, _| s.sigmoid(), |x| 1.0 / (1.0 + (-x).exp()));
    check(|s, at| at.q.lt(at.k).select(s, -1.0), |x| x);
    check(|s, at| at.q.ge(at.k).select(s, -1.0), |_| -1.0);
    check(
        |s, at| (at.q.gt(3) ^ s.le(1.0)).select(2.0, s),
        |x| if x > 1.0 { 2.0 } else { x },
    );
    check(
        |s, at| at.q.max(at.k).min(6).to_f32() + s.min(1.0),
        |x| 6.0 + x.min(1.0),
    );
    assert!(Expression::mask(|_| true).unwrap().is_mask());
    assert!(!Expression::score(|_, _| 1.0).unwrap().is_mask());
}

#[test]
fn helpers_are_what_they_abbreviate() {
    let place = ScoreIndices::default()
        .with(Index::Query, 2)
        .with(Index::Key, 3)
        .with(Index::SeqlenQ, 4)
        .with(Index::SeqlenK, 9);
    let of = |f: fn(Num, At) -> Num| worth(&Expression::score(f).unwrap(), place, 6.0);
    assert_eq!(of(|_, at| at.place().to_f32()), 7.0);
    assert_eq!(of(|_, at| at.distance().to_f32()), 4.0);
    assert_eq!(of(|s, _| s.soft_cap(3.0)), 3.0 * 2f32.tanh());
    let [short, long] = [
        Expression::mask(|at| at.same("document")),
        Expression::mask(|at| {
            let document = |place| at.tensor_i32("document", [at.batch, place]);
            document(at.q + at.seqlen_k - at.seqlen_q).eq(document(at.k))
        }),
    ];
    assert_eq!(short, long);
}

#[test]
fn tracing_is_linear_in_the_nodes() {
    let powers = Expression::score(|s, _| (0..60).fold(s, |x, _| x * x)).unwrap();
    assert_eq!(powers.nodes().len(), 61);
    assert!(powers.to_string().len() < 2000);
    assert!(powers.derivative_by_score().unwrap().nodes().len() <= 256);
}

#[test]
fn names_are_of_one_thing() {
    let conflict = |f: fn(Num, At) -> Num| Expression::score(f).unwrap_err();
    let given = conflict(|s, at| s * at.f32("x") + at.i32("x").to_f32());
    let name = "x".to_owned();
    let (first, second) = (Use::Param(Type::F32), Use::Param(Type::I32));
    assert_eq!(
        given,
        ExpressionError::Conflict {
            name: name.clone(),
            first,
            second
        }
    );
    let given = conflict(|s, at| s * at.f32("x") + at.tensor_f16("x", [at.k, at.q]));
    let (element, rank) = (ElementType::F16, 2);
    let second = Use::Tensor { element, rank };
    assert_eq!(
        given,
        ExpressionError::Conflict {
            name: name.clone(),
            first,
            second
        }
    );
    assert_eq!(
        given.to_string(),
        "x is a parameter of type f32 and later a tensor of f16 with 2 dimensions"
    );
    let given = conflict(|_, at| at.tensor_f32("x", [at.k]) + at.tensor_f32("x", [at.k, at.q]));
    assert!(matches!(given, ExpressionError::Conflict { .. }));
    let given = conflict(|_, at| at.tensor_bf16("x", [at.k; 5]));
    assert_eq!(
        given,
        ExpressionError::Rank {
            name: name.clone(),
            given: 5
        }
    );
    let given = conflict(|_, at| at.tensor_bf16("x", []));
    assert_eq!(given, ExpressionError::Rank { name, given: 0 });
    for name in ["", "1x", "a b", "ä", &"x".repeat(65)] {
        let given = Expression::score(|s, at| s + at.f32(name));
        assert!(matches!(given, Err(ExpressionError::Name { .. })), "{name}");
    }
    // The same again is the same.
    let twice = Expression::score(|_, at| at.tensor_f32("x", [at.k]) + at.tensor_f32("x", [at.q]));
    assert_eq!(twice.unwrap().tensors().len(), 1);
}

#[test]
fn what_exceeds_a_limit_is_counted() {
    let many =
        |n: usize| Expression::score(|s, at| (0..n).fold(s, |s, i| s + at.f32(&format!("p{i}"))));
    assert!(many(16).is_ok());
    let (given, allowed) = (17, 16);
    assert_eq!(many(17), Err(ExpressionError::Params { given, allowed }));
    let many = |n: usize| {
        Expression::score(|s, at| {
            (0..n).fold(s, |s, i| s + at.tensor_f32(&format!("t{i}"), [at.k]))
        })
    };
    assert!(many(4).is_ok());
    let (given, allowed) = (5, 4);
    assert_eq!(many(5), Err(ExpressionError::Tensors { given, allowed }));
    let many = |n: usize| Expression::score(|s, _| (0..n).fold(s, |s, _| s.tanh()));
    assert!(many(255).is_ok());
    let (given, allowed) = (257, 256);
    assert_eq!(many(256), Err(ExpressionError::Nodes { given, allowed }));
    let error = many(1 << 17).unwrap_err();
    assert!(matches!(error, ExpressionError::Nodes { .. }));
    assert!(many(257).unwrap_err().to_string().contains("at most 256"));
}

#[test]
fn handles_of_another_trace_are_an_error() {
    // A handle that outlives its trace.
    let leaked: Cell<Option<Num>> = Cell::new(None);
    Expression::score(|s, _| {
        leaked.set(Some(s));
        s
    })
    .unwrap();
    let leaked = leaked.get().unwrap();
    let foreign = Err(ExpressionError::Foreign);
    assert_eq!(Expression::score(|_, _| leaked), foreign);
    assert_eq!(Expression::score(|s, _| s + leaked), foreign);
    assert_eq!(Expression::score(|s, _| leaked + s), foreign);
    assert_eq!(Expression::score(|_, _| leaked + leaked), foreign);
    assert_eq!(
        Expression::score(|s, at| at.q.lt(at.k).select(s, leaked)),
        foreign
    );
    // Even one whose result is not used, for what it was meant for is lost.
    assert_eq!(
        Expression::score(|s, _| {
            let _ = leaked * s;
            s
        }),
        foreign
    );
    let _ = leaked + 1.0;
    // A trace in a trace: both know.
    let outer = Expression::score(|s, at| {
        assert_eq!(Expression::score(|inner, _| inner + s), foreign);
        assert_eq!(Expression::score(|_, _| s), foreign);
        s + at.f32("x")
    });
    assert_eq!(outer, foreign);
    // One that keeps to itself is fine.
    let outer = Expression::score(|s, at| {
        let inner = Expression::mask(|at| at.q.ge(at.k)).unwrap();
        assert!(inner.is_mask());
        s + at.f32("x")
    });
    assert!(outer.is_ok());
    let (foreign_at, index): (Cell<Option<At>>, Cell<Option<Int>>) = Default::default();
    let _ = Expression::mask(|at| {
        foreign_at.set(Some(at));
        index.set(Some(at.k));
        at.q.lt(1)
    });
    let (at, k) = (foreign_at.get().unwrap(), index.get().unwrap());
    assert_eq!(Expression::score(|s, _| s + at.f32("x")), foreign);
    assert_eq!(
        Expression::score(|s, own| s + own.tensor_f32("x", [own.q, k])),
        foreign
    );
    let moved = std::thread::spawn(move || Expression::score(|s, _| s + leaked));
    assert_eq!(moved.join().unwrap(), foreign);
}

#[test]
fn a_panic_in_a_closure_leaves_no_trace_behind() {
    let panicked =
        std::panic::catch_unwind(|| Expression::mask(|at| -> Cond { panic!("of {at:?}") }));
    assert!(panicked.is_err());
    super::TRACES.with_borrow(|traces| assert!(traces.is_empty()));
}

#[test]
fn a_mask_has_no_score() {
    let lists = Expression::score(|s, _| s.lt(1.0).select(1.0, s)).unwrap();
    let nodes = [Node::Score, Node::Compare(crate::Compare::Eq, 0, 0)];
    let given = Expression::from_nodes(&nodes, lists.params(), lists.tensors());
    assert_eq!(given, Err(ExpressionError::ScoreInMask));
    let given = Expression::from_nodes(&[Node::I32(1)], &[], &[]);
    let (given_type, wanted) = (Type::I32, Type::F32);
    assert_eq!(
        given,
        Err(ExpressionError::Value {
            given: given_type,
            wanted
        })
    );
    assert_eq!(
        Expression::from_nodes(&[], &[], &[]),
        Err(ExpressionError::Empty)
    );
}

#[test]
fn an_expression_knows_what_it_depends_on() {
    let expression = Expression::score(|s, at| s + at.tensor_f32("slopes", [at.head])).unwrap();
    let depends: Vec<Index> = Index::ALL
        .into_iter()
        .filter(|&index| expression.depends_on(index))
        .collect();
    assert_eq!(depends, [Index::Head]);
    assert!(expression.uses_score() && !expression.is_constant());
    assert_eq!(expression.types().last(), Some(&Type::F32));
    // What the value does not need is left out; what was named stays.
    let unused = Expression::mask(|at| at.i32("x").eq(at.q - at.q) & false).unwrap();
    assert_eq!((unused.nodes().len(), unused.params().len()), (1, 1));
}
