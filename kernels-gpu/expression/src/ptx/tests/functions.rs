//! Errors of functions: the table of the module, measured against f64.

use super::examples::unary;
use super::harness::Launch;
use super::tree::Random;
use crate::ptx::Edit;
use crate::{Precision, Unary};

/// What ex2.approx may be off by.
const APPROXIMATE: f32 = 1.686e-7;

/// The greatest error in units of the last place, over numbers of all sizes between two.
fn worst(function: Unary, exact: fn(f64) -> f64, least: f32, most: f32, signs: &[f32]) -> f64 {
    let edit = Edit {
        score: Some(unary(function)),
        ..Edit::default()
    };
    let mut launch = Launch::random(&mut Random::new(1));
    launch.scale = 1.0;
    let mut worst = 0.0_f64;
    let n = 2000;
    for nth in 0..n {
        let size = least * (most / least).powf(nth as f32 / n as f32);
        for &sign in signs {
            launch.x = [
                size * sign,
                size * sign * 1.0007,
                size * sign * 1.0013,
                sign,
            ];
            for error in [0.0, APPROXIMATE, -APPROXIMATE] {
                let found = launch.run_with_error(&edit, false, error);
                for (x, found) in launch.x.into_iter().zip(found) {
                    let wanted = exact(f64::from(x));
                    let place = (wanted as f32).abs().max(f32::MIN_POSITIVE).to_bits();
                    let place = f32::from_bits(place + 1) - f32::from_bits(place);
                    let error = (f64::from(found) - wanted).abs() / f64::from(place);
                    worst = worst.max(error);
                }
            }
        }
    }
    worst
}

#[test]
fn full_functions_are_within_a_few_units_of_the_last_place() {
    let both = [1.0, -1.0];
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let full = Precision::Full;
    let exp2 = worst(Unary::Exp2(full), f64::exp2, 1e-6, 120.0, &both);
    assert!(exp2 < 4.0, "exp2: {exp2}");
    let ln = worst(Unary::Ln(full), f64::ln, 1e-42, 1e38, &[1.0]);
    assert!(ln < 2.0, "ln: {ln}");
    let near_one = worst(Unary::Ln(full), f64::ln, 0.9, 1.1, &[1.0]);
    assert!(near_one < 2.0, "ln near 1: {near_one}");
    let tanh = worst(Unary::Tanh(full), f64::tanh, 1e-30, 100.0, &both);
    assert!(tanh < 4.0, "tanh: {tanh}");
    let sigmoid = worst(Unary::Sigmoid(full), sigmoid, 1e-30, 87.0, &both);
    assert!(sigmoid < 6.0, "sigmoid: {sigmoid}");
    let sqrt = worst(Unary::Sqrt(full), f64::sqrt, 1e-38, 1e38, &[1.0]);
    assert!(sqrt <= 0.5, "sqrt: {sqrt}");
    eprintln!("exp2 {exp2}, ln {ln} {near_one}, tanh {tanh}, sigmoid {sigmoid}, sqrt {sqrt}");
}

#[test]
fn functions_know_what_is_special() {
    let special = |function: Unary, x: [f32; 4]| {
        let edit = Edit {
            score: Some(unary(function)),
            ..Edit::default()
        };
        let mut launch = Launch::random(&mut Random::new(1));
        (launch.scale, launch.x) = (1.0, x);
        launch.run(&edit, false)[..4].to_vec()
    };
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    for precision in [Precision::Fast, Precision::Full] {
        let ln = special(Unary::Ln(precision), [0.0, infinity, -1.0, 1.0]);
        assert_eq!(ln[..2], [-infinity, infinity]);
        assert!(ln[2].is_nan() && ln[3] == 0.0);
        let tanh = special(Unary::Tanh(precision), [infinity, -infinity, nan, 0.0]);
        assert_eq!(tanh[..2], [1.0, -1.0]);
        assert!(tanh[2].is_nan() && tanh[3] == 0.0);
        let sigmoid = special(Unary::Sigmoid(precision), [infinity, -infinity, nan, 0.0]);
        assert!(sigmoid[0] == 1.0 && sigmoid[1] < 1e-37);
        assert!(sigmoid[2].is_nan() && sigmoid[3] == 0.5);
        let exp2 = special(Unary::Exp2(precision), [infinity, -infinity, nan, 1.0]);
        assert!(exp2[0] == infinity && exp2[1] == 0.0 && exp2[2].is_nan() && exp2[3] == 2.0);
    }
}
