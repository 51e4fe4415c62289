//! What named expressions are given.

use ferroflash::{Dtype, Problem};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::given::slopes;
use super::*;

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
        score: Some(NamedScore::Bias),
        mask: None,
    };
    let problem = problem.build().unwrap();
    let failure = Given::random(named, &problem, &mut SmallRng::seed_from_u64(0)).err();
    assert!(matches!(failure, Some(Failure::Option(message)) if message.contains("no memory")));
}
