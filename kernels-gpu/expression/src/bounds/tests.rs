//! That bounds hold, and that they are sharp for the masks that are used.

use std::collections::BTreeSet;

use crate::arithmetic::unary_int;
use crate::device::interval::nums::Range;
use crate::random::{Kind, Random, Sample, random};
use crate::{
    At, Bounds, Cond, Contiguous, Elements, Evaluator, Expression, Index, MaskOver, ParamValue,
    Ranges, Real, ScoreIndices, Tensors, Truth, Type, Value,
};

fn holds<R: Real + Into<f64>>(bounds: Bounds, value: Value<R>) -> bool {
    match (bounds, value) {
        (Bounds::Num { lo, hi, nan }, Value::Num(x)) => {
            let x: f64 = x.into();
            x.is_nan() && nan || f64::from(lo) <= x && x <= f64::from(hi)
        }
        (Bounds::Int { lo, hi }, Value::Int(x)) => lo <= x && x <= hi,
        (Bounds::Cond(truth), Value::Cond(x)) => truth == Truth::Unknown || truth == Truth::of(x),
        _ => false,
    }
}

/// A random range and a value in it.
fn range(random: &mut Random) -> (i32, i32) {
    let lo = random.below(300) as i32;
    let len = random.choose(&[0, 1, 3, 63, 200]);
    (lo, lo + len)
}

#[test]
fn every_value_lies_in_its_bounds() {
    let (mut n_known, mut n_nodes) = (0, 0);
    for seed in 0..5000 {
        let kind = if seed % 2 == 0 {
            Kind::Score
        } else {
            Kind::Mask
        };
        let mut expression = random(seed, 4 + seed as u32 % 40, kind);
        if seed % 3 == 0 {
            expression = expression.simplified().unwrap();
        }
        let mut random = Random(seed ^ 0x5eed);
        let sample = Sample::new(&expression, seed);
        let mut params = sample.bounds();
        if random.below(2) == 0 {
            params.truncate(1);
        }
        let indices = Index::ALL.map(|_| range(&mut random));
        let scores: Vec<f32> = (0..4).map(|_| random.number()).collect();
        let nan = scores.iter().any(|x| x.is_nan());
        let lo = scores.iter().copied().fold(f32::INFINITY, f32::min);
        let hi = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let tensors = |tensor: usize, ranges: [(i32, i32); 4]| {
            let rank = usize::from(expression.tensors()[tensor].rank);
            Some(elements(&sample, tensor, rank, ranges)).filter(|_| seed % 4 != 0)
        };
        let mut ranges = Ranges::all()
            .with_params(&params)
            .with_score(Bounds::Num { lo, hi, nan })
            .with_tensors(&tensors);
        for (index, (lo, hi)) in Index::ALL.into_iter().zip(indices) {
            ranges = ranges.with_index(index, lo, hi);
        }
        let mut all = Vec::new();
        expression.all_bounds(&ranges, &mut all);
        assert_eq!(expression.bounds(&ranges), *all.last().unwrap());
        let mut single =
            Evaluator::<f32>::new(&expression, &sample.params, &sample.tensors).unwrap();
        let mut double =
            Evaluator::<f64>::new(&expression, &sample.params, &sample.tensors).unwrap();
        for &score in &scores {
            let mut place = ScoreIndices::default();
            for (index, (lo, hi)) in Index::ALL.into_iter().zip(indices) {
                let inside = lo + random.below((hi - lo + 1) as usize) as i32;
                place.set(index, random.choose(&[lo, hi, inside]));
            }
            single.evaluate(&place, score);
            double.evaluate(&place, f64::from(score));
            for (id, bounds) in all.iter().enumerate() {
                let (a, b) = (single.values()[id], double.values()[id]);
                let node = expression.nodes()[id];
                assert!(
                    holds(*bounds, a),
                    "seed {seed}, node {id} {node:?}: {a:?} not in {bounds:?}"
                );
                // A comparison of numbers that are equal in f32 alone, or its like, is another value altogether.
                assert!(
                    holds(*bounds, b),
                    "seed {seed}, node {id} {node:?}: {b:?} not in {bounds:?}"
                );
            }
        }
        let is_known = |bounds: &&Bounds| match bounds {
            Bounds::Num { lo, hi, .. } => lo.is_finite() && hi.is_finite(),
            Bounds::Int { lo, hi } => *lo > i32::MIN && *hi < i32::MAX,
            Bounds::Cond(truth) => *truth != Truth::Unknown,
        };
        n_known += all.iter().filter(is_known).count();
        n_nodes += all.len();
    }
    // Bounds that know nothing hold, too.
    assert!(n_known * 10 > n_nodes * 6, "{n_known} of {n_nodes}");
}

/// What is known of the elements of a tensor of a sample, by looking at all whose indices are possible.
fn elements(sample: &Sample, tensor: usize, rank: usize, ranges: [(i32, i32); 4]) -> Bounds {
    let shape = sample.tensors.shape(tensor);
    let inside = |dim: usize| {
        let last = shape[dim] as i32 - 1;
        match ranges[dim] {
            (lo, hi) if dim < rank => lo.clamp(0, last) as usize..=hi.clamp(0, last) as usize,
            _ => 0..=0,
        }
    };
    let mut all: Option<Bounds> = None;
    for a in inside(0) {
        for b in inside(1) {
            for (c, d) in inside(2).flat_map(|c| inside(3).map(move |d| (c, d))) {
                let own = match sample.tensors[tensor].elements() {
                    Elements::F32(_) => Bounds::num(sample.tensors.f32(tensor, [a, b, c, d])),
                    Elements::I32(_) => Bounds::int(sample.tensors.i32(tensor, [a, b, c, d])),
                };
                all = Some(all.map_or(own, |all| all.union(own)));
            }
        }
    }
    all.unwrap()
}

/// Every binary function of small ranges against all values in them: how many of the bounds are not the least possible.
#[test]
fn bounds_of_whole_numbers_are_near_the_least() {
    use crate::Binary::*;
    let ends = [
        -130, -65, -64, -33, -8, -1, 0, 1, 3, 4, 31, 32, 63, 64, 127, 128,
    ];
    for op in [Add, Sub, Mul, Div, Rem, Min, Max, And, Or, Xor, Shl, Shr] {
        let (mut n, mut n_sharp) = (0, 0);
        for &lo in &ends {
            for width in [0, 3, 63] {
                for &other in &ends {
                    for other_width in [0, 1, 5] {
                        let (a, b) = ((lo, lo + width), (other, other + other_width));
                        let values: BTreeSet<i32> = (a.0..=a.1)
                            .flat_map(|x| (b.0..=b.1).map(move |y| (x, y)))
                            .map(|(x, y)| crate::arithmetic::binary_int(op, x, y))
                            .collect();
                        let (least, most) = (*values.first().unwrap(), *values.last().unwrap());
                        let [a_bounds, b_bounds] = [a, b].map(|(lo, hi)| Bounds::Int { lo, hi });
                        let Bounds::Int { lo, hi } = a_bounds.binary(op, b_bounds) else {
                            panic!("{op:?} gives whole numbers");
                        };
                        assert!(
                            lo <= least && most <= hi,
                            "{op:?} {a:?} {b:?}: {lo} {hi}, not {least} {most}"
                        );
                        n += 1;
                        n_sharp += usize::from((lo, hi) == (least, most));
                    }
                }
            }
        }
        let wanted = match op {
            Add | Sub | Mul | Min | Max | Div => 100,
            Rem | Shr => 85,
            And | Or | Xor | Shl => 45,
        };
        assert!(n_sharp * 100 >= n * wanted, "{op:?}: {n_sharp} of {n}");
    }
}

#[test]
fn bounds_of_one_whole_number_are_the_least() {
    use crate::Unary::{Abs, Neg, Not};
    for op in [Neg, Abs, Not] {
        for (lo, width) in (-40..40).flat_map(|lo| [0, 1, 7, 50].map(|width| (lo, width))) {
            let values = (lo..=lo + width).map(|x| unary_int(op, x));
            let (lo_value, hi_value) = (values.clone().min().unwrap(), values.max().unwrap());
            let wanted = Bounds::Int {
                lo: lo_value,
                hi: hi_value,
            };
            assert_eq!(
                Bounds::Int { lo, hi: lo + width }.unary(op),
                wanted,
                "{op:?} {lo} {width}"
            );
        }
        let negative = Bounds::Int {
            lo: i32::MIN,
            hi: -1,
        };
        let Bounds::Int { lo, hi } = negative.unary(op) else {
            panic!()
        };
        assert!(lo <= unary_int(op, i32::MIN) && unary_int(op, i32::MIN) <= hi);
    }
}

/// Every function of numbers, of ranges between special numbers, at and between their ends.
#[test]
fn bounds_of_numbers_hold_for_special_ones() {
    use crate::{Binary::*, Precision::Fast, Unary};
    let (inf, tiny) = (f32::INFINITY, f32::MIN_POSITIVE);
    let positive = [
        0.0,
        1e-45,
        tiny,
        0.1,
        1.0,
        2.5,
        100.0,
        1e19,
        1e38,
        f32::MAX,
        inf,
    ];
    let mut ends: Vec<f32> = positive.iter().flat_map(|&x| [x, -x]).collect();
    ends.sort_by(f32::total_cmp);
    let mut ranges = Vec::new();
    for (i, &lo) in ends.iter().enumerate() {
        for &hi in ends[i..].iter().step_by(3) {
            let middle = lo / 2.0 + hi / 2.0;
            let inside = ends
                .iter()
                .copied()
                .chain([middle])
                .filter(|&x| lo <= x && x <= hi);
            for nan in [false, true] {
                let mut values: Vec<f32> = inside.clone().collect();
                values.extend(nan.then_some(f32::NAN));
                ranges.push((Range { lo, hi, nan }, values));
            }
        }
    }
    let check = |bounds: Bounds, single: f32, double: f64, what: &dyn Fn() -> String| {
        assert!(
            holds(bounds, Value::Num(single)),
            "{}: {single} not in {bounds:?}",
            what()
        );
        assert!(
            holds(bounds, Value::Num(double)),
            "{}: {double} not in {bounds:?}",
            what()
        );
    };
    for (a, values) in &ranges {
        for op in [
            Unary::Neg,
            Unary::Abs,
            Unary::Exp2(Fast),
            Unary::Ln(Fast),
            Unary::Tanh(Fast),
            Unary::Sigmoid(Fast),
            Unary::Sqrt(Fast),
        ] {
            let bounds = super::unary(op, a.bounds());
            for &x in values {
                let (single, double) = (Real::unary(x, op), Real::unary(f64::from(x), op));
                check(bounds, single, double, &|| format!("{op:?} {a:?} {x}"));
            }
        }
        for (b, others) in ranges.iter().step_by(2) {
            for op in [Add, Sub, Mul, Div, Min, Max] {
                let bounds = super::binary(op, a.bounds(), b.bounds());
                for (&x, &y) in values
                    .iter()
                    .step_by(2)
                    .flat_map(|x| others.iter().map(move |y| (x, y)))
                {
                    let single = Real::binary(x, op, y);
                    let double = Real::binary(f64::from(x), op, f64::from(y));
                    check(bounds, single, double, &|| {
                        format!("{op:?} {a:?} {b:?} {x} {y}")
                    });
                }
            }
        }
    }
}

/// What a mask does on tiles, against what it does pair by pair.
fn check_tiles(name: &str, tile: i32, f: impl FnOnce(At) -> Cond) {
    let mask = Expression::mask(f).unwrap();
    let documents = |at: i32| at / 100;
    let elements = Elements::I32((0..256).map(documents).collect());
    let tensor = vec![Contiguous::new(&[256], elements).unwrap()];
    let params: Vec<ParamValue> = mask.params().iter().map(|_| ParamValue::I32(70)).collect();
    let bounds: Vec<Bounds> = params.iter().map(|&value| Bounds::from(value)).collect();
    let known = |_: usize, ranges: [(i32, i32); 4]| {
        let (lo, hi) = ranges[0];
        Some(Bounds::Int {
            lo: documents(lo),
            hi: documents(hi),
        })
    };
    let tensors: &dyn Tensors = &tensor;
    let mut evaluator = Evaluator::<f32>::new(&mask, &params, tensors).unwrap();
    for first_q in (0..256).step_by(tile as usize) {
        for first_k in (0..256).step_by(tile as usize) {
            let (last_q, last_k) = (first_q + tile - 1, first_k + tile - 1);
            let ranges = Ranges::all()
                .with_index(Index::Query, first_q, last_q)
                .with_index(Index::Key, first_k, last_k)
                .with_index(Index::Head, 3, 3)
                .with_params(&bounds)
                .with_tensors(&known);
            let mut n_visible = 0;
            for q in first_q..=last_q {
                for k in first_k..=last_k {
                    let place = ScoreIndices::default()
                        .with(Index::Query, q)
                        .with(Index::Key, k);
                    let place = place.with(Index::Head, 3);
                    n_visible += usize::from(evaluator.mask(&place));
                }
            }
            let wanted = match n_visible {
                0 => MaskOver::AllFalse,
                n if n == (tile * tile) as usize => MaskOver::AllTrue,
                _ => MaskOver::Unknown,
            };
            let given = mask.mask_over(&ranges);
            assert_eq!(
                given, wanted,
                "{name}, tile {tile}, from {first_q} {first_k}"
            );
        }
    }
}

#[test]
fn usual_masks_are_known_wherever_they_can_be() {
    for tile in [1, 16, 64] {
        check_tiles("causal", tile, |at| at.q.ge(at.k));
        check_tiles("window", tile, |at| (at.q - at.k).lt(at.i32("window")));
        check_tiles("causal window", tile, |at| {
            at.q.ge(at.k) & (at.q - at.k).lt(at.i32("window"))
        });
        check_tiles("causal difference", tile, |at| (at.q - at.k).ge(0));
        check_tiles("prefix", tile, |at| {
            at.k.lt(at.i32("prefix")) | at.q.ge(at.k)
        });
        check_tiles("blocks", tile, |at| (at.q / 64).eq(at.k / 64));
        check_tiles("shifted blocks", tile, |at| (at.q >> 6).ne(at.k >> 6));
        check_tiles("documents", tile, |at| {
            at.tensor_i32("documents", [at.q])
                .eq(at.tensor_i32("documents", [at.k]))
        });
        check_tiles("stride", tile, |at| (at.k % 4).eq(0));
        check_tiles("stride of 128", tile, |at| (at.k % 128).lt(64));
        check_tiles("bits", tile, |at| (at.k & 127).ge(64));
        check_tiles("distance", tile, |at| (at.q - at.k).abs().le(70));
        check_tiles("numbers", tile, |at| (at.q - at.k).to_f32().ge(0.0));
        check_tiles("by head", tile, |at| {
            at.head.lt(2).select(at.q.ge(at.k), at.q.gt(at.k))
        });
        check_tiles("all", tile, |at| at.constant(true));
    }
}

#[test]
fn what_may_wrap_around_is_not_known() {
    let score = Expression::score(|_, at| (at.q * 65536).to_f32()).unwrap();
    let over = |hi| score.bounds(&Ranges::all().with_index(Index::Query, 0, hi));
    let Bounds::Num { lo, hi, nan } = over(32767) else {
        panic!()
    };
    assert_eq!((lo, hi, nan), (0.0, 2_147_418_112.0, false));
    let Bounds::Num { lo, .. } = over(32768) else {
        panic!()
    };
    assert_eq!(lo, i32::MIN as f32);
    assert_eq!(Bounds::all(Type::Bool), Bounds::Cond(Truth::Unknown));
}
