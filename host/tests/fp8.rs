//! Keys and values in 8 bits: what makes no sense is refused, and says why; what they stand for.

use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::error::{Error, PlanError, ProblemError};
use ferroflash::plan::{DeviceInfo, Outcome, Reason, plan};
use ferroflash::tensor::{Location, VectorDescription};
use ferroflash::validate::{check, sizes, without_tensors};
use ferroflash::{
    Algorithm, Attention, BlockMask, Device, Dtype, Fp8Kv, Inputs, Outputs, Pages, Pass, Problem,
    ProblemBuilder, Tensor, TensorMut,
};
use float8::F8E4M3;

/// Two sequences of up to ten keys, of two heads.
fn problem(dtype: Dtype) -> ProblemBuilder {
    Problem::builder(dtype)
        .batch(2)
        .seqlen_q(1)
        .seqlen_k(10)
        .heads(2)
        .head_dim(64)
        .fp8_kv(Fp8Kv::PerSequence)
}

#[test]
fn there_is_a_scale_for_each_sequence_or_page_and_head() {
    let scales = |problem: ProblemBuilder| {
        let problem = problem.build().unwrap();
        let checked = without_tensors(&problem, Pass::Forward, Location::Host).unwrap();
        [Argument::KDescale, Argument::VDescale].map(|argument| {
            let scales = checked.arguments().vector(argument).unwrap();
            assert_eq!(scales.dtype, ScalarType::F32);
            scales.n_elems
        })
    };
    assert_eq!(scales(problem(Dtype::Bf16)), [4, 4]);
    let paged = problem(Dtype::Bf16).pages(Pages::new(7, 4));
    assert_eq!(scales(paged), [4, 4]);
    assert_eq!(scales(paged.fp8_kv(Fp8Kv::PerPage)), [14, 14]);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let with = |what| Err(ProblemError::Fp8KvWith { what });
    let refused = |problem: ProblemBuilder| sizes(&problem.build().unwrap());
    let problem = problem(Dtype::Bf16);
    assert_eq!(refused(problem), Ok(()));
    assert_eq!(refused(problem.packed_k(9)), with("packed keys"));
    let masked = problem.block_mask(BlockMask::new(128, 128));
    assert_eq!(refused(masked), with("a block mask"));
    assert_eq!(
        refused(problem.fp8_kv(Fp8Kv::PerPage)),
        with("a scale for each page, without pages,")
    );
    for pass in [Pass::Backward, Pass::ForwardWithWeights] {
        let outcome = without_tensors(&problem.build().unwrap(), pass, Location::Host);
        let expected = with("the backward pass or the weights");
        assert_eq!(outcome.map(|_| ()), expected);
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let problem = problem(Dtype::Bf16).build().unwrap();
    let fitting = without_tensors(&problem, Pass::Forward, Location::Host).unwrap();
    let given = |arguments| check(&problem, Pass::Forward, arguments).map(|_| ());
    let argument = Argument::KDescale;
    let missing = fitting.arguments().without(argument);
    assert_eq!(given(missing), Err(ProblemError::Missing { argument }));
    let scales = |n, dtype| VectorDescription::unplaced(n, dtype, Location::Host);
    let short = fitting
        .arguments()
        .with(argument, scales(3, ScalarType::F32));
    let (n, needed) = (3, 4);
    let expected = ProblemError::ElementCount {
        argument,
        given: n,
        needed,
    };
    assert_eq!(given(short), Err(expected));
    // Keys of the queries' type.
    let mut keys = *fitting.arguments().tensor(Argument::K).unwrap();
    assert_eq!(keys.dtype, ScalarType::E4m3);
    keys.dtype = Dtype::Bf16.into();
    let expected = ProblemError::DtypeMismatch {
        argument: Argument::K,
        given: Dtype::Bf16.into(),
        needed: ScalarType::E4m3,
    };
    let of_16_bits = fitting.arguments().with(Argument::K, keys);
    assert_eq!(given(of_16_bits), Err(expected));
    // Scales of keys that have none.
    let plain = Problem::builder(Dtype::Bf16)
        .seqlen(4)
        .heads(1)
        .head_dim(64);
    let plain = plain.build().unwrap();
    let fitting = without_tensors(&plain, Pass::Forward, Location::Host).unwrap();
    let arguments = fitting
        .arguments()
        .with(argument, scales(1, ScalarType::F32));
    assert_eq!(
        check(&plain, Pass::Forward, arguments).map(|_| ()),
        Err(ProblemError::NotTaken { argument })
    );
}

/// Why an algorithm does not run on a device.
fn refusal(problem: ProblemBuilder, device: &DeviceInfo, algorithm: Algorithm) -> Option<Reason> {
    let problem = problem.build().unwrap();
    let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
    let candidates = match plan(&checked, device, ferroflash::Backend::Cuda, None) {
        Ok(plan) => plan.candidates,
        Err(PlanError::NoCandidate { candidates, .. }) => candidates,
        Err(error) => panic!("{error}"),
    };
    let mut candidates = candidates.into_iter();
    let candidate = candidates.find(|candidate| candidate.algorithm == algorithm)?;
    match candidate.outcome {
        Outcome::Refused(reason) => Some(reason),
        _ => None,
    }
}

#[test]
fn only_flash2_reads_8_bits_and_says_what_it_needs() {
    let h200 = DeviceInfo::h200();
    let of = |problem, algorithm| refusal(problem, &h200, algorithm);
    let problem = problem(Dtype::F16);
    assert_eq!(of(problem, Algorithm::Flash2), None);
    for algorithm in [Algorithm::Flash3, Algorithm::Standard] {
        assert_eq!(of(problem, algorithm), Some(Reason::Fp8Kv));
    }
    assert_eq!(
        of(problem.head_dim(72), Algorithm::Flash2),
        Some(Reason::HeadDimMultiple {
            given: 72,
            multiple: 16,
            most: 128
        })
    );
    assert_eq!(
        of(problem.packed_q(2), Algorithm::Flash2),
        Some(Reason::PackedQueries)
    );
    let ampere = DeviceInfo {
        compute_capability: (8, 6),
        ..h200.clone()
    };
    let expected = Reason::ComputeCapability {
        given: (8, 6),
        needed: (8, 9),
    };
    assert_eq!(refusal(problem, &ampere, Algorithm::Flash2), Some(expected));
}

#[test]
fn elements_stand_for_themselves_times_the_scale_of_their_page_and_head() -> Result<(), Error> {
    // One query sees one key, so o is its value: page 2 of a pool of pages of one row.
    let problem = Problem::builder(Dtype::F32)
        .seqlen_q(1)
        .seqlen_k(1)
        .heads(2)
        .head_dim(1)
        .pages(Pages::new(3, 1))
        .fp8_kv(Fp8Kv::PerPage)
        .softmax_scale(1.0)
        .build()?;
    let q = [1f32, 2.0];
    let k = [0.0, 0.0, 0.0, 0.0, 3.0, 0.5].map(F8E4M3::from_f32);
    let v = [0.0, 0.0, 0.0, 0.0, 7.0, -448.0].map(F8E4M3::from_f32);
    let (mut scales_k, mut scales_v) = ([f32::NAN; 6], [f32::NAN; 6]);
    scales_k[4..].copy_from_slice(&[10.0, 100.0]);
    scales_v[4..].copy_from_slice(&[0.5, 2.0]);
    let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
    let inputs = Inputs::new(
        &Tensor::bshd(&q, of_q)?,
        &Tensor::bshd(&k, of_k)?,
        &Tensor::bshd(&v, of_k)?,
    )
    .page_table(&[2])
    .k_descale(&scales_k)
    .v_descale(&scales_v);
    let (mut o, mut lse) = ([0f32; 2], [0f32; 2]);
    let attention = Attention::new(&Device::cpu(), problem)?;
    attention.forward(
        &inputs,
        &mut Outputs::new(TensorMut::bshd(&mut o, of_q)?, &mut lse),
    )?;
    assert_eq!((o, lse), ([3.5, -896.0], [30.0, 100.0]));
    Ok(())
}

#[test]
fn every_number_of_8_bits_is_what_the_format_says() {
    for bits in 0..=u8::MAX {
        let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7) / 8.0);
        let magnitude = match exponent {
            0 => mantissa * 2f32.powi(-6),
            _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
        };
        let expected = if bits >= 128 { -magnitude } else { magnitude };
        let found = F8E4M3::from_bits(bits).to_f32();
        match bits & 127 {
            127 => assert!(found.is_nan()),
            _ => assert_eq!(found, expected, "{bits}"),
        }
    }
}
