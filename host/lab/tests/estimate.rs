//! Predictions: what must hold of them for every problem, and of their workspaces beside those of plans.

use ferroflash::plan::{DeviceInfo, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::without_tensors;
use ferroflash::{Algorithm, Backend, BlockMask, Dtype, Mask, Pass, Precision, Problem};
use ferroflash_lab::estimate::{Estimate, EstimateError, Gpu, Roof, estimate};
use proptest::prelude::*;

const PASSES: [Pass; 2] = [Pass::Forward, Pass::Backward];
const GPUS: [&str; 10] = [
    "T4",
    "V100",
    "A100",
    "A100 40GB",
    "A100 PCIe",
    "L4",
    "RTX 4090",
    "H100",
    "H200",
    "B200",
];

fn problem(seqlen: usize, head_dim: usize, mask: Mask) -> Problem {
    let builder = Problem::builder(Dtype::F16).seqlen(seqlen).heads(16);
    builder.head_dim(head_dim).mask(mask).build().unwrap()
}

fn of(estimates: &[Estimate], algorithm: Algorithm) -> &Estimate {
    let mut all = estimates.iter();
    all.find(|estimate| estimate.algorithm == algorithm)
        .unwrap()
}

fn on(gpu: &str, problem: &Problem, pass: Pass) -> Vec<Estimate> {
    estimate(problem, &Gpu::named(gpu).unwrap(), pass).unwrap()
}

fn masks() -> impl Strategy<Value = Mask> {
    let side = || prop::option::of(0_usize..3000);
    prop_oneof![
        Just(Mask::Full),
        Just(Mask::Causal),
        (0_usize..3000).prop_map(|prefix| Mask::PrefixLm { prefix }),
        (side(), side()).prop_map(|(left, right)| Mask::Window { left, right }),
    ]
}

fn problems() -> impl Strategy<Value = Problem> {
    let lengths = (0_usize..5000, 0_usize..5000);
    let heads = (1_usize..4, 1_usize..5, 1_usize..9);
    (lengths, heads, 1_usize..33, masks()).prop_map(
        |((seqlen_q, seqlen_k), (batch, heads_k, group), chunks, mask)| {
            Problem::builder(Dtype::F16)
                .batch(batch)
                .seqlen_q(seqlen_q)
                .seqlen_k(seqlen_k)
                .heads_q(heads_k * group)
                .heads_k(heads_k)
                .head_dim(8 * chunks)
                .mask(mask)
                .build()
                .unwrap()
        },
    )
}

proptest! {
    // A seed that fails is printed, and kept by nobody.
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// No schedule moves less than inputs and outputs; keys outside move more than queries outside.
    #[test]
    fn bytes_are_in_order(problem in problems(), gpu in prop::sample::select(&GPUS[..])) {
        for pass in PASSES {
            let estimates = on(gpu, &problem, pass);
            let [flash1, flash2] = [Algorithm::Flash1, Algorithm::Flash2].map(|it| of(&estimates, it));
            prop_assert!(flash1.hbm_bytes() >= flash2.hbm_bytes() || pass == Pass::Backward);
            let sees_all = problem.mask() == Mask::Full && problem.seqlen_k() > 0;
            for estimate in &estimates {
                // flash1 never comes to queries that see no key.
                let reads_all = sees_all || estimate.algorithm != Algorithm::Flash1;
                prop_assert!(!reads_all || estimate.hbm_bytes() >= estimate.least_bytes, "{estimate:?}");
                prop_assert!(estimate.seconds.is_finite() && estimate.seconds > 0.0);
            }
        }
    }

    /// What a mask hides is not computed, but by standard.
    #[test]
    fn masks_only_save(problem in problems(), gpu in prop::sample::select(&GPUS[..])) {
        let full = problem.to_builder().mask(Mask::Full).build().unwrap();
        for pass in PASSES {
            for (masked, full) in on(gpu, &problem, pass).iter().zip(on(gpu, &full, pass)) {
                prop_assert!(masked.flops() <= full.flops(), "{masked:?} {full:?}");
                prop_assert!(masked.exponentials() <= full.exponentials());
                prop_assert!(masked.hbm_bytes() <= full.hbm_bytes());
                prop_assert!(masked.l2_bytes() <= full.l2_bytes());
            }
        }
    }

    /// Twice the length is four times the scores of standard, to what its blocks round up; never below flash2.
    #[test]
    fn standard_grows_with_the_square(length in 1024_usize..8192, head_dim in prop::sample::select(vec![64_usize, 128])) {
        // Of no L2 cache that keeps the rows of a short softmax.
        let gpu = Gpu::custom(1e15, 5e12, 228 << 10, 132).unwrap();
        for pass in PASSES {
            let bytes = |n| {
                let estimates = estimate(&problem(n, head_dim, Mask::Full), &gpu, pass).unwrap();
                let own = |algorithm| of(&estimates, algorithm).hbm_bytes() as f64;
                (own(Algorithm::Standard), own(Algorithm::Flash2))
            };
            let ((standard, flash2), (twice, _)) = (bytes(length), bytes(2 * length));
            prop_assert!((3.0..4.1).contains(&(twice / standard)), "{}", twice / standard);
            prop_assert!(standard > flash2);
        }
    }
}

/// Where the L2 cache keeps keys and values, flash moves each tensor once forward.
#[test]
fn flash_moves_each_tensor_once() {
    let problem = problem(4096, 64, Mask::Full);
    let tensor = 16 * 4096 * 64 * 2;
    for algorithm in [Algorithm::Flash2, Algorithm::Flash3] {
        let estimates = on("H100", &problem, Pass::Forward);
        let flash = of(&estimates, algorithm);
        let lse = 16 * 4096 * 4;
        assert_eq!(flash.hbm_bytes(), 4 * tensor + lse);
        assert_eq!(flash.least_bytes, flash.hbm_bytes());
        // Every query tile of 128 rows reads all keys and values.
        assert_eq!(flash.l2_bytes(), 2 * tensor + lse + 4096 / 128 * 2 * tensor);
    }
}

/// The formulas of the documentation, forward: 12N² + 2eN² for standard where L2 does not keep S's rows; T blocks of keys for flash1.
#[test]
fn the_formulas_are_those_of_the_documentation() {
    let (n, d, heads) = (8192_u64, 64_u64, 16_u64);
    let estimates = on("A100", &problem(8192, 64, Mask::Full), Pass::Forward);
    let tensors = 4 * heads * n * d * 2 + heads * n * 4;
    let standard = of(&estimates, Algorithm::Standard);
    assert_eq!(standard.hbm_bytes(), heads * 16 * n * n + tensors);
    assert_eq!(standard.extra_bytes, heads * 6 * n * n);
    // Blocks of 256 keys, 32 of them. The paper's rule says 328: M = 164 KB / 2 = 83,968 elements.
    let flash1 = of(&estimates, Algorithm::Flash1);
    let blocks = n / 256;
    let of_rows = blocks * (2 * d + 8 * d + 16) + 2 * (4 * d + 8);
    let q = heads * n * d * 2;
    assert_eq!(flash1.hbm_bytes(), heads * n * of_rows + tensors - q);
    assert_eq!(flash1.extra_bytes, heads * n * (4 * d + 8));
}

#[test]
fn a_causal_mask_halves_long_sequences() {
    let of_mask = |mask, pass| on("H100", &problem(16384, 128, mask), pass);
    for pass in PASSES {
        for (causal, full) in of_mask(Mask::Causal, pass)
            .iter()
            .zip(of_mask(Mask::Full, pass))
        {
            let share = causal.flops() as f64 / full.flops() as f64;
            let expected = match causal.algorithm {
                Algorithm::Standard => 1.0..1.01,
                _ => 0.5..0.52,
            };
            assert!(expected.contains(&share), "{:?} {share}", causal.algorithm);
        }
    }
}

#[test]
fn flash_wins_where_sequences_are_long() {
    for gpu in GPUS {
        for mask in [Mask::Full, Mask::Causal] {
            for (pass, length) in [
                (Pass::Forward, 2048),
                (Pass::Forward, 16384),
                (Pass::Backward, 16384),
            ] {
                let estimates = on(gpu, &problem(length, 64, mask), pass);
                for flash in &estimates[2..] {
                    assert!(flash.speedup >= 1.0, "{gpu} {flash:?}");
                }
            }
        }
    }
}

#[test]
fn roofs_bind_where_they_should() {
    let roof = |gpu: &Gpu, problem: &Problem, algorithm| {
        let estimates = estimate(problem, gpu, Pass::Forward).unwrap();
        of(&estimates, algorithm).roof
    };
    let h100 = Gpu::named("H100").unwrap();
    let long = problem(16384, 128, Mask::Full);
    assert_eq!(roof(&h100, &long, Algorithm::Flash3), Roof::Compute);
    assert_eq!(roof(&h100, &long, Algorithm::Standard), Roof::Memory);
    // B200's tensor cores are 2.3 times as fast as H100's, its special-function units as fast for each SM.
    let b200 = Gpu::named("B200").unwrap();
    let narrow = problem(16384, 64, Mask::Full);
    assert_eq!(roof(&b200, &narrow, Algorithm::Flash2), Roof::Exponentials);
    let tiny = problem(64, 64, Mask::Full);
    assert_eq!(roof(&h100, &tiny, Algorithm::Flash2), Roof::Launch);
    // One query over many keys: each is read for two FLOPs a byte or so.
    let decode = long
        .to_builder()
        .seqlen_q(1)
        .seqlen_k(65536)
        .build()
        .unwrap();
    let slow = Gpu::custom(1e15, 1e11, 100 << 10, 132).unwrap();
    assert_eq!(roof(&slow, &decode, Algorithm::Flash2), Roof::Memory);
}

/// The extra memory is the workspace of plans, to the 256 bytes that pieces are aligned to.
#[test]
fn extra_memory_is_that_of_plans() {
    let mut compared = 0;
    for (device, gpu) in [
        (DeviceInfo::h200(), "H200"),
        (DeviceInfo::a100(), "A100"),
        (DeviceInfo::rtx4090(), "RTX 4090"),
    ] {
        for (pass, head_dim) in PASSES
            .into_iter()
            .flat_map(|pass| [64, 128, 256].map(|d| (pass, d)))
        {
            let problem = problem(1000, head_dim, Mask::Causal);
            for estimate in on(gpu, &problem, pass) {
                let checked = without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
                let planned = plan(&checked, &device, Backend::Cuda, Some(estimate.algorithm));
                assert_eq!(
                    estimate.has_kernels,
                    Some(planned.is_ok()),
                    "{gpu} {estimate:?}"
                );
                let Ok(plan) = planned else { continue };
                let pieces = plan.workspace.pieces().iter();
                let bytes: u64 = pieces.map(|piece| piece.n_bytes).sum();
                assert_eq!(estimate.extra_bytes, bytes, "{gpu} {pass:?} {plan}");
                assert_eq!(estimate.launches.len(), plan.launches.len(), "{gpu} {plan}");
                compared += 1;
            }
        }
    }
    assert!(compared > 36, "{compared}");
}

#[test]
fn what_is_not_counted_is_refused() {
    let h100 = Gpu::named("H100").unwrap();
    let refused = |problem: &Problem, gpu: &Gpu| estimate(problem, gpu, Pass::Forward).unwrap_err();
    let plain = problem(256, 64, Mask::Causal);
    let packed = plain.to_builder().packed_q(512).build().unwrap();
    assert_eq!(
        refused(&packed, &h100).to_string(),
        "the problem has packed queries; allowed: sequences of one length, a mask, sinks"
    );
    let blocks = plain
        .to_builder()
        .block_mask(BlockMask::new(128, 128))
        .build()
        .unwrap();
    assert!(matches!(
        refused(&blocks, &h100),
        EstimateError::NotCounted { .. }
    ));
    let huge = plain.to_builder().batch(1 << 40).build().unwrap();
    assert!(matches!(
        refused(&huge, &h100),
        EstimateError::TooLarge { .. }
    ));
    let long = plain.to_builder().seqlen(1 << 40).build().unwrap();
    assert!(
        refused(&long, &h100)
            .to_string()
            .starts_with("seqlen is 1099511627776; allowed: at most")
    );
    let t4 = Gpu::named("t4").unwrap();
    let f32 = Problem::builder(Dtype::F32)
        .seqlen(256)
        .heads(1)
        .head_dim(64)
        .build()
        .unwrap();
    assert!(matches!(refused(&f32, &t4), EstimateError::Dtype { .. }));
}

/// Three products in place of one.
#[test]
fn exact_f32_takes_three_times_the_flops() {
    let of_precision = |precision| {
        let builder = Problem::builder(Dtype::F32)
            .seqlen(4096)
            .heads(16)
            .head_dim(64);
        let problem = builder.precision(precision).build().unwrap();
        on("A100", &problem, Pass::Backward)
    };
    let (tensor, full) = (
        of_precision(Precision::Tensor),
        of_precision(Precision::Full),
    );
    for (tensor, full) in tensor.iter().zip(&full) {
        assert_eq!(3 * tensor.flops(), full.flops());
        assert!(tensor.seconds <= full.seconds);
    }
}

/// The weights as output are standard's alone, and no extra memory.
#[test]
fn weights_are_of_standard_alone() {
    let problem = problem(1024, 64, Mask::Full);
    let estimates = on("A100", &problem, Pass::ForwardWithWeights);
    assert_eq!(estimates.len(), 1);
    assert_eq!(estimates[0].extra_bytes, 16 * 1024 * 1024 * 4);
}

/// An empty problem costs its launches.
#[test]
fn nothing_costs_a_launch() {
    for pass in PASSES {
        for estimate in on("A100", &problem(0, 64, Mask::Causal), pass) {
            assert_eq!((estimate.flops(), estimate.roof), (0, Roof::Launch));
        }
    }
}

/// Keys of 192 columns and values of 128 have a kernel of their own in flash3 forward: no column is padding.
#[test]
fn values_may_have_fewer_columns() {
    let problem = problem(4096, 192, Mask::Full)
        .to_builder()
        .head_dim_v(128)
        .build()
        .unwrap();
    let estimates = on("H100", &problem, Pass::Forward);
    // Key blocks may divide a sequence with a rest.
    let flops = of(&estimates, Algorithm::Flash3).flops() as f64;
    let exact = 2.0 * 16.0 * 4096.0 * 4096.0 * (192.0 + 128.0);
    assert!((1.0..1.05).contains(&(flops / exact)), "{}", flops / exact);
}
