//! Comparisons where both sides are equal, extreme whole numbers, and NaN.

use super::examples;
use super::harness::Launch;
use super::reference::{Value, evaluate};
use super::tree::{Random, Tree};
use crate::ptx::{Edit, ScoreRows};
use crate::{Binary, Compare, Expression, Id, Index, Unary};

const COMPARES: [Compare; 4] = [Compare::Lt, Compare::Le, Compare::Eq, Compare::Ne];

fn masks(mask: Expression) -> Edit {
    Edit {
        mask: Some(mask),
        ..Edit::default()
    }
}

/// Compares all elements of a launch; returns how many are hidden.
fn check(edit: &Edit, launch: &Launch) -> usize {
    let result = launch.run(edit, false);
    let mut hidden = 0;
    for element in 0..4 {
        let mask = edit.mask.as_ref().unwrap();
        let keep = evaluate(mask, &launch.place(element)).pop();
        let Some(Value::Bool(Some(keep))) = keep else {
            panic!("{keep:?} is not known: {edit:#?}");
        };
        let is_hidden = result[element] == f32::NEG_INFINITY;
        assert_eq!(is_hidden, !keep, "{:?}\n{edit:#?}", launch.place(element));
        hidden += usize::from(is_hidden);
    }
    hidden
}

/// step · k − q + constant compared with the window, on either side, and not.
fn edge(compare: Compare, step: i32, constant: i32, way: usize) -> Expression {
    let mut tree = Tree::default();
    let (q, k) = (tree.index(Index::Query), tree.index(Index::Key));
    let (step, constant) = (tree.i32(step), tree.i32(constant));
    let k = tree.binary(Binary::Mul, k, step);
    let place = tree.binary(Binary::Sub, k, q);
    let place = tree.binary(Binary::Add, place, constant);
    let window = tree.param(2);
    let (a, b) = if way.is_multiple_of(2) {
        (place, window)
    } else {
        (window, place)
    };
    let result = tree.compare(compare, a, b);
    if way >= 2 {
        tree.unary(Unary::Not, result);
    }
    tree.build()
}

#[test]
fn bounds_are_exact_at_their_edges() {
    let mut random = Random::new(3);
    let mut launch = Launch::random(&mut random);
    let (mut all, mut hidden) = (0, 0);
    for compare in COMPARES {
        for (step, constant) in [(1, 0), (-1, 5), (3, -2), (2, 1 << 20)] {
            for way in 0..4_usize {
                let edit = masks(edge(compare, step, constant, way));
                for rows in [ScoreRows::Queries, ScoreRows::Keys] {
                    launch.rows = rows;
                    for column in [0, 2, 30] {
                        launch.column = column;
                        let base = launch.place(0).indices;
                        let place = step * base[4] - base[3] + constant;
                        for near in -12..12 {
                            launch.params[2] = (place + near) as u32;
                            hidden += check(&edit, &launch);
                            all += 4;
                        }
                        for extreme in [i32::MIN, i32::MAX, i32::MIN + 40, i32::MAX - 40] {
                            launch.params[2] = extreme as u32;
                            check(&edit, &launch);
                        }
                    }
                }
            }
        }
    }
    assert!(
        hidden > all / 4 && hidden < all * 3 / 4,
        "{hidden} of {all}"
    );
}

#[test]
fn comparisons_of_numbers_know_equality_and_nan() {
    let mut launch = Launch::random(&mut Random::new(4));
    launch.scale = 1.0;
    launch.params[0] = 1.0_f32.to_bits();
    launch.x = [0.5, 1.0, 1.5, f32::NAN];
    for compare in COMPARES {
        for way in 0..4_usize {
            let mut tree = Tree::default();
            let (score, slope) = (tree.score(), tree.param(0));
            let (a, b) = if way.is_multiple_of(2) {
                (score, slope)
            } else {
                (slope, score)
            };
            let result = tree.compare(compare, a, b);
            if way >= 2 {
                tree.unary(Unary::Not, result);
            }
            let edit = masks(tree.build());
            let result = launch.run(&edit, false);
            for (x, found) in launch.x.into_iter().zip(result) {
                let (a, b) = if way.is_multiple_of(2) {
                    (x, 1.0)
                } else {
                    (1.0, x)
                };
                let keep = match compare {
                    Compare::Lt => a < b,
                    Compare::Le => a <= b,
                    Compare::Eq => a == b,
                    Compare::Ne => a != b,
                };
                let keep = keep != (way >= 2);
                assert_eq!(found != f32::NEG_INFINITY, keep, "{compare:?} {way} {x}");
            }
        }
    }
}

/// Whether the window and the period give what Rust says.
fn holds(binary: Binary, wanted: i32, plain: Option<i32>) -> Expression {
    let mut tree = Tree::default();
    let a = tree.param(2);
    let b: Id = match plain {
        Some(b) => tree.i32(b),
        None => tree.param(3),
    };
    let result = tree.binary(binary, a, b);
    let wanted = tree.i32(wanted);
    tree.compare(Compare::Eq, result, wanted);
    tree.build()
}

#[test]
fn whole_numbers_are_exact_at_their_extremes() {
    let mut launch = Launch::random(&mut Random::new(5));
    let values = [
        i32::MIN,
        i32::MIN + 1,
        -64,
        -7,
        -1,
        0,
        1,
        2,
        7,
        8,
        33,
        64,
        i32::MAX,
    ];
    for a in values {
        for b in values {
            let cases = [
                (Binary::Add, a.wrapping_add(b)),
                (Binary::Sub, a.wrapping_sub(b)),
                (Binary::Mul, a.wrapping_mul(b)),
                (Binary::Div, if b == 0 { 0 } else { a.wrapping_div(b) }),
                (Binary::Rem, if b == 0 { a } else { a.wrapping_rem(b) }),
                (Binary::Min, a.min(b)),
                (Binary::Max, a.max(b)),
                (Binary::And, a & b),
                (Binary::Or, a | b),
                (Binary::Xor, a ^ b),
                (Binary::Shl, a.wrapping_shl(b as u32)),
                (Binary::Shr, a.wrapping_shr(b as u32)),
            ];
            (launch.params[2], launch.params[3]) = (a as u32, b as u32);
            for (binary, wanted) in cases {
                for plain in [None, Some(b)] {
                    let edit = masks(holds(binary, wanted, plain));
                    let result = launch.run(&edit, false);
                    assert_eq!(result[..4], launch.x, "{binary:?} of {a} and {b}");
                }
            }
        }
    }
}

#[test]
fn indices_far_outside_of_a_tensor_are_moved_inside() {
    let mut launch = Launch::random(&mut Random::new(6));
    let mut known = 0;
    for first in [0, 8, 40] {
        for step in [1, -1, 5] {
            for window in [i32::MIN, i32::MIN + 1, -50, 0, 50, i32::MAX - 300, i32::MAX] {
                (launch.first, launch.params[2]) = (first, window as u32);
                let mut tree = Tree::default();
                let (k, window, step) = (tree.index(Index::Key), tree.param(2), tree.i32(step));
                let k = tree.binary(Binary::Mul, k, step);
                let place = tree.binary(Binary::Add, k, window);
                let (element, zero) = (tree.read(1, &[place]), tree.i32(1));
                tree.compare(Compare::Le, element, zero);
                let edit = masks(tree.build());
                for rows in [ScoreRows::Queries, ScoreRows::Keys] {
                    launch.rows = rows;
                    // A sum that wraps around reads some element, and never what lies outside.
                    let result = launch.run(&edit, false);
                    for element in 0..4 {
                        let mask = edit.mask.as_ref().unwrap();
                        let keep = evaluate(mask, &launch.place(element)).pop();
                        if let Some(Value::Bool(Some(keep))) = keep {
                            assert_eq!(result[element] != f32::NEG_INFINITY, keep, "{edit:#?}");
                            known += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(known > 300, "{known}");
}

#[test]
fn distances_are_exact_far_from_the_first_row() {
    let mut launch = Launch::random(&mut Random::new(8));
    launch.scale = 0.088_388_35;
    (launch.tile[5], launch.tile[6]) = (1_000_003, 1_000_011);
    (launch.first, launch.column) = (1_000_000, 62);
    let edit = examples::alibi();
    for rows in [ScoreRows::Queries, ScoreRows::Keys] {
        launch.rows = rows;
        let result = launch.run(&edit, false);
        for element in 0..4 {
            let at = launch.place(element);
            let slope = f32::from_bits(launch.tensors[0].bits[at.indices[1] as usize]);
            let distance = f64::from(at.indices[4] - at.indices[3]);
            let bias = f64::from(slope) * distance / f64::from(launch.scale);
            let error = f64::from(result[element]) - (f64::from(at.x) + bias);
            // The distance is below 100 rows: a sum of 1 000 000 of them would be off by a hundred times that.
            assert!(error.abs() < 1e-3, "{error}");
            assert!(bias.abs() > 1.0, "{bias}");
        }
    }
}
