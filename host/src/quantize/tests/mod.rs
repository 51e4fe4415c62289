//! Errors of rounding, what the transforms leave as it is, and what is refused.

use float8::F8E4M3;
use half::{bf16, f16};
use proptest::prelude::*;

use crate::dtype::{Element, ScalarType};
use crate::error::{Argument, QuantizeError};
use crate::problem::Fp8;
use crate::quantize::{KMean, Operand};
use crate::tensor::{Layout, Tensor};

const PER: [Fp8; 3] = [Fp8::PerTensor, Fp8::PerHead, Fp8::PerBlock];

fn q(data: &[f32], shape: [usize; 4], heads_k: usize) -> Operand {
    Operand::q(&Tensor::bshd(data, shape).unwrap(), heads_k).unwrap()
}

fn k(data: &[f32], shape: [usize; 4]) -> Operand {
    Operand::k(&Tensor::bshd(data, shape).unwrap()).unwrap()
}

/// Numbers between −1 and 1 that look random.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| number()).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b);
    products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// All finite numbers of e4m3 from 0 up, with whether their last bit is 0.
fn e4m3() -> Vec<(f64, bool)> {
    let number = |bits: u8| (F8E4M3::from_bits(bits).to_f64(), bits & 1 == 0);
    (0..0x7f).map(number).collect()
}

/// With descale 1 each number stays, what lies between two goes to the nearer one, a tie to the even one, and what is beyond 448 becomes 448.
#[test]
fn rounding_is_to_nearest_even_and_saturates() {
    let numbers = e4m3();
    assert_eq!(numbers.last().unwrap().0, 448.0);
    let mut given = Vec::new();
    let mut expected = Vec::new();
    for pair in numbers.windows(2) {
        let ((a, a_is_even), (b, _)) = (pair[0], pair[1]);
        let middle = ((a + b) / 2.0) as f32;
        let (even, nearer) = (if a_is_even { a } else { b }, [a, b]);
        given.extend([a as f32, middle, middle.next_down(), middle.next_up()]);
        expected.extend([a, even, nearer[0], nearer[1]]);
    }
    for beyond in [448.0, 449.0, 463.9, 464.0, 480.0, 1e9, f32::MAX] {
        given.push(beyond);
        expected.push(448.0);
    }
    for sign in [1.0, -1.0] {
        let signed: Vec<f32> = given.iter().map(|x| sign * x).collect();
        let shape = [1, signed.len(), 1, 1];
        let rounded = k(&signed, shape).quantize_with(&[1.0]).unwrap();
        for ((given, expected), rounded) in signed.iter().zip(&expected).zip(rounded.values()) {
            assert_eq!(rounded.to_f32(), sign * *expected as f32, "{given}");
        }
    }
}

/// Query heads that share a head of keys share a scale, and batch entries do not.
#[test]
fn scales_are_of_batch_entries_and_heads_of_keys() {
    // [2, 1, 4, 1], two heads of keys.
    let values = [1.0, -2.0, 3.0, 4.0, 0.0, -0.0, 8.0, -7.0];
    let q = q(&values, [2, 1, 4, 1], 2);
    assert_eq!(q.amax(Fp8::PerHead), [2.0, 4.0, 0.0, 8.0]);
    assert_eq!(q.amax(Fp8::PerTensor), [8.0]);
    let per_head = q.quantize(Fp8::PerHead);
    assert_eq!(
        per_head.descale(),
        [2.0 / 448.0, 4.0 / 448.0, 1.0, 8.0 / 448.0]
    );
    let all = per_head.values().iter().map(|x| x.to_f32());
    let expected = [224.0, -448.0, 320.0, 448.0, 0.0, -0.0, 448.0, -384.0];
    assert!(all.eq(expected));
    assert_eq!(per_head.tensor().unwrap().layout().shape(), [2, 1, 4, 1]);
    assert_eq!(q.quantize(Fp8::PerTensor).descale(), [8.0 / 448.0]);
}

/// Blocks of 128 rows, counted in each batch entry, the last one with what is left.
#[test]
fn scales_of_blocks_are_of_their_rows() {
    // [2, 130, 2, 1]: each row holds its number in the batch entry, and the second head and entry the same times 2 and 4.
    let row = |at: usize| (1 + at / 2 % 130) as f32 * [1.0, 2.0, 4.0, 8.0][at / 260 * 2 + at % 2];
    let values: Vec<f32> = (0..520).map(row).collect();
    let k = k(&values, [2, 130, 2, 1]);
    let amax = [128.0, 130.0, 256.0, 260.0, 512.0, 520.0, 1024.0, 1040.0];
    assert_eq!(k.amax(Fp8::PerBlock), amax);
    let quantized = k.quantize(Fp8::PerBlock);
    let descale = amax.map(|amax| amax / 448.0);
    assert_eq!(quantized.descale(), descale);
    assert_eq!(k.quantize_with(&descale).unwrap(), quantized);
    let numbers = quantized.dequantize();
    for (at, (given, exact)) in numbers.iter().zip(&values).enumerate() {
        // Half of a step of 2⁻³ at most, or of the smallest step there is.
        let step = descale[at / 260 * 4 + at % 2 * 2 + at / 2 % 130 / 128] / 1024.0;
        assert!(
            (given - exact).abs() <= exact / 16.0 + step,
            "{at}: {given} {exact}"
        );
    }
    // Query heads that share a head of keys share the scales.
    let q = q(&values[..260], [1, 130, 2, 1], 1);
    assert_eq!(q.amax(Fp8::PerBlock), [256.0, 260.0]);
}

/// Any strides, and every type.
#[test]
fn layouts_and_types_say_the_same() {
    // [batch, heads, seqlen, head_dim] and [batch, seqlen, heads, head_dim] of the same numbers.
    let bhsd: Vec<f32> = (0..24).map(|x| x as f32 / 4.0).collect();
    let tensor = Tensor::bhsd(&bhsd, [2, 2, 3, 2]).unwrap();
    let mut bshd = Vec::new();
    for entry in 0..2 {
        for row in 0..3 {
            for head in 0..2 {
                let first = ((entry * 2 + head) * 3 + row) * 2;
                bshd.extend(&bhsd[first..first + 2]);
            }
        }
    }
    let dense = k(&bshd, [2, 3, 2, 2]);
    assert_eq!(Operand::k(&tensor).unwrap(), dense);

    fn of<T: Element>(values: &[f32]) -> Operand {
        let narrow: Vec<T> = values.iter().map(|&x| T::from_f32(x)).collect();
        Operand::k(&Tensor::bshd(&narrow, [2, 3, 2, 2]).unwrap()).unwrap()
    }
    assert_eq!(of::<bf16>(&bshd), dense);
    assert_eq!(of::<f16>(&bshd), dense);

    // Packed rows are a batch entry; an entry that is repeated counts each time.
    let packed = Tensor::thd(&bshd, [6, 2, 2]).unwrap();
    assert_eq!(Operand::k(&packed).unwrap().shape(), [1, 6, 2, 2]);
    let repeated = Layout::strided([3, 1, 1, 2], [0, 2, 2]);
    let repeated = Tensor::strided(&[1f32, 2.0], repeated).unwrap();
    let repeated = Operand::k(&repeated).unwrap();
    assert_eq!(repeated.values(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
}

#[test]
fn what_cannot_be_quantised_is_refused_by_name() {
    let shape = [1, 3, 2, 2];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = [1f32; 12];
        values[7] = bad;
        let refused = Operand::v(&Tensor::bshd(&values, shape).unwrap()).unwrap_err();
        let QuantizeError::NotFinite {
            argument: Argument::V,
            at: [0, 1, 1, 1],
            given,
        } = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(given.to_bits(), bad.to_bits());
    }
    let ones = [1f32; 12];
    let tensor = Tensor::bshd(&ones, shape).unwrap();
    for heads_k in [0, 3, 4] {
        let refused = Operand::q(&tensor, heads_k);
        let argument = Argument::Q;
        let heads = QuantizeError::Heads {
            argument,
            given: 2,
            heads_k,
        };
        assert_eq!(refused, Err(heads));
    }
    let codes = [F8E4M3::ONE; 12];
    assert_eq!(
        Operand::k(&Tensor::bshd(&codes, shape).unwrap()),
        Err(QuantizeError::Dtype {
            argument: Argument::K,
            given: ScalarType::E4m3,
        })
    );
    let k = k(&ones, shape);
    for descale in [&[][..], &[1.0; 3]] {
        let refused = k.quantize_with(descale);
        let (given, per_head, per_block) = (descale.len(), 2, 2);
        let argument = Argument::K;
        assert_eq!(
            refused,
            Err(QuantizeError::DescaleCount {
                argument,
                given,
                per_head,
                per_block
            })
        );
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let refused = k.quantize_with(&[1.0, bad]);
        assert!(matches!(refused, Err(QuantizeError::Descale { .. })));
    }
    let v = Operand::v(&tensor).unwrap();
    for refused in [v.clone().hadamard(None).map(drop), v.smooth().map(drop)] {
        assert!(matches!(refused, Err(QuantizeError::NotTaken { .. })));
    }
}

/// A sum beyond f32, and memory for 2⁶⁰ elements.
#[test]
fn what_would_overflow_is_refused() {
    let huge = k(&[f32::MAX; 4], [1, 2, 1, 2]).hadamard(None);
    assert!(matches!(huge, Err(QuantizeError::NotFinite { .. })));
    let apart = k(&[f32::MAX, -f32::MAX, -f32::MAX], [1, 3, 1, 1]).smooth();
    assert!(matches!(apart, Err(QuantizeError::NotFinite { .. })));
    let layout = Layout::strided([1 << 30, 1 << 30, 1, 1], [0, 0, 1]);
    let refused = Operand::k(&Tensor::strided(&[1f32], layout).unwrap());
    let (argument, n_elems) = (Argument::K, 1 << 60);
    assert_eq!(refused, Err(QuantizeError::Memory { argument, n_elems }));
}

#[test]
fn tensors_without_elements_pass_through() {
    for shape in [[0, 3, 2, 4], [2, 0, 2, 4], [2, 3, 0, 4], [2, 3, 2, 0]] {
        let (k, mean) = k(&[], shape).hadamard(Some(1)).unwrap().smooth().unwrap();
        assert_eq!(mean.shape(), [shape[0], shape[2], shape[3]]);
        for scales in PER {
            let quantized = k.quantize(scales);
            assert!(quantized.values().is_empty() && quantized.dequantize().is_empty());
            assert!(quantized.descale().iter().all(|&x| x == 1.0));
        }
    }
}

/// Subnormal numbers have the least scale, and do not become NaN.
#[test]
fn the_smallest_numbers_have_a_scale() {
    let tiny = k(&[f32::from_bits(1), -0.0], [1, 2, 1, 1]).quantize(Fp8::PerTensor);
    assert_eq!(tiny.descale(), [2f32.powi(-60)]);
    assert!(tiny.values().iter().all(|x| x.to_f32() == 0.0));
}

/// Norms stay, for every kind of head_dim, and columns beyond a block do not mix.
#[test]
fn hadamard_is_orthonormal_in_blocks() {
    for (head_dim, width) in [(1, 1), (7, 1), (16, 16), (80, 16), (128, 128), (192, 64)] {
        let columns: Vec<Vec<f32>> = (0..head_dim)
            .map(|at| {
                let mut unit = vec![0f32; head_dim];
                unit[at] = 1.0;
                let rotated = k(&unit, [1, 1, 1, head_dim]).hadamard(Some(5)).unwrap();
                rotated.values().to_vec()
            })
            .collect();
        for (i, a) in columns.iter().enumerate() {
            for (j, b) in columns.iter().enumerate() {
                let expected = f64::from(u8::from(i == j));
                assert!((dot(a, b) - expected).abs() < 1e-6, "{head_dim}: {i} {j}");
            }
            let spread = 1.0 / (width as f64).sqrt();
            for (j, &x) in a.iter().enumerate() {
                let inside = i / width == j / width;
                let expected = if inside { spread } else { 0.0 };
                assert!((f64::from(x).abs() - expected).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn signs_follow_from_the_seed() {
    let rows = numbers(64, 3);
    let rotated = |seed| k(&rows, [1, 1, 1, 64]).hadamard(seed).unwrap();
    assert_eq!(rotated(Some(9)), rotated(Some(9)));
    assert_ne!(rotated(Some(9)), rotated(Some(10)));
    assert_ne!(rotated(Some(9)), rotated(None));
}

/// An outlier is spread: the greatest number is smaller by √head_dim, and so is the scale.
#[test]
fn hadamard_spreads_an_outlier() {
    let mut rows = vec![0f32; 4 * 64];
    rows[70] = 100.0;
    let rotated = k(&rows, [1, 4, 1, 64]).hadamard(Some(1)).unwrap();
    assert!((rotated.amax(Fp8::PerTensor)[0] - 12.5).abs() < 1e-4);
}

/// One head of softmax in f64: o and lse of a query.
fn attend(q: &[f32], k: &[&[f32]], v: &[f64], scale: f32) -> (f64, f64) {
    let scores: Vec<f64> = k.iter().map(|k| dot(q, k) * f64::from(scale)).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p = scores.iter().map(|s| (s - most).exp());
    let sum: f64 = p.clone().sum();
    let o: f64 = p.zip(v).map(|(p, v)| p * v).sum();
    (o / sum, most + sum.ln())
}

/// Rows of a head, of `[batch, seqlen, heads, head_dim]`.
fn rows(x: &Operand, entry: usize, head: usize) -> Vec<&[f32]> {
    let [_, seqlen, heads, head_dim] = x.shape();
    let row = |row| &x.values()[((entry * seqlen + row) * heads + head) * head_dim..][..head_dim];
    (0..seqlen).map(row).collect()
}

/// All of o and lse over these keys, in the order of lse.
fn attention(q: &Operand, k: &Operand, scale: f32) -> (Vec<f64>, Vec<f64>) {
    let group = q.shape()[2] / k.shape()[2];
    let v: Vec<f64> = (0..k.shape()[1]).map(|at| (at as f64).cos()).collect();
    let mut all = (Vec::new(), Vec::new());
    for entry in 0..q.shape()[0] {
        for head in 0..q.shape()[2] {
            let keys = rows(k, entry, head / group);
            for query in rows(q, entry, head) {
                let (o, lse) = attend(query, &keys, &v, scale);
                all.0.push(o);
                all.1.push(lse);
            }
        }
    }
    all
}

/// Two batch entries, four query heads over two heads of keys that have a mean of 3 and more.
fn biased() -> (Operand, Operand) {
    let q = q(&numbers(2 * 5 * 4 * 12, 1), [2, 5, 4, 12], 2);
    let biased = numbers(2 * 7 * 2 * 12, 2);
    let biased = biased.iter().enumerate();
    let biased: Vec<f32> = biased.map(|(at, x)| x + 3.0 + (at % 24) as f32).collect();
    (q, k(&biased, [2, 7, 2, 12]))
}

#[test]
fn smoothing_leaves_o_and_its_correction_restores_lse() {
    let (q, k) = biased();
    let scale = 0.3;
    let (o, lse) = attention(&q, &k, scale);
    let check = |q: &Operand, k: &Operand, mean: &KMean| {
        let (smooth_o, smooth_lse) = attention(q, k, scale);
        let mut corrected: Vec<f32> = smooth_lse.iter().map(|&x| x as f32).collect();
        let shifts = lse.iter().zip(&smooth_lse).map(|(a, b)| (a - b).abs());
        assert!(shifts.fold(0.0, f64::max) > 1.0);
        mean.correct_lse(&mut corrected, q, scale).unwrap();
        for (a, b) in o.iter().zip(smooth_o) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
        for (a, &b) in lse.iter().zip(&corrected) {
            assert!((a - f64::from(b)).abs() < 1e-4, "{a} {b}");
        }
    };
    let (smooth, mean) = k.clone().smooth().unwrap();
    for (column, &mean) in mean.values()[..12].iter().enumerate() {
        let keys = rows(&k, 0, 0);
        let expected = keys.iter().map(|k| k[column]).sum::<f32>() / 7.0;
        assert!((mean - expected).abs() < 1e-5);
    }
    check(&q, &smooth, &mean);
    // Rotated first, and smoothed then.
    let q = q.hadamard(Some(4)).unwrap();
    let (smooth, mean) = k.hadamard(Some(4)).unwrap().smooth().unwrap();
    check(&q, &smooth, &mean);
}

#[test]
fn a_row_that_sees_no_key_keeps_its_lse_and_other_sizes_are_refused() {
    let (q, k) = biased();
    let (_, mean) = k.smooth().unwrap();
    let mut lse = [f32::NEG_INFINITY; 2 * 4 * 5];
    mean.correct_lse(&mut lse, &q, 1.0).unwrap();
    assert_eq!(lse, [f32::NEG_INFINITY; 40]);
    assert_eq!(
        mean.correct_lse(&mut lse[1..], &q, 1.0),
        Err(QuantizeError::LseCount {
            given: 39,
            needed: 40
        })
    );
    for (shape, heads_k) in [([1, 10, 4, 12], 2), ([2, 5, 4, 12], 4), ([2, 10, 4, 6], 2)] {
        let other = self::q(&numbers(480, 1), shape, heads_k);
        let refused = mean.correct_lse(&mut [0.0; 80], &other, 1.0);
        let refused = matches!(refused, Err(QuantizeError::MeanShape { .. }));
        assert!(refused, "{shape:?}");
    }
}

/// Shapes, and numbers of many magnitudes.
fn any_operand() -> impl Strategy<Value = Operand> {
    let seqlens = prop_oneof![3 => 1..4usize, 1 => 128..131usize];
    let sizes = (1..3usize, seqlens, 1..3usize, 1..3usize, 1..9usize);
    sizes.prop_flat_map(|(batch, seqlen, heads_k, group, head_dim)| {
        let shape = [batch, seqlen, heads_k * group, head_dim];
        let number = (-1f32..1.0, -60..60i32).prop_map(|(x, power)| x * 2f32.powi(power));
        let n = shape.iter().product::<usize>();
        let values = proptest::collection::vec(number, n);
        values.prop_map(move |values| q(&values, shape, heads_k))
    })
}

proptest! {
    /// The error of a number is at most 1/16 of it, or half of the least number above 0; amax becomes 448, if its scale is not the least one, and nothing becomes more.
    #[test]
    fn the_error_is_that_of_three_bits(operand in any_operand(), per in 0..PER.len()) {
        let quantized = operand.quantize(PER[per]);
        let [batch, seqlen, heads, head_dim] = operand.shape();
        let heads_k = operand.amax(Fp8::PerHead).len() / batch;
        let least = 2f64.powi(-10);
        for (at, (&x, y)) in operand.values().iter().zip(quantized.dequantize()).enumerate() {
            let (row, head) = (at / head_dim / heads, at / head_dim % heads);
            let (entry, row, head_k) = (row / seqlen, row % seqlen, head / (heads / heads_k));
            let scale = match PER[per] {
                Fp8::PerTensor => 0,
                Fp8::PerHead => entry * heads_k + head_k,
                Fp8::PerBlock => (entry * heads_k + head_k) * seqlen.div_ceil(128) + row / 128,
            };
            let descale = f64::from(quantized.descale()[scale]);
            let allowed = (f64::from(x).abs() / 16.0).max(least * descale) * (1.0 + 1e-6);
            prop_assert!((f64::from(x) - f64::from(y)).abs() <= allowed, "{x} {y}");
        }
        for (amax, descale) in operand.amax(PER[per]).iter().zip(quantized.descale()) {
            let has_least = *amax <= 448.0 * 2f32.powi(-60);
            prop_assert!(has_least || (amax / descale - 448.0).abs() < 1e-3);
        }
    }

    /// What was quantised is quantised to the same numbers.
    #[test]
    fn quantising_twice_changes_nothing(operand in any_operand(), per in 0..PER.len()) {
        let once = operand.quantize(PER[per]);
        let heads_k = operand.amax(Fp8::PerHead).len() / operand.shape()[0];
        let again = q(&once.dequantize(), operand.shape(), heads_k);
        let again = again.quantize_with(once.descale()).unwrap();
        prop_assert_eq!(again.values(), once.values());
    }

    /// q · k is what it was, whatever the head_dim and the seed.
    #[test]
    fn hadamard_leaves_products(head_dim in 1..200usize, seed in any::<u64>(), with in any::<bool>()) {
        let rows = numbers(2 * head_dim, seed);
        let (a, b) = rows.split_at(head_dim);
        let seed = with.then_some(seed);
        let shape = [1, 1, 1, head_dim];
        let rotated_q = q(a, shape, 1).hadamard(seed).unwrap();
        let rotated_k = k(b, shape).hadamard(seed).unwrap();
        let bound = 1e-6 * (dot(a, a) * dot(b, b)).sqrt();
        prop_assert!((dot(a, b) - dot(rotated_q.values(), rotated_k.values())).abs() <= bound);
    }
}
