//! What expressions of scores and masks change in plans.

use ferroflash::plan::Reason;
use ferroflash::{Attention, Device, Fp8Kv, Score};
use ferroflash_kernels::variants::Kind;

use super::*;

/// A bias, and a mask.
fn edited(problem: &Problem) -> Problem {
    let alibi = Score::new(|s, at| s + at.tensor_f32("slopes", [at.head]) * (at.k - at.q).to_f32());
    let dilated = Mask::new(|at| (at.k % at.i32("step")).eq(0));
    let builder = problem.to_builder().score(alibi.unwrap());
    builder.mask_expression(dilated.unwrap()).build().unwrap()
}

fn decode(heads_q: usize, head_dim: usize) -> Problem {
    Problem::builder(Dtype::Bf16)
        .batch(2)
        .seqlen_q(1)
        .seqlen_k(30_000)
        .heads_q(heads_q)
        .heads_k(1)
        .head_dim(head_dim)
        .build()
        .unwrap()
}

/// Whether a plan's tiles hold queries of several heads: those of flash3 that say so, and those of flash2's kernel of few queries.
fn packs_heads(plan: &Plan) -> bool {
    plan.launches.iter().any(|launch| match &launch.params {
        Params::TmaForward(params) => params.pack_gqa_log2 != 0,
        _ => launch.variant.kind == Kind::Forward && launch.variant.tiles == TileShape::Compact,
    })
}

/// A tile whose rows are of several heads has no index of one; without an expression the same problem has such tiles.
#[test]
fn heads_are_not_packed_under_an_expression() {
    let device = DeviceInfo::h200();
    for (algorithm, heads) in [
        (Algorithm::Flash2, &[4, 16][..]),
        (Algorithm::Flash3, &[4, 16, 64]),
    ] {
        let plan_of = |problem: &Problem| plan_of(problem, Pass::Forward, &device, Some(algorithm));
        for &heads_q in heads {
            let problem = decode(heads_q, 128);
            assert!(packs_heads(&plan_of(&problem)), "{algorithm} {heads_q}");
            let edited = plan_of(&edited(&problem));
            assert!(!packs_heads(&edited), "{edited}");
        }
    }
}

/// Kernels that look at scores, and have no place for expressions, say so; the others do not.
#[test]
fn kernels_without_a_place_for_expressions_refuse() {
    let plain = decode(16, 128);
    let problem = edited(&plain);
    let (mut n_refused, mut n_taken) = (0, 0);
    for pass in [Pass::Forward, Pass::Backward] {
        let checked = validate::without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
        for variant in VARIANTS {
            let looks = matches!(
                variant.kind,
                Kind::Forward | Kind::TmaForward | Kind::Backward | Kind::TmaBackward
            );
            let serves = [Algorithm::Flash2, Algorithm::Flash3]
                .into_iter()
                .any(|algorithm| kinds(algorithm, pass).contains(&variant.kind));
            let plain = validate::without_tensors(&plain, pass, Location::Cuda(0)).unwrap();
            let device = DeviceInfo::h200();
            if !looks || !serves || eligible(variant, &plain, &device).is_err() {
                continue;
            }
            let outcome = eligible(variant, &checked, &device);
            match variant.score_site() {
                None => {
                    let reason = Reason::Score { beside: None };
                    assert_eq!(outcome, Err(reason), "{}", variant.name);
                    n_refused += 1;
                }
                Some(_) => {
                    assert_eq!(outcome, Ok(()), "{}", variant.name);
                    n_taken += 1;
                }
            }
        }
    }
    assert!(n_refused >= 2 && n_taken >= 4, "{n_refused} {n_taken}");
    let few = decode(16, 128).to_builder().fp8_kv(Fp8Kv::PerSequence);
    let few = edited(&few.build().unwrap());
    let checked = validate::without_tensors(&few, Pass::Forward, Location::Cuda(0)).unwrap();
    let refused = plan(&checked, &DeviceInfo::h200(), Backend::Cuda, None).unwrap_err();
    let names_both =
        "edit scores or masks by an expression together with keys and values in 8 bits";
    assert!(refused.to_string().contains(names_both), "{refused}");
}

/// Who asks what would run reads the expressions.
#[test]
fn explanations_name_the_expressions() {
    let problem = edited(&grouped(Dtype::F16, 300, 64));
    let attention = Attention::new(&Device::cpu(), problem).unwrap();
    for pass in [Pass::Forward, Pass::Backward] {
        let text = attention.explain(pass).unwrap().to_string();
        let names = ["score ", "slopes[head]", "mask k % step"];
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
}
