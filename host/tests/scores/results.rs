//! Results of the CPU beside f64.

use ferroflash::{BlockMask, Device, Mask, ProblemBuilder, ReadTensor, Score};
use half::{bf16, f16};

use super::naive::{At, Edited, Given, Sizes, compare, computed, data, expected, values};

fn padded(heads_q: usize, heads_k: usize, n_q: usize, n_k: usize) -> Sizes {
    Sizes {
        lens_q: vec![n_q; 2],
        lens_k: vec![n_k; 2],
        heads_q,
        heads_k,
        head_dim: 16,
    }
}

fn check(sizes: &Sizes, problem: ProblemBuilder, given: Given, edited: Edited) {
    let problem = problem.build().unwrap();
    let data = data(sizes);
    let right = expected(sizes, &data, problem.scale().into(), edited);
    let results = computed(&Device::cpu(), problem, &data, |inputs| given.to(inputs));
    compare(sizes, &problem, &results, &right);
}

#[test]
fn soft_caps_have_gradients() {
    let capped = Score::new(|s, at| {
        let cap = at.f32("cap");
        (s / cap).tanh_full() * cap
    })
    .unwrap();
    let edited = |s: f64, at: At| {
        let t = (s / 0.5).tanh();
        (at.k <= at.q + at.seqlen_k - at.seqlen_q).then_some((t * 0.5, 1.0 - t * t))
    };
    for (heads_q, heads_k, n_q, n_k) in [(2, 2, 40, 40), (4, 2, 33, 70), (3, 1, 1, 150)] {
        let sizes = padded(heads_q, heads_k, n_q, n_k);
        let problem = sizes.padded().mask(Mask::Causal).score(capped);
        let given = Given {
            params: &[("cap", 0.5.into())],
            ..Given::default()
        };
        check(&sizes, problem.softmax_scale(0.7), given, &edited);
    }
}

#[test]
fn tensors_of_every_type_are_read_by_their_strides() {
    let biased = Score::new(|s, at| {
        let bias = at.tensor_f32("bias", [at.batch, at.head, at.q, at.k]);
        let of_key = at.tensor_f16("of_key", [at.kv_head, at.k]);
        s + bias + of_key * at.tensor_bf16("factors", [at.head])
    })
    .unwrap();
    let documents = Mask::new(|at| {
        let document = |place| at.tensor_i32("documents", [at.batch, place]);
        document(at.q).eq(document(at.k))
    })
    .unwrap();
    let sizes = padded(4, 2, 37, 37);
    let bias = values(4 * 37 * 37, 7);
    let of_key: Vec<f16> = values(2 * 37, 8).into_iter().map(f16::from_f32).collect();
    let factors = [0.5, -1.0, 2.0, 0.25].map(bf16::from_f32);
    let documents_of: Vec<i32> = (0..2 * 37).map(|i| i % 37 / 9).collect();
    let edited = |s: f64, at: At| {
        let (q, k) = (at.q as usize, at.k as usize);
        let of_key = of_key[at.kv_head + 2 * k].to_f64() * factors[at.head].to_f64();
        let bias = f64::from(bias[(at.head * 37 + q) * 37 + k]);
        let document = |i: usize| documents_of[at.batch * 37 + i];
        (document(q) == document(k)).then_some((s + bias + of_key, 1.0))
    };
    let problem = sizes.padded().score(biased).mask_expression(documents);
    let given = Given {
        tensors: &[
            ("documents", ReadTensor::new(&documents_of, [2, 37])),
            ("factors", ReadTensor::new(&factors, [4])),
            (
                "bias",
                ReadTensor::new(&bias, [2, 4, 37, 37]).strides([0, 37 * 37, 37, 1]),
            ),
            ("of_key", ReadTensor::new(&of_key, [2, 37]).strides([1, 2])),
        ],
        ..Given::default()
    };
    check(&sizes, problem, given, &edited);
}

#[test]
fn places_count_from_the_beginning_of_a_sequence() {
    let sizes = Sizes {
        lens_q: vec![3, 0, 40, 17],
        lens_k: vec![5, 9, 33, 64],
        heads_q: 4,
        heads_k: 2,
        head_dim: 8,
    };
    let score = Score::new(|s, at| {
        let distance = (at.q + at.seqlen_k - at.seqlen_q - at.k).to_f32();
        s * at.tensor_f32("factors", [at.batch]) - distance * at.tensor_f32("slopes", [at.head])
    })
    .unwrap();
    // Some rows see nothing.
    let mask = Mask::new(|at| (at.k % 3).eq(at.q % 4)).unwrap();
    let (factors, slopes) = ([0.5f32, 1.0, -0.5, 2.0], [0.25f32, 0.125, 0.0625, 0.03125]);
    let edited = |s: f64, at: At| {
        let distance = (at.q + at.seqlen_k - at.seqlen_q - at.k) as f64;
        let factor = f64::from(factors[at.batch]);
        let s = s * factor - distance * f64::from(slopes[at.head]);
        (at.k % 3 == at.q % 4).then_some((s, factor))
    };
    let problem = sizes.packed().score(score).mask_expression(mask);
    let problem = problem.build().unwrap();
    let data = data(&sizes);
    let right = expected(&sizes, &data, problem.scale().into(), &edited);
    assert!(right.lse.contains(&f64::NEG_INFINITY));
    let given = Given {
        tensors: &[
            ("factors", ReadTensor::new(&factors, [4])),
            ("slopes", ReadTensor::new(&slopes, [4])),
        ],
        ..Given::default()
    };
    let results = computed(&Device::cpu(), problem, &data, |inputs| {
        let inputs = given.to(inputs);
        inputs
            .cu_seqlens_q(&[0, 3, 3, 43, 60])
            .cu_seqlens_k(&[0, 5, 14, 47, 111])
    });
    compare(&sizes, &problem, &results, &right);
}

#[test]
fn a_block_mask_and_a_mask_hide_beside_an_expression() {
    let sizes = Sizes {
        lens_q: vec![200],
        lens_k: vec![200],
        heads_q: 2,
        heads_k: 1,
        head_dim: 4,
    };
    // It would show what is hidden, if it came last.
    let score = Score::new(|s, _| s.max(-2.0f32)).unwrap();
    let map = [2u8, 0, 1, 1];
    let edited = |s: f64, at: At| {
        let visible = match map[(at.q / 128 * 2 + at.k / 128) as usize] {
            0 => false,
            1 => at.k <= at.q,
            _ => true,
        };
        visible.then_some((s.max(-2.0), if s > -2.0 { 1.0 } else { 0.0 }))
    };
    let problem = sizes.padded().mask(Mask::Causal).score(score);
    let problem = problem
        .block_mask(BlockMask::new(128, 128))
        .build()
        .unwrap();
    let data = data(&sizes);
    let right = expected(&sizes, &data, problem.scale().into(), &edited);
    let results = computed(&Device::cpu(), problem, &data, |inputs| {
        inputs.block_mask(&map)
    });
    compare(&sizes, &problem, &results, &right);
}

#[test]
fn a_mask_is_as_exact_as_one_of_the_problem() {
    let sizes = Sizes {
        lens_q: vec![33; 2],
        lens_k: vec![257; 2],
        heads_q: 3,
        heads_k: 1,
        head_dim: 96,
    };
    let causal = Mask::new(|at| at.k.le(at.q + at.seqlen_k - at.seqlen_q)).unwrap();
    let mut data = data(&sizes);
    // Large scores, which rise along the keys.
    for (at, k) in data[1].iter_mut().enumerate() {
        *k = *k * 0.1 + (at / 96 % 257) as f32 / 32.0;
    }
    data[0].iter_mut().for_each(|q| *q = q.abs());
    let results = |problem: ProblemBuilder| {
        let problem = problem.build().unwrap();
        computed(&Device::cpu(), problem, &data, |inputs| inputs)
    };
    let by_mask = results(sizes.padded().mask(Mask::Causal));
    let by_expression = results(sizes.padded().mask_expression(causal));
    let right = expected(&sizes, &data, 1.0 / 96f64.sqrt(), &|s, at: At| {
        (at.k <= at.q + at.seqlen_k - at.seqlen_q).then_some((s, 1.0))
    });
    let worst = |o: &[f64]| {
        let errors = o.iter().zip(&right.o).map(|(o, right)| (o - right).abs());
        errors.fold(0.0, f64::max)
    };
    let (by_mask, by_expression) = (worst(&by_mask.o), worst(&by_expression.o));
    assert!(
        by_expression <= 1.1 * by_mask,
        "{by_expression}, not {by_mask}"
    );
}
