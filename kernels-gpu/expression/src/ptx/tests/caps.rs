//! Scores that are measured in their caps, and their derivatives.

use super::examples;
use super::harness::{Launch, program};
use super::reference::{Value, evaluate};
use super::tree::Random;
use crate::ptx::{Cap, Edit, ScoreRows, Unit};
use crate::{At, Expression, Num};

fn edit(f: impl FnOnce(Num, At) -> Num) -> Edit {
    let score = Expression::score(f).unwrap();
    Edit {
        derivative: Some(score.derivative_by_score().unwrap()),
        score: Some(score),
        mask: None,
    }
}

fn capped(s: Num, cap: Num) -> Num {
    (s / cap).tanh() * cap
}

/// The instructions for the four scores of a fragment.
fn instructions(edit: &Edit, gradient: bool) -> Vec<String> {
    let places = "ferroflash_score_tile %r0, %r1, %r2, %r3, %r4, %r5, %r6;\n\tferroflash_score_block %r7;\n\t// here\n\t";
    let score = match gradient {
        true => "ferroflash_score_gradient %f0, %f1, %f2, %f3, %d0, %d1, %d2, %d3, 8;",
        false => "ferroflash_score %f0, %f1, %f2, %f3, 8;",
    };
    let text = format!(".entry k(.param .b8 k_param_0[8])\n{{\n\t{places}{score}\n\tret;\n}}\n");
    let text = program(edit, ScoreRows::Queries).splice(&text).unwrap();
    let (_, scores) = text.split_once("// here").unwrap();
    let names = scores
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| name.contains('.') && !name.starts_with('.'));
    let counted = names.filter(|name| !name.starts_with("mov.") && !name.starts_with("ld.param"));
    counted.map(str::to_owned).collect()
}

/// A launch of raw scores where softmax_scale is ⅛ and parameters are these.
fn launch(edit: &Edit, x: [f32; 4], cap: f32, slope: f32) -> Launch {
    let mut launch = Launch::random(&mut Random::new(11));
    (launch.x, launch.scale) = (x, 0.125);
    for (bits, param) in launch.params.iter_mut().zip(edit.params()) {
        *bits = if param.name == "cap" { cap } else { slope }.to_bits();
    }
    launch
}

#[test]
fn soft_caps_are_measured_in_their_caps() {
    let soft_cap = edit(|s, at| capped(s, at.f32("cap")));
    assert_eq!(soft_cap.unit(), Unit::Cap(Cap::Param(0)));
    // Before its function a score is divided by the cap. Behind it nothing is multiplied.
    assert_eq!(
        instructions(&soft_cap, false),
        [["mul.f32"; 4], ["tanh.approx.f32"; 4]].concat()
    );
    let x = [0.0, 40.0, -900.0, 1e9];
    for cap in [30.0_f32, -30.0, 2.5e-3] {
        let launch = launch(&soft_cap, x, cap, 0.0);
        assert_eq!(launch.unit(&soft_cap), cap.abs());
        for (x, y) in x.into_iter().zip(launch.run(&soft_cap, false)) {
            let wanted = cap * (x * 0.125 / cap).tanh();
            let error = cap.abs() * y - wanted;
            assert!(error.abs() <= 1e-6 * wanted.abs(), "{cap} {x}: {y}");
        }
    }
}

#[test]
fn the_derivative_of_a_soft_cap_shares_its_function() {
    for soft_cap in [
        edit(|s, at| capped(s, at.f32("cap"))),
        edit(|s, _| (s / 30.0).tanh() * 30.0),
        edit(|s, _| (s * 0.02).tanh() * 50.0),
    ] {
        // 1 − t · t is one instruction to ptxas.
        let wanted = [
            ["mul.f32"; 4],
            ["tanh.approx.f32"; 4],
            ["mul.f32"; 4],
            ["sub.f32"; 4],
        ];
        assert_eq!(
            instructions(&soft_cap, true),
            wanted.concat(),
            "{soft_cap:?}"
        );
    }
    let soft_cap = edit(|s, at| capped(s, at.f32("cap")));
    let launch = launch(&soft_cap, [0.0, 40.0, -900.0, 1e9], -30.0, 0.0);
    let found = launch.run(&soft_cap, true);
    for element in 0..4 {
        let t = found[element];
        assert!(
            (found[4 + element] - (1.0 - t * t)).abs() < 1e-6,
            "{found:?}"
        );
    }
}

/// Compares scores and derivatives with what the nodes mean.
fn check(edit: &Edit, launch: &Launch) {
    let found = launch.run(edit, true);
    let unit = f64::from(launch.unit(edit));
    let [score, derivative] = [&edit.score, &edit.derivative].map(|of| of.as_ref().unwrap());
    for element in 0..4 {
        for (expression, unit, place) in [(score, unit, 0), (derivative, 1.0, 4)] {
            let Some(Value::F32(wanted)) = evaluate(expression, &launch.place(element)).pop()
            else {
                panic!("{expression} is no number");
            };
            let found = unit * f64::from(found[place + element]);
            let error = (found - wanted.value).abs();
            assert!(
                error <= wanted.error * 1.1,
                "{expression}: {found} instead of {wanted:?}"
            );
        }
    }
}

#[test]
fn what_stands_beside_a_cap_is_measured_in_it() {
    for (of, unit) in [
        (
            edit(|s, at| capped(s, at.f32("cap")) + at.f32("slope") * (at.k - at.q).to_f32()),
            20.0,
        ),
        (
            edit(|s, at| at.f32("slope") - capped(s, at.f32("cap"))),
            20.0,
        ),
        (
            edit(|s, at| capped(s, at.f32("cap")).max(s * at.f32("slope"))),
            20.0,
        ),
        (
            edit(|s, at| at.k.lt(at.q).select(s, capped(s, at.f32("cap")))),
            20.0,
        ),
        (
            edit(|s, at| (capped(s, at.f32("cap")) / at.f32("cap")).tanh() * at.f32("cap")),
            20.0,
        ),
        (
            edit(|s, at| (s / at.f32("cap")).tanh_full() * at.f32("cap") + s),
            20.0,
        ),
        (
            edit(|s, at| (s / at.f32("slope")).tanh() * -3.0 + at.f32("slope")),
            3.0,
        ),
        (
            edit(|s, at| capped(s, at.f32("cap")) + (s / 7.0).tanh() * -7.0),
            7.0,
        ),
    ] {
        for cap in [20.0, -20.0] {
            let launch = launch(&of, [0.5, 40.0, -90.0, -3.0], cap, 0.75);
            assert_eq!(launch.unit(&of), unit, "{of:?}");
            check(&of, &launch);
        }
    }
}

#[test]
fn what_is_no_cap_is_no_unit() {
    let mut with_mask = edit(|s, at| capped(s, at.f32("cap")));
    with_mask.mask = Some(Expression::mask(|at| at.k.to_f32().lt(at.f32("cap"))).unwrap());
    let others = [
        Edit::default(),
        with_mask,
        edit(|s, at| s + at.f32("cap")),
        edit(|s, at| (s / at.f32("cap")).tanh()),
        // Not even in what the launch gives.
        edit(|s, at| capped(s, at.f32("cap")) + at.f32("cap")),
        edit(|s, at| s.tanh() * at.f32("cap")),
        edit(|s, at| at.f32("cap").lt(s).select(s, capped(s, at.f32("cap")))),
        edit(|s, at| capped(s, at.f32("cap")) * capped(s, at.f32("cap"))),
        // Too small, too large.
        edit(|s, _| s.tanh() * 1e-30),
        edit(|s, _| s.tanh() * f32::INFINITY),
    ];
    for other in others {
        assert_eq!(other.unit(), Unit::SoftmaxScale, "{other:?}");
        let launch = launch(&other, [0.5, 40.0, -90.0, -3.0], -20.0, 0.75);
        assert_eq!(launch.unit(&other), 0.125);
    }
}

/// The unit is positive and finite whatever a call gives.
#[test]
fn caps_that_are_none_give_what_they_gave() {
    let soft_cap = edit(|s, at| capped(s, at.f32("cap")));
    let x = [0.0, 40.0, -900.0, 8.0];
    let scores = |cap: f32| {
        let launch = launch(&soft_cap, x, cap, 0.0);
        let unit = launch.unit(&soft_cap);
        assert!(unit > 0.0 && (unit * std::f32::consts::LOG2_E).is_finite());
        assert!((1.0 / unit).is_finite());
        let found = launch.run(&soft_cap, false);
        [0, 1, 2, 3].map(|element| unit * found[element])
    };
    for cap in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        assert!(scores(cap).into_iter().all(f32::is_nan), "{cap}");
    }
    for cap in [0.0, -0.0, 1e-40, f32::MIN_POSITIVE] {
        let [first, others @ ..] = scores(cap);
        assert!(first.is_nan() || first == 0.0);
        assert!(others.into_iter().all(|score| score.exp() == 1.0), "{cap}");
    }
    for cap in [1e6, 1e30, f32::MAX] {
        for (x, score) in x.into_iter().zip(scores(cap)) {
            assert!(
                (score - x * 0.125).abs() < 1e-5 * (1.0 + x.abs()),
                "{cap}: {score}"
            );
        }
    }
}

/// Kernels are told whether each score has cost a tanh.
#[test]
fn kernels_learn_whether_there_is_a_cap() {
    let kernel = ".entry k(.param .align 8 .b8 k_param_0[64])\n{\n\tferroflash_score_is_capped %r0;\n\tret;\n}\n";
    for (edit, capped) in [
        (examples::soft_cap(), 1),
        (examples::alibi(), 0),
        (examples::causal(), 0),
        (Edit::default(), 0),
    ] {
        let text = program(&edit, ScoreRows::Queries).splice(kernel).unwrap();
        let line = format!("\tmov.b32 %r0, {capped};\n");
        assert!(text.contains(&line), "{text}");
        assert!(!text.contains("ferroflash"), "{text}");
    }
}
