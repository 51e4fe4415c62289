//! Predictions of q, k and v in 8 bits beside what was measured on an H200: tests/benches/notes/2026-11-30-e4m3-forward.md and 2026-11-30-e4m3-backward.md.

use ferroflash::{Algorithm, Dtype, Fp8, Fp8Sums, Mask, Pass, Problem};
use ferroflash_lab::estimate::{Estimate, EstimateError, Gpu, estimate};
use ferroflash_lab::words::flops;

/// How far a prediction may be off, and how many must not be farther.
const WITHIN: f64 = 0.15;
const SHARE: f64 = 0.9;

const TWO_LEVELS: (Fp8, Fp8Sums) = (Fp8::PerTensor, Fp8Sums::TwoLevels);
const ONE_LEVEL: (Fp8, Fp8Sums) = (Fp8::PerTensor, Fp8Sums::OneLevel);
const BLOCKS: (Fp8, Fp8Sums) = (Fp8::PerBlock, Fp8Sums::TwoLevels);

/// 16384 rows in sequences of this length, with so many heads.
fn problem(
    (scales, sums): (Fp8, Fp8Sums),
    head_dim: usize,
    seqlen: usize,
    heads: usize,
    mask: Mask,
) -> Problem {
    let problem = Problem::builder(Dtype::Bf16).batch(16384 / seqlen);
    let problem = problem.seqlen(seqlen).heads(heads).head_dim(head_dim);
    let problem = problem.mask(mask).fp8(scales).fp8_sums(sums);
    problem.build().unwrap()
}

fn of(problem: &Problem, pass: Pass, algorithm: Algorithm) -> Estimate {
    let gpu = Gpu::named("H200").unwrap();
    Estimate::of(problem, &gpu, pass, algorithm).unwrap()
}

/// Predicted by measured time, where TFLOP/s have been measured.
fn ratio(problem: &Problem, pass: Pass, tflops: f64) -> f64 {
    let seconds = flops(problem, pass, &[]) / (tflops * 1e12);
    of(problem, pass, Algorithm::Flash3).seconds / seconds
}

/// Prints the ratios; fails if too many are far off.
fn hold(rows: &[(Problem, f64)], pass: Pass) {
    let mut near = 0;
    for (problem, tflops) in rows {
        let ratio = ratio(problem, pass, *tflops);
        let sizes = (problem.head_dim(), problem.seqlen_q(), problem.mask());
        println!(
            "{pass:?} {sizes:?} {:?} {:?}: {ratio:.2}",
            problem.fp8(),
            problem.fp8_sums()
        );
        near += usize::from((1.0 - WITHIN..1.0 + WITHIN).contains(&ratio));
    }
    let share = near as f64 / rows.len() as f64;
    println!("{near} of {} within {WITHIN}", rows.len());
    assert!(share >= SHARE, "{share}");
}

/// head_dim, length, TFLOP/s with two levels and with one, without a mask; then causal.
const FORWARD: [(usize, usize, [f64; 4]); 14] = [
    (128, 512, [608.0, 608.0, 408.0, 406.0]),
    (128, 1024, [779.0, 719.0, 545.0, 548.0]),
    (128, 2048, [925.0, 869.0, 695.0, 684.0]),
    (128, 4096, [951.0, 873.0, 769.0, 785.0]),
    (128, 8192, [939.0, 925.0, 884.0, 884.0]),
    (128, 16384, [958.0, 950.0, 881.0, 944.0]),
    (64, 1024, [447.0, 446.0, 329.0, 329.0]),
    (64, 4096, [590.0, 590.0, 538.0, 537.0]),
    (64, 16384, [635.0, 643.0, 611.0, 617.0]),
    (96, 4096, [767.0, 765.0, 651.0, 658.0]),
    (192, 4096, [907.0, 1076.0, 853.0, 942.0]),
    (256, 1024, [867.0, 892.0, 646.0, 645.0]),
    (256, 4096, [988.0, 1129.0, 902.0, 926.0]),
    (256, 16384, [976.0, 1229.0, 968.0, 1107.0]),
];

#[test]
fn forward_passes_are_near_what_was_measured() {
    let rows = FORWARD.iter().flat_map(|&(head_dim, seqlen, tflops)| {
        let [two, one, two_causal, one_causal] = tflops;
        let problem = |sums, mask| problem(sums, head_dim, seqlen, 2048 / head_dim, mask);
        [
            (problem(TWO_LEVELS, Mask::Full), two),
            (problem(ONE_LEVEL, Mask::Full), one),
            (problem(TWO_LEVELS, Mask::Causal), two_causal),
            (problem(ONE_LEVEL, Mask::Causal), one_causal),
        ]
    });
    hold(&rows.collect::<Vec<_>>(), Pass::Forward);
}

/// head_dim, length, TFLOP/s without a mask, causal.
const OF_BLOCKS: [(usize, usize, f64, f64); 15] = [
    (64, 512, 320.0, 224.0),
    (64, 2048, 458.0, 382.0),
    (64, 16384, 500.0, 492.0),
    (96, 512, 435.0, 303.0),
    (96, 2048, 670.0, 553.0),
    (96, 16384, 706.0, 649.0),
    (128, 512, 562.0, 368.0),
    (128, 2048, 744.0, 605.0),
    (128, 16384, 769.0, 742.0),
    (192, 512, 643.0, 409.0),
    (192, 2048, 805.0, 618.0),
    (192, 16384, 835.0, 757.0),
    (256, 512, 630.0, 412.0),
    (256, 2048, 816.0, 679.0),
    (256, 16384, 874.0, 870.0),
];

#[test]
fn scales_of_blocks_are_near_what_was_measured() {
    let rows = OF_BLOCKS
        .iter()
        .flat_map(|&(head_dim, seqlen, full, causal)| {
            let heads = (2048 + head_dim / 2) / head_dim;
            let problem = |mask| problem(BLOCKS, head_dim, seqlen, heads, mask);
            [(problem(Mask::Full), full), (problem(Mask::Causal), causal)]
        });
    hold(&rows.collect::<Vec<_>>(), Pass::Forward);
}

/// Length, TFLOP/s without a mask, causal; 16 heads of 128.
const BACKWARD: [(usize, f64, f64); 6] = [
    (512, 350.0, 221.0),
    (1024, 473.0, 340.0),
    (2048, 575.0, 466.0),
    (4096, 626.0, 547.0),
    (8192, 644.0, 613.0),
    (16384, 608.0, 627.0),
];

#[test]
fn backward_passes_are_near_what_was_measured() {
    let rows = BACKWARD.iter().flat_map(|&(seqlen, full, causal)| {
        let problem = |mask| problem(TWO_LEVELS, 128, seqlen, 16, mask);
        [(problem(Mask::Full), full), (problem(Mask::Causal), causal)]
    });
    hold(&rows.collect::<Vec<_>>(), Pass::Backward);
}

#[test]
fn numbers_of_8_bits_have_one_byte() {
    let gpu = Gpu::named("H200").unwrap();
    let problem = problem(TWO_LEVELS, 128, 4096, 16, Mask::Full);
    let forward = estimate(&problem, &gpu, Pass::Forward).unwrap();
    // No other schedule multiplies 8 bits.
    let [flash3] = &forward[..] else {
        panic!("{forward:?}")
    };
    let n: u64 = 16384 * 16 * 128;
    let row_values = 16384 * 16 * 4;
    assert_eq!(flash3.algorithm, Algorithm::Flash3);
    assert_eq!(flash3.least_bytes, 3 * n + 2 * n + row_values);
    assert_eq!(flash3.hbm_bytes(), flash3.least_bytes);
    assert_eq!(flash3.has_kernels, Some(true));
    // Backward they are taken out first, whatever the schedule.
    let backward = estimate(&problem, &gpu, Pass::Backward).unwrap();
    assert_eq!(backward.len(), 4);
    let in_16_bits = Problem::builder(Dtype::Bf16).batch(4).seqlen(4096);
    let in_16_bits = in_16_bits.heads(16).head_dim(128).build().unwrap();
    let others = estimate(&in_16_bits, &gpu, Pass::Backward).unwrap();
    for (own, other) in backward.iter().zip(others) {
        assert_eq!(own.launches[0].name, "dequantize");
        assert_eq!(own.launches[0].hbm_bytes, 3 * n + 6 * n);
        assert_eq!(own.launches[1..], other.launches[..]);
        assert_eq!(own.extra_bytes, other.extra_bytes + 6 * n);
        assert_eq!(own.least_bytes, other.least_bytes - 3 * n);
        assert!(own.seconds > other.seconds);
        assert_eq!(own.has_kernels, Some(true));
    }
    // It is compared with standard in 16 bits.
    let standard = estimate(&in_16_bits, &gpu, Pass::Forward).unwrap();
    let speedup = standard[0].seconds / flash3.seconds;
    assert!((flash3.speedup - speedup).abs() < 1e-9);
}

#[test]
fn what_has_no_kernel_is_refused_by_the_name_of_the_gpu() {
    let gpu = Gpu::named("A100").unwrap();
    let causal = problem(ONE_LEVEL, 128, 1024, 16, Mask::Causal);
    let refused = estimate(&causal, &gpu, Pass::Forward);
    let named = EstimateError::Fp8 { gpu: "A100".into() };
    assert_eq!(refused, Err(named));
    assert_eq!(estimate(&causal, &gpu, Pass::Backward).unwrap().len(), 3);
    let hopper = Gpu::named("H100").unwrap();
    for (ways, head_dim) in [(BLOCKS, 272), (TWO_LEVELS, 72), (TWO_LEVELS, 320)] {
        let problem = problem(ways, head_dim, 1024, 4, Mask::Full);
        let refused = estimate(&problem, &hopper, Pass::Forward);
        assert!(
            matches!(refused, Err(EstimateError::Fp8 { .. })),
            "{refused:?}"
        );
    }
    let nothing = problem(TWO_LEVELS, 64, 1024, 4, Mask::Full)
        .to_builder()
        .seqlen_k(0);
    assert_eq!(
        estimate(&nothing.build().unwrap(), &hopper, Pass::Forward)
            .unwrap()
            .len(),
        1
    );
}
