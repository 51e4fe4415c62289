//! Precision of f32 tensors: which problems take which, and what is said of it.

use ferroflash::error::{PlanError, ProblemError};
use ferroflash::plan::{DeviceInfo, Outcome, Reason, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{
    Algorithm, Attention, Backend, Device, Dtype, Fp8Kv, Pass, Precision, Problem, ProblemBuilder,
};

fn problem(dtype: Dtype, precision: Precision) -> Problem {
    let builder = Problem::builder(dtype).seqlen(70).heads(1).head_dim(64);
    builder.precision(precision).build().unwrap()
}

#[test]
fn products_of_16_bit_types_are_exact_anyway() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let refused = without_tensors(
            &problem(dtype, Precision::Full),
            Pass::Forward,
            Location::Host,
        );
        let needed = ProblemError::Precision {
            given: Precision::Full,
            dtype,
        };
        assert_eq!(refused.unwrap_err(), needed);
        let message =
            format!("precision is full; allowed for {dtype}, whose products are exact: tensor");
        assert_eq!(needed.to_string(), message);
        let tensor = problem(dtype, Precision::Tensor);
        assert!(without_tensors(&tensor, Pass::Forward, Location::Host).is_ok());
    }
}

#[test]
fn a_plan_says_which_precision_runs() {
    let text = |precision, backend, place| {
        let problem = problem(Dtype::F32, precision);
        let checked = without_tensors(&problem, Pass::Forward, place).unwrap();
        plan(&checked, &DeviceInfo::a100(), backend, None)
            .unwrap()
            .to_string()
    };
    let gpu = |precision| text(precision, Backend::Cuda, Location::Cuda(0));
    let (tensor, full) = (gpu(Precision::Tensor), gpu(Precision::Full));
    assert!(tensor.contains("f32 (tf32) q") && tensor.contains("forward_sm80_f32_d64 plain"));
    assert!(full.contains("f32 (3xTF32) q") && full.contains("d64 full_precision"));
    for precision in [Precision::Tensor, Precision::Full] {
        let cpu = text(precision, Backend::Cpu, Location::Host);
        assert!(cpu.contains("problem   f32 q"), "{cpu}");
    }
}

#[test]
fn it_is_read_as_it_is_displayed() {
    for precision in [Precision::Tensor, Precision::Full] {
        assert_eq!(precision.to_string().parse(), Ok(precision));
    }
    let refused = "double".parse::<Precision>();
    assert_eq!(refused.unwrap_err(), "double: it must be tensor or full");
    assert_eq!(Precision::default(), Precision::Tensor);
}

#[test]
fn a_builder_made_of_a_problem_keeps_it() {
    let full = problem(Dtype::F32, Precision::Full);
    assert_eq!(full.to_builder().build().unwrap(), full);
    assert_ne!(full, problem(Dtype::F32, Precision::Tensor));
    assert!(Attention::new(&Device::cpu(), full).is_ok());
}

/// What takes f32, and what else, may still not take both: the reason names both.
#[test]
fn a_reason_names_f32_and_what_it_cannot_be_beside() {
    let of = |problem: ProblemBuilder, beside| {
        let problem = problem.build().unwrap();
        let checked = without_tensors(&problem, Pass::Forward, Location::Cuda(0)).unwrap();
        let device = DeviceInfo::h200();
        let refused = plan(&checked, &device, Backend::Cuda, Some(Algorithm::Flash2));
        let given = Dtype::F32;
        let reason = Reason::DtypeBeside { given, beside };
        let message =
            format!("flash2    cannot run: no kernel of it takes f32 together with {beside}");
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains(&message), "{refused}");
        let PlanError::NoCandidate { candidates, .. } = refused else {
            panic!("{refused}");
        };
        let mut outcomes = candidates.into_iter().map(|candidate| candidate.outcome);
        assert!(outcomes.any(|outcome| outcome == Outcome::Refused(reason.clone())));
    };
    let builder = || {
        Problem::builder(Dtype::F32)
            .seqlen_q(1)
            .seqlen_k(700)
            .heads(2)
            .head_dim(64)
    };
    of(builder().split_kv(128), "split_kv");
    of(
        builder().fp8_kv(Fp8Kv::PerSequence),
        "keys and values in e4m3",
    );
}
