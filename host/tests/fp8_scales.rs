//! Calls with q, k and v in 8 bits: what is refused before any memory is touched, and gradients.

use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::{
    Attention, Device, Dtype, Error, Fp8, Fp8Sums, Gradients, Inputs, OutputGradients, Outputs,
    Pass, Problem, Saved, Tensor, TensorMut,
};
use float8::F8E4M3;

/// A call with these scales, and what it left in o.
fn call(scales: [&[f32]; 3]) -> (Result<(), Error>, Vec<f32>) {
    let problem = Problem::builder(Dtype::F32)
        .batch(2)
        .seqlen(3)
        .heads(1)
        .head_dim(16)
        .fp8(Fp8::PerHead)
        .build()
        .unwrap();
    let ones = [F8E4M3::from_f32(1.0); 2 * 3 * 16];
    let given = Tensor::bshd(&ones, problem.shape_q()).unwrap();
    let inputs = Inputs::new(&given, &given, &given)
        .q_descale(scales[0])
        .k_descale(scales[1])
        .v_descale(scales[2]);
    let (mut o, mut lse) = (vec![7.0; ones.len()], [0.0; 6]);
    let of_o = TensorMut::bshd(&mut o, problem.shape_o()).unwrap();
    let ran = Attention::new(&Device::cpu(), problem)
        .unwrap()
        .forward(&inputs, &mut Outputs::new(of_o, &mut lse));
    (ran.map(drop), o)
}

#[test]
fn scales_that_are_none_are_refused_by_name() {
    let fine = [0.5, 2.0];
    let (ran, o) = call([&fine; 3]);
    ran.unwrap();
    assert_eq!(o[0], 0.5);
    assert_eq!(o[3 * 16], 2.0);
    let arguments = [Argument::QDescale, Argument::KDescale, Argument::VDescale];
    for (of, argument) in arguments.into_iter().enumerate() {
        for wrong in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY] {
            let spoilt = [0.5, wrong];
            let mut scales: [&[f32]; 3] = [&fine; 3];
            scales[of] = &spoilt;
            let (ran, o) = call(scales);
            let error = ran.unwrap_err();
            assert!(
                matches!(error, Error::Problem(ProblemError::Descale { argument: named, at: 1, .. }) if named == argument),
                "{error}"
            );
            let words = error.to_string();
            assert!(
                words.contains(&format!("{wrong} at 1; allowed: finite numbers above 0")),
                "{words}"
            );
            assert!(o.iter().all(|&x| x == 7.0));
        }
    }
}

/// A problem with scales of blocks: two of queries, three of keys.
fn of_blocks() -> Problem {
    let problem = Problem::builder(Dtype::F32).seqlen_q(129).seqlen_k(300);
    let problem = problem.heads_q(2).heads_k(1).head_dim(16);
    problem.fp8(Fp8::PerBlock).build().unwrap()
}

/// o of q and k of 1 and v of 1 with these scales.
fn call_of_blocks(scales: [&[f32]; 3]) -> Result<Vec<f32>, Error> {
    let problem = of_blocks();
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let ones = vec![F8E4M3::from_f32(1.0); 300 * 16];
    let q = Tensor::bshd(&ones[..129 * 2 * 16], of_q).unwrap();
    let k = Tensor::bshd(&ones, of_k).unwrap();
    let inputs = Inputs::new(&q, &k, &k)
        .q_descale(scales[0])
        .k_descale(scales[1])
        .v_descale(scales[2]);
    let (mut o, mut lse) = (vec![7.0; 129 * 2 * 16], vec![0.0; 2 * 129]);
    let of_o = TensorMut::bshd(&mut o, of_q).unwrap();
    Attention::new(&Device::cpu(), problem)
        .unwrap()
        .forward(&inputs, &mut Outputs::new(of_o, &mut lse))?;
    Ok(o)
}

#[test]
fn blocks_of_rows_have_their_own_scales() {
    // 44 keys of the last block stand for 0.25 · 1 and 2 · 1, the others for 1 and 0.
    let least = f32::MIN_POSITIVE;
    let o = call_of_blocks([&[1.0, 4.0], &[1.0, 1.0, 0.25], &[least, least, 2.0]]).unwrap();
    // A score is the scale of q times that of k times 16 / √16.
    let expected = |q: f32| {
        let [others, last] = [1.0f32, 0.25].map(|k| (4.0 * q * k - 4.0 * q).exp());
        2.0 * 44.0 * last / (256.0 * others + 44.0 * last)
    };
    for (row, o) in o.chunks_exact(2 * 16).enumerate() {
        let expected = expected(if row < 128 { 1.0 } else { 4.0 });
        for &o in o {
            assert!(
                (o - expected).abs() <= 1e-5 * expected,
                "{row}: {o} {expected}"
            );
        }
    }
}

#[test]
fn another_number_of_blocks_is_refused() {
    let fine: [&[f32]; 3] = [&[1.0; 2], &[1.0; 3], &[1.0; 3]];
    call_of_blocks(fine).unwrap();
    for of in 0..3 {
        for n in [0, 1, 4] {
            let mut scales = fine;
            scales[of] = &[1.0; 4][..n];
            let error = call_of_blocks(scales).unwrap_err();
            let name = ["q_descale", "k_descale", "v_descale"][of];
            assert!(error.to_string().starts_with(name), "{error}");
        }
        for wrong in [0.0, -1.0, f32::NAN] {
            let spoilt = [1.0, wrong, 1.0];
            let mut scales = fine;
            scales[of] = &spoilt[..fine[of].len()];
            let error = call_of_blocks(scales).unwrap_err();
            assert!(
                matches!(error, Error::Problem(ProblemError::Descale { at: 1, .. })),
                "{error}"
            );
        }
    }
}

/// A block's scale has no place in one sum over all keys.
#[test]
fn sums_of_one_level_are_refused_beside_blocks() {
    let problem = of_blocks().to_builder().fp8_sums(Fp8Sums::OneLevel);
    let refused = Attention::new(&Device::cpu(), problem.build().unwrap());
    let error = refused.map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Problem(ProblemError::Fp8Sums)),
        "{error}"
    );
}

#[test]
fn gradients_are_those_of_what_the_numbers_stand_for() {
    let problem = Problem::builder(Dtype::F32)
        .seqlen_q(1)
        .seqlen_k(2)
        .heads(1)
        .head_dim(16)
        .fp8(Fp8::PerTensor)
        .build()
        .unwrap();
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    // Both keys are alike: each weighs a half. The values stand for 1.5 and 2.5.
    let codes = |value: f32, n| vec![F8E4M3::from_f32(value); n];
    let (q, k) = (codes(1.0, 16), codes(1.0, 32));
    let v = [codes(3.0, 16), codes(5.0, 16)].concat();
    let given =
        [(&q, of_q), (&k, of_k), (&v, of_k)].map(|(x, shape)| Tensor::bshd(x, shape).unwrap());
    let inputs = Inputs::new(&given[0], &given[1], &given[2])
        .q_descale(&[2f32])
        .k_descale(&[1f32])
        .v_descale(&[0.5f32]);
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    let (o, lse, d_o) = ([2f32; 16], [8.0 + 2f32.ln()], [1f32; 16]);
    let (o, d_o) = (
        Tensor::bshd(&o, of_q).unwrap(),
        Tensor::bshd(&d_o, of_q).unwrap(),
    );
    let (mut d_q, mut d_k, mut d_v) = (vec![7f32; 16], vec![7f32; 32], vec![7f32; 32]);
    let mut gradients = Gradients::new(
        TensorMut::bshd(&mut d_q, of_q).unwrap(),
        TensorMut::bshd(&mut d_k, of_k).unwrap(),
        TensorMut::bshd(&mut d_v, of_k).unwrap(),
    );
    let saved = Saved::new(&o, &lse);
    let ran = attention
        .backward(&inputs, &saved, &OutputGradients::new(&d_o), &mut gradients)
        .unwrap();
    assert!(ran.extra_bytes >= 4 * (16 + 32 + 32));
    // dP − Δ is −8 and 8, each weighs a half, and softmax_scale is a quarter: dK = ∓4 · q / 4, and q stands for 2.
    let close = |x: f32, expected: f32| assert!((x - expected).abs() < 1e-4, "{x}, {expected}");
    d_q.iter().for_each(|&x| close(x, 0.0));
    d_v.iter().for_each(|&x| close(x, 0.5));
    d_k[..16].iter().for_each(|&x| close(x, -2.0));
    d_k[16..].iter().for_each(|&x| close(x, 2.0));
    let plan = attention.explain(Pass::Backward).unwrap().to_string();
    assert!(plan.contains("taken out of 8 bits"), "{plan}");
}
