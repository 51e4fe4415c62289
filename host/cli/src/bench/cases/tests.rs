//! Which problems options mean.

use ferroflash::{Fp8, Fp8Sums, Mask};
use ferroflash_expression::named::{NamedMask, NamedScore};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::super::host::OnHost;
use super::super::subject::{Results, Subject};
use super::*;
use crate::tensors::Tensors;

/// The sizes of a command line, on a GPU.
fn on_gpu(line: &str) -> Vec<Sizes> {
    sizes(&BenchArguments::parse(line).unwrap(), true)
}

/// What the CPU measures for a command line.
fn on_cpu(line: &str) -> Result<Vec<Case>, Failure> {
    cases(&BenchArguments::parse(line).unwrap(), &Device::cpu())
}

#[test]
fn the_papers_sizes_keep_width_and_tokens() {
    let all = on_gpu("");
    assert_eq!(all.len(), 2 * 2 * 6);
    for sizes in &all {
        assert_eq!(sizes.heads.q * sizes.head_dim, 2048);
        assert_eq!(sizes.batch * sizes.seqlen_k, 16384);
        assert_eq!(sizes.heads.q, sizes.heads.k);
        assert_eq!(sizes.seqlen_q, sizes.seqlen_k);
    }
    // head_dim changes last, the length first.
    let of = |sizes: &Sizes| (sizes.head_dim, sizes.causal, sizes.seqlen_q);
    assert_eq!(of(&all[1]), (64, Some(false), 1024));
    assert_eq!(of(&all[6]), (64, Some(true), 512));
    assert_eq!(of(&all[12]), (128, Some(false), 512));

    let line = "--hdims 128 --causal 1 --seqs 4 --seqlen-k 32,64 --tokens 128 --width 256";
    let grouped = on_gpu(&format!("{line} --heads-k 1"));
    let expected = |seqlen_k, batch| Sizes {
        head_dim: 128,
        head_dim_v: 128,
        causal: Some(true),
        heads: Heads { q: 2, k: 1 },
        seqlen_q: 4,
        seqlen_k,
        batch,
    };
    assert_eq!(grouped, [expected(32, 4), expected(64, 2)]);
}

#[test]
fn columns_of_v_are_those_of_q_unless_given() {
    let columns = |line| {
        let all = on_gpu(&format!("--causal 0 --seqs 64 {line}"));
        let of = |sizes: &Sizes| (sizes.head_dim, sizes.head_dim_v, sizes.heads.q);
        all.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(columns("--hdims 64,128"), [(64, 64, 32), (128, 128, 16)]);
    let given = columns("--hdims 192,64 --hdims-v 128,64 --width 384");
    let expected = [(192, 128, 2), (192, 64, 2), (64, 128, 6), (64, 64, 6)];
    assert_eq!(given, expected);

    let sizes = "--hdims 16 --width 32 --seqs 8 --tokens 16 --causal 0";
    let cases = on_cpu(&format!("{sizes} --hdims-v 8")).unwrap();
    assert_eq!(cases[0].problem.shape_v(), [2, 8, 2, 8]);
    assert_eq!(cases[0].problem.shape_k(), [2, 8, 2, 16]);
    let refused = on_cpu(&format!("{sizes} --hdims-v 0")).err().unwrap();
    assert!(refused.to_string().contains("head_dim_v"), "{refused}");
}

#[test]
fn decode_has_every_combination() {
    let line = "--decode --heads 32/8,64/8,32 --seqs 1,4 --seqlen-k 64,128 --batch 1,8,64";
    let all = on_gpu(line);
    assert_eq!(all.len(), 3 * 2 * 2 * 3);
    let of = |sizes: &Sizes| (sizes.heads.q, sizes.heads.k, sizes.seqlen_q);
    assert_eq!(of(&all[0]), (32, 8, 1));
    assert_eq!(of(&all[12]), (64, 8, 1));
    assert_eq!(of(&all[35]), (32, 32, 4));
    let cache = |sizes: &Sizes| (sizes.seqlen_k, sizes.batch);
    let caches: Vec<_> = all[..6].iter().map(cache).collect();
    let expected = [(64, 1), (64, 8), (64, 64), (128, 1), (128, 8), (128, 64)];
    assert_eq!(caches, expected);

    let first = on_gpu("--decode")[0];
    assert_eq!((first.head_dim, first.heads), (128, DECODE_HEADS));
    assert_eq!((first.seqlen_q, first.seqlen_k, first.batch), (1, 1024, 1));
}

#[test]
fn decode_is_causal_where_there_are_several_queries() {
    let masks = |line: &str| {
        let line = format!("--decode --batch 1 --seqlen-k 64 --seqs 1,4 {line}");
        let cases = on_cpu(&line).unwrap();
        assert!(cases.iter().all(|case| case.pass == Pass::Forward));
        cases
            .iter()
            .map(|case| case.problem.mask())
            .collect::<Vec<_>>()
    };
    assert_eq!(masks(""), [Mask::Full, Mask::Causal]);
    assert_eq!(masks("--causal 0"), [Mask::Full, Mask::Full]);
    assert_eq!(masks("--causal 1"), [Mask::Causal, Mask::Causal]);
}

#[test]
fn decode_has_no_backward_pass() {
    assert_eq!(on_cpu("--seqs 8 --hdims 64 --causal 0").unwrap().len(), 2);
    assert_eq!(
        on_cpu("--decode --batch 1 --seqlen-k 8 --passes fwd")
            .unwrap()
            .len(),
        1
    );
    let refused = on_cpu("--decode --passes fwd,bwd")
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("--passes bwd"), "{refused}");
}

#[test]
fn layers_are_measured_on_a_gpu_alone() {
    let refusal = |line| on_cpu(line).err().map(|failure| failure.to_string());
    let message = refusal("--decode --layers 2").unwrap();
    assert!(message.contains("--layers: they are measured on a GPU alone"));
    assert!(
        refusal("--decode --layers 0")
            .unwrap()
            .contains("allowed: 1 and more")
    );
    assert_eq!(refusal("--decode --layers 1 --batch 1 --seqlen-k 64"), None);
    let many = BenchArguments::parse("--decode --layers 32").unwrap();
    assert!(check_options(&many, true).is_ok());
    let in_8_bits = BenchArguments::parse("--decode --layers 2 --kv-dtype e4m3").unwrap();
    let message = check_options(&in_8_bits, true).unwrap_err().to_string();
    assert!(message.contains("a cache of 8 bits"), "{message}");
}

#[test]
fn lengths_on_the_device_are_measured_on_a_gpu_alone() {
    let sizes = "--decode --batch 1 --seqlen-k 64";
    let refused = on_cpu(&format!("{sizes} --cache-lengths device")).err();
    let message = refused.unwrap().to_string();
    assert!(
        message.contains("--cache-lengths") && message.contains("allowed: shape"),
        "{message}"
    );
    assert!(on_cpu(&format!("{sizes} --cache-lengths shape")).is_ok());
}

/// What the CPU gives in both passes for the options of a small problem.
fn results(options: &str) -> Vec<Results> {
    let sizes = "--hdims 8 --width 32 --heads-k 2 --seqs 33 --seqlen-k 40 --tokens 80 --dtype f32";
    results_of(&on_cpu(&format!("{sizes} {options}")).unwrap())
}

/// What the CPU gives for cases in f32.
fn results_of(cases: &[Case]) -> Vec<Results> {
    let results = cases.iter().map(|case| {
        let mut random = SmallRng::seed_from_u64(0);
        let (lengths, named) = (&case.lengths, case.named);
        let tensors = Tensors::<f32>::random(case.problem, lengths, named, &mut random, None);
        let mut subject = OnHost::new(&Device::cpu(), tensors.unwrap()).unwrap();
        let ready = subject.prepare(&case.variants[0]).unwrap();
        subject.results(&ready.call).unwrap()
    });
    results.collect()
}

/// The largest difference.
fn distance(a: &[Results], b: &[Results]) -> f32 {
    let values = |all: &[Results]| -> Vec<f32> {
        let results = all.iter().flatten();
        results.flat_map(|(_, values)| values.clone()).collect()
    };
    let (a, b) = (values(a), values(b));
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(&b)
        .fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

#[test]
fn every_pair_of_expressions_runs_in_both_passes() {
    let plain = results("--causal 0");
    assert_eq!(plain.len(), 2);
    for name in NamedScore::ALL {
        let score = format!("--causal 0 --score {}", name.name());
        let differs = distance(&results(&score), &plain) > 1e-5;
        assert_eq!(differs, name != NamedScore::Identity, "{score}");
        for mask in NamedMask::ALL {
            let both = results(&format!("{score} --mask-expression {}", mask.name()));
            let values = both.iter().flatten().flat_map(|(_, values)| values);
            assert!(values.copied().all(f32::is_finite), "{score} {mask:?}");
        }
    }
}

#[test]
fn every_way_of_8_bits_runs_in_both_passes() {
    let sizes = "--hdims 16 --width 32 --heads-k 1 --causal 1 --dtype f32";
    for lens in ["--seqs 300 --tokens 600", "--lengths 300,5"] {
        let cases = |fp8: &str| on_cpu(&format!("{sizes} {lens} --fp8 {fp8}")).unwrap();
        let [two_levels, one_level, blocks] = ["two-levels", "one-level", "blocks"].map(cases);
        let ways = [
            (&two_levels, Fp8::PerTensor, Fp8Sums::TwoLevels),
            (&one_level, Fp8::PerTensor, Fp8Sums::OneLevel),
            (&blocks, Fp8::PerBlock, Fp8Sums::TwoLevels),
        ];
        for (cases, scales, sums) in ways {
            let problem = cases[0].problem;
            assert_eq!((problem.fp8(), problem.fp8_sums()), (Some(scales), sums));
            assert_eq!(cases.len(), 2);
        }
        let results = [&two_levels, &one_level, &blocks].map(|cases| results_of(cases));
        let values = results.iter().flatten().flatten();
        assert!(values.flat_map(|(_, values)| values).all(|x| x.is_finite()));
        // The processor sums in f32, whatever the levels.
        assert_eq!(distance(&results[0], &results[1]), 0.0);
        assert!(distance(&results[0], &results[2]) > 0.1);
    }
}

#[test]
fn named_masks_are_those_of_options() {
    let causal = results("--causal 1");
    assert!(distance(&results("--causal 0 --mask-expression causal"), &causal) < 1e-5);
    // 1024 keys are more than there are.
    assert!(distance(&results("--causal 0 --mask-expression window"), &causal) < 1e-5);
    assert!(distance(&results("--causal 0 --mask-expression document"), &causal) > 1e-2);
    // There is one run of blocks.
    let full = results("--causal 0");
    assert!(distance(&results("--causal 0 --mask-expression blocks"), &full) < 1e-5);
}
