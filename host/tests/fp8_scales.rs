//! Calls with q, k and v in 8 bits that are refused before any memory is touched.

use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::{
    Attention, Device, Dtype, Error, Fp8, Inputs, Outputs, Problem, Tensor, TensorMut,
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
