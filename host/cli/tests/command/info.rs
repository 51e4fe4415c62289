//! What would run, and what becomes of expressions, as `info` says it. Kernels need no GPU to be told.

use super::*;

#[test]
fn info_says_what_would_run() {
    let (stdout, _) = expect(0, &["info", "--backend", "cpu", "--causal", "--kernels"]);
    assert!(stdout.contains("forward_sm80_bf16_d128"), "{stdout}");
    assert!(
        stdout.contains("Forward with tiled on cpu") && stdout.contains("Backward with tiled"),
        "{stdout}"
    );
}

/// What `info` prints of a score, and its PTX by the kernels that have it.
fn of_score(name: &str) -> (String, Vec<(String, String)>) {
    let arguments = ["info", "--backend", "cpu", "--seqlen", "64", "--score"];
    let (stdout, _) = expect(0, &[&arguments[..], &[name]].concat());
    let mut parts = stdout.split("PTX        of ");
    let said = parts.next().unwrap_or_default().to_owned();
    let texts = parts.map(|part| {
        let (kernels, text) = part.split_once('\n').unwrap();
        let (text, _) = text.split_once("\n}\n").unwrap();
        (kernels.to_owned(), text.to_owned())
    });
    (said, texts.collect())
}

fn has(text: &str, line: &str) {
    assert!(text.contains(line), "{line:?} is not in\n{text}");
}

/// ALiBi: a sum, whose derivative is 1. What rows have in common goes to scores in one kernel, to maxima in another.
#[test]
fn alibi_is_said_for_both_kinds_of_forward_kernels() {
    let (said, texts) = of_score("alibi");
    has(
        &said,
        "score      score + slopes[head] * f32(k - (q + seqlen_k - seqlen_q))\n",
    );
    has(&said, "derivative 1.0\n");
    has(&said, "unit       softmax_scale\n");
    has(&said, "tensor     slopes: f32 of rank 1\n");
    let [(whole, in_scores), (apart, in_maxima)] = &texts[..] else {
        panic!("{} texts", texts.len());
    };
    has(whole, "flash2");
    has(in_scores, "\tadd.f32 %fft3, %x3, %ffk");
    assert!(!in_scores.contains("%m0"), "{in_scores}");
    has(apart, "other forward kernels of flash3");
    has(in_maxima, "\tadd.f32 %m0, %m0, %ffk");
    has(in_maxima, "\tsub.f32 %m1, %m1, %ffk");
    assert!(!in_maxima.contains("add.f32 %fft3, %x3"), "{in_maxima}");
}

/// A soft cap: tanh, in whose unit scores are, and a derivative of its own.
#[test]
fn a_soft_cap_is_said_with_its_gradient() {
    let (said, texts) = of_score("soft-cap");
    has(&said, "score      cap * tanh(score / cap)\n");
    has(&said, "derivative let a = tanh(score / cap); 1.0 - a * a\n");
    has(&said, "unit       |cap|\n");
    has(&said, "parameter  cap: f32\n");
    let [(_, whole), (_, apart), (backward, gradient)] = &texts[..] else {
        panic!("{} texts", texts.len());
    };
    for text in [whole, apart, gradient] {
        has(text, "\ttanh.approx.f32 ");
    }
    assert!(!whole.contains("%d0"), "{whole}");
    has(backward, "rows are keys");
    has(gradient, "\tmov.b32 %d3, ");
}
