//! Predictions that chapters quote.

use ferroflash::plan::Algorithm;
use ferroflash::validate::Pass;
use ferroflash::{Dtype, Problem};
use ferroflash_lab::estimate::{Estimate, Gpu, Roof, estimate};

use super::assert_says;

fn estimates(seqlen: usize, pass: Pass) -> Vec<Estimate> {
    let builder = Problem::builder(Dtype::Bf16).seqlen(seqlen).heads(16);
    let problem = builder.head_dim(128).build().expect("a good problem");
    let gpu = Gpu::named("H200").expect("it is in the table");
    estimate(&problem, &gpu, pass).expect("it is counted")
}

fn of(estimates: &[Estimate], algorithm: Algorithm) -> &Estimate {
    let mut found = estimates.iter();
    let found = found.find(|estimate| estimate.algorithm == algorithm);
    found.expect("there is such a schedule")
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

#[test]
fn bytes_of_standard_attention_and_of_flash3() {
    let mut said = Vec::new();
    for pass in [Pass::Forward, Pass::Backward] {
        let estimates = estimates(8192, pass);
        for algorithm in [Algorithm::Standard, Algorithm::Flash3] {
            let estimate = of(&estimates, algorithm);
            said.push(format!(
                "| `{algorithm}` | {} | {:.0} | {} |",
                megabytes(estimate.hbm_bytes()),
                estimate.intensity(),
                megabytes(estimate.extra_bytes)
            ));
        }
        let least = megabytes(estimates[0].least_bytes);
        said.push(format!("| inputs and outputs, each once | {least} | | |"));
    }
    let gpu = Gpu::named("H200").expect("it is in the table");
    let peak = gpu.peak(Dtype::Bf16).expect("its tensor cores have bf16");
    said.push(format!("{:.0} FLOP for each byte", peak / gpu.bandwidth));
    assert_says("standard.md", &said);
    // 12 N² + 2 e N² and the tensors, by hand.
    let (n, d, heads, e) = (8192u64, 128, 16, 2);
    let by_hand = heads * (12 * n * n + 2 * e * n * n) + heads * n * (4 * e * d + 4);
    let forward = estimates(8192, Pass::Forward);
    assert_eq!(of(&forward, Algorithm::Standard).hbm_bytes(), by_hand);
}

#[test]
fn memory_of_the_backward_pass() {
    let estimates = estimates(8192, Pass::Backward);
    let extra = |algorithm| megabytes(of(&estimates, algorithm).extra_bytes);
    let said = [
        format!(
            "{} MB in addition to inputs and outputs",
            extra(Algorithm::Flash3)
        ),
        format!("{} MB (`ferroflash estimate", extra(Algorithm::Standard)),
    ];
    assert_says("backward.md", &said);
}

#[test]
fn short_sequences() {
    let row = |seqlen: usize| {
        let estimates = estimates(seqlen, Pass::Forward);
        let us = |algorithm| of(&estimates, algorithm).seconds * 1e6;
        let speedup = of(&estimates, Algorithm::Flash3).speedup;
        let (standard, flash3) = (us(Algorithm::Standard), us(Algorithm::Flash3));
        format!("| {seqlen} | {standard:.1} | {flash3:.1} | {speedup:.2} |")
    };
    assert_says("when_not.md", &[64, 128, 256, 512, 1024].map(row));
}

/// The chapter's table is the library's.
#[test]
fn gpus_of_the_table() {
    let row = |name: &str| {
        let gpu = Gpu::named(name).expect("it is in the table");
        let tflops =
            |peak: Option<f64>| peak.map_or("–".to_owned(), |peak| format!("{}", peak / 1e12));
        let ghz = gpu.exponentials.unwrap_or_default() / 16e9 / f64::from(gpu.n_sms);
        let binary = |bytes: Option<u64>, shift: u32| bytes.unwrap_or_default() >> shift;
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {ghz:.2} | {} |",
            tflops(Some(gpu.f16_flops)),
            tflops(gpu.bf16_flops),
            tflops(gpu.tf32_flops),
            gpu.bandwidth / 1e9,
            gpu.n_sms,
            gpu.sram_bytes >> 10,
            binary(gpu.l2_bytes, 20),
            binary(gpu.memory_bytes, 30),
        )
    };
    let rows: Vec<String> = Gpu::names().split(", ").map(row).collect();
    assert_eq!(rows.len(), 10);
    assert_says("estimate.md", &rows);
}

/// The roofs are named, and bind where the chapter says.
#[test]
fn roofs_bind_where_the_chapter_says() {
    let named = Roof::ALL.map(|roof| format!("| `{roof}` |"));
    assert_says("estimate.md", &named);
    let roof = |gpu: &str, (seqlen, head_dim), algorithm| {
        let builder = Problem::builder(Dtype::Bf16).seqlen(seqlen).heads(16);
        let problem = builder.head_dim(head_dim).build().expect("a good problem");
        let gpu = Gpu::named(gpu).expect("it is in the table");
        let estimates = estimate(&problem, &gpu, Pass::Forward).expect("it is counted");
        of(&estimates, algorithm).roof
    };
    let (flash2, flash3) = (Algorithm::Flash2, Algorithm::Flash3);
    assert_ne!(roof("B200", (1024, 64), flash2), Roof::Exponentials);
    assert_eq!(roof("B200", (2048, 64), flash2), Roof::Exponentials);
    assert_eq!(roof("H200", (64, 128), flash3), Roof::Launch);
    assert_eq!(roof("H200", (8192, 128), flash3), Roof::Compute);
    assert_eq!(roof("H200", (8192, 128), Algorithm::Standard), Roof::Memory);
}

/// Bytes by the formulas of the chapter, of one head whose L2 cache keeps all.
#[test]
fn formulas_of_the_estimate() {
    let (n, d, e) = (4096u64, 128u64, 2u64);
    let builder = Problem::builder(Dtype::Bf16).seqlen(n as usize).heads(1);
    let problem = builder
        .head_dim(d as usize)
        .build()
        .expect("a good problem");
    let gpu = Gpu::named("H200").expect("it is in the table");
    let bytes = |pass, algorithm| {
        let estimates = estimate(&problem, &gpu, pass).expect("it is counted");
        of(&estimates, algorithm).hbm_bytes()
    };
    let (tensors, rows) = (n * d * e, 4 * n);
    // S and P, and the tensors that each kernel reads and writes.
    let forward = bytes(Pass::Forward, Algorithm::Standard);
    assert_eq!(forward, 12 * n * n + 2 * e * n * n + 4 * tensors + rows);
    let backward = bytes(Pass::Backward, Algorithm::Standard);
    assert_eq!(
        backward,
        20 * n * n + 6 * e * n * n + 12 * tensors + 3 * rows
    );
    assert_eq!(bytes(Pass::Forward, Algorithm::Flash3), 4 * tensors + rows);
    // Blocks of 128 keys.
    let t = n / 128;
    let flash1 = t * n * (e * d + 8 * d + 16) + 2 * n * (4 * d + 8);
    assert_eq!(
        bytes(Pass::Forward, Algorithm::Flash1),
        2 * tensors + flash1 + tensors + rows
    );
    let flash1 = t * n * (2 * e * d + 8 + 8 * d) + 2 * n * 4 * d;
    // And Δ with what it is made of, a semaphore for each block of 64 queries, and dQ.
    let others = 2 * tensors + 3 * rows + n / 64 * 4 + tensors;
    assert_eq!(
        bytes(Pass::Backward, Algorithm::Flash1),
        4 * tensors + flash1 + others
    );
    // q, k, v, O, dO twice, lse; lse and Δ written and read; the accumulator written and read, dQ; the semaphores.
    let read = 5 * tensors + tensors + rows;
    let gradients = 3 * tensors;
    let passed = 2 * 2 * rows + 2 * 4 * n * d + n / 64 * 4;
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        assert_eq!(
            bytes(Pass::Backward, algorithm),
            read + gradients + passed,
            "{algorithm}"
        );
    }
    let said = [
        "each tensor once and dO a second time; lse; lse and Δ as the main kernel wants them, 8·N, written and read; \
         the accumulator of dQ, 4·N·d, written and read |",
        "4 bytes for each block of queries",
    ];
    assert_says("estimate.md", &said.map(str::to_owned));
}
