//! What `ferroflash info` says of a machine without a GPU.

use ferroflash::validate::Pass;
use ferroflash::{Attention, Device, Dtype, Mask, Problem};

/// Every line that the chapter quotes is the plan's.
#[test]
fn the_plan_of_the_processor_is_quoted() {
    let builder = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16);
    let problem = builder.head_dim(128).mask(Mask::Causal).build();
    let attention = Attention::new(&Device::cpu(), problem.expect("a good problem"));
    let explanation = attention.expect("sizes are good").explain(Pass::Forward);
    let said = explanation.expect("it is planned").to_string();
    let path = ferroflash_book::root().join("docs/src/which.md");
    let chapter = std::fs::read_to_string(path).expect("the chapter is there");
    let quoted = chapter.split("```text\n").nth(1).expect("it quotes");
    let quoted = quoted.split("```").next().unwrap_or_default();
    assert!(quoted.lines().count() > 3);
    for line in quoted.lines() {
        assert!(said.lines().any(|other| other == line), "{line}\n{said}");
    }
}
