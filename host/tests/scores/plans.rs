//! Which kernels serve a problem with expressions, and how plans name them.

use ferroflash::error::PlanError;
use ferroflash::plan::{Algorithm, Backend, DeviceInfo, Plan, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Dtype, Fp8Kv, Mask, Pass, Problem, ProblemBuilder, Score};
use ferroflash_kernels::params::Params;
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::TileShape;

fn builder() -> ProblemBuilder {
    Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen(4096)
        .heads_q(16)
        .heads_k(2)
        .head_dim(128)
}

fn capped() -> Score {
    Score::new(|s, at| (s / at.f32("cap")).tanh() * at.f32("cap")).unwrap()
}

fn planned(
    builder: ProblemBuilder,
    device: &DeviceInfo,
    asked: Option<Algorithm>,
) -> Result<Plan, PlanError> {
    planned_pass(builder, Pass::Forward, device, asked)
}

fn planned_pass(
    builder: ProblemBuilder,
    pass: Pass,
    device: &DeviceInfo,
    asked: Option<Algorithm>,
) -> Result<Plan, PlanError> {
    let problem = builder.build().unwrap();
    let checked = without_tensors(&problem, pass, Location::Host).unwrap();
    plan(&checked, device, Backend::Cuda, asked)
}

#[test]
fn plans_name_expressions() {
    let mask = Mask::new(|at| at.k.lt(at.i32("end"))).unwrap();
    let of_both = builder().score(capped()).mask_expression(mask);
    for algorithm in [Algorithm::Flash3, Algorithm::Flash2, Algorithm::Standard] {
        let plan = planned(of_both, &DeviceInfo::h200(), Some(algorithm)).unwrap();
        let edited = plan.launches.iter().filter(|launch| launch.edit.is_some());
        let edited: Vec<_> = edited.collect();
        assert_eq!(edited.len(), 1, "{plan}");
        assert!(edited[0].spec.has(Constant::Score));
        let text = plan.to_string();
        assert!(
            text.contains(", score cap * tanh(score / cap), mask k < end"),
            "{text}"
        );
    }
}

#[test]
fn tiles_are_of_one_head() {
    for seqlen_q in [1, 16, 64, 4096] {
        let problem = builder().seqlen_q(seqlen_q);
        let plan = planned(problem.score(capped()), &DeviceInfo::h200(), None).unwrap();
        assert_eq!(plan.algorithm, Algorithm::Flash3, "{plan}");
        for launch in &plan.launches {
            if let Params::TmaForward(params) = launch.params {
                assert_eq!(params.pack_gqa_log2, 0);
                assert_ne!(launch.variant.tiles, TileShape::Grouped);
            }
        }
    }
}

#[test]
fn a_kernel_without_a_place_for_expressions_is_refused() {
    let of_few = builder().seqlen_q(1).fp8_kv(Fp8Kv::PerSequence);
    let refused = planned(of_few.score(capped()), &DeviceInfo::h200(), None).unwrap_err();
    let names_both =
        "edit scores or masks by an expression together with keys and values in 8 bits";
    assert!(refused.to_string().contains(names_both), "{refused}");
    let latent = builder()
        .heads_k(1)
        .seqlen_q(1)
        .head_dim(576)
        .head_dim_v(512);
    let latent = latent.values_in_keys();
    assert!(planned(latent, &DeviceInfo::h200(), None).is_ok());
    let refused = planned(latent.score(capped()), &DeviceInfo::h200(), None).unwrap_err();
    let names_both = "edit scores or masks by an expression together with values in the keys";
    assert!(refused.to_string().contains(names_both), "{refused}");
}

#[test]
fn keys_are_divided_under_an_expression() {
    let problem = builder().seqlen_q(1).seqlen_k(1 << 16).score(capped());
    let plan = planned(problem, &DeviceInfo::h200(), None).unwrap();
    assert!(plan.to_string().contains("splits of"), "{plan}");
}

#[test]
fn only_what_changes_gradients_is_a_gradient() {
    let biased = Score::new(|s, at| s + at.tensor_f32("bias", [at.q, at.k])).unwrap();
    for (score, has_gradient) in [(capped(), true), (biased, false)] {
        for (algorithm, n_edited) in [
            (Algorithm::Flash3, 1),
            (Algorithm::Flash2, 1),
            (Algorithm::Standard, 1 + usize::from(has_gradient)),
        ] {
            let (problem, device) = (builder().score(score), DeviceInfo::h200());
            let plan = planned_pass(problem, Pass::Backward, &device, Some(algorithm)).unwrap();
            let edited = plan.launches.iter().filter(|launch| launch.edit.is_some());
            assert_eq!(edited.count(), n_edited, "{plan}");
            let mut specs = plan.launches.iter().map(|launch| launch.spec);
            let found = specs.any(|spec| spec.has(Constant::ScoreGradient));
            assert_eq!(found, has_gradient, "{plan}");
        }
    }
}
