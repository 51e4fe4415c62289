//! What `ferroflash info` says of a machine without a GPU.

use ferroflash::validate::Pass;
use ferroflash::{Attention, Device, Dtype, Mask, Problem};

/// The text without the number in its line of memory, which depends on the processor; and that number.
fn without_memory(text: &str) -> (String, u64) {
    let begin = text.find("memory ").expect("it has such a line") + "memory ".len();
    let end = begin + text[begin..].find(" bytes").expect("in bytes");
    let bytes = text[begin..end].trim().parse().expect("a number");
    (format!("{}{}", &text[..begin], &text[end..]), bytes)
}

/// The chapter quotes the plan of the pass, every line of it.
#[test]
fn the_plan_of_the_processor_is_quoted() {
    let builder = Problem::builder(Dtype::Bf16).seqlen(4096).heads(16);
    let problem = builder.head_dim(128).mask(Mask::Causal).build();
    let attention = Attention::new(&Device::cpu(), problem.expect("a good problem"));
    let explanation = attention.expect("sizes are good").explain(Pass::Forward);
    let said = explanation.expect("it is planned").to_string();
    let begin = said.find("Forward with").expect("it names the pass");
    let path = ferroflash_book::root().join("docs/src/which.md");
    let chapter = std::fs::read_to_string(path).expect("the chapter is there");
    let quoted = chapter.split("```text\n").nth(1).expect("it quotes");
    let quoted = quoted.split("```").next().unwrap_or_default();
    let (quoted, n_quoted) = without_memory(quoted);
    let (said, n_said) = without_memory(&said[begin..]);
    assert_eq!(quoted.trim_end(), said.trim_end());
    // A reference to each row that is written, whatever the processor is.
    let least = 4096 * 16 * 16;
    assert!(n_quoted > least && n_said > least, "{n_quoted}, {n_said}");
}
