//! What named expressions are, and that what they are given is what they read.

use clap::ValueEnum;
use ferroflash::{Dtype, Problem};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::inputs::slopes;
use super::*;

#[test]
fn names_are_those_of_options() {
    for &score in ScoreName::value_variants() {
        assert_eq!(ScoreName::from_str(score.name(), false), Ok(score));
    }
    for &mask in MaskName::value_variants() {
        assert_eq!(MaskName::from_str(mask.name(), false), Ok(mask));
    }
}

#[test]
fn expressions_say_what_they_are() {
    let score = |name: ScoreName| name.score().unwrap().to_string();
    let mask = |name: MaskName| name.mask().unwrap().to_string();
    assert_eq!(score(ScoreName::SoftCap), "cap * tanh(score / cap)");
    for (name, reads) in [
        (ScoreName::Alibi, "slopes[head]"),
        (ScoreName::AlibiBatch, "slopes[batch, head]"),
        (ScoreName::SoftCapAlibi, "slopes[head]"),
        (ScoreName::Bias, "bias[batch, head, q, k]"),
    ] {
        assert!(score(name).contains(reads), "{}", score(name));
    }
    assert!(mask(MaskName::Causal).contains("seqlen_k"));
    assert!(mask(MaskName::Window).contains("window"));
    assert!(mask(MaskName::Document).contains("document[batch, q]"));
}

#[test]
fn slopes_are_those_of_the_paper() {
    assert_eq!(slopes(8)[..3], [0.5, 0.25, 0.125]);
    assert_eq!(slopes(8)[7], 2f32.powi(-8));
    assert_eq!(slopes(16)[1], 0.5);
}

#[test]
fn a_bias_that_no_memory_holds_is_refused() {
    let problem = Problem::builder(Dtype::Bf16)
        .seqlen(1 << 30)
        .heads(64)
        .head_dim(8);
    let named = Named {
        score: Some(ScoreName::Bias),
        mask: None,
    };
    let problem = problem.build().unwrap();
    let failure = Given::new(named, &problem, &mut SmallRng::seed_from_u64(0)).err();
    assert!(matches!(failure, Some(Failure::Option(message)) if message.contains("no memory")));
}
