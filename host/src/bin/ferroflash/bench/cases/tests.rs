//! Which problems options mean.

use ferroflash::Mask;

use super::*;

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
        causal: Some(true),
        heads: Heads { q: 2, k: 1 },
        seqlen_q: 4,
        seqlen_k,
        batch,
    };
    assert_eq!(grouped, [expected(32, 4), expected(64, 2)]);
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
    assert!(check_layers(&many, true).is_ok());
    let in_8_bits = BenchArguments::parse("--decode --layers 2 --kv-dtype e4m3").unwrap();
    let message = check_layers(&in_8_bits, true).unwrap_err().to_string();
    assert!(message.contains("a cache of 8 bits"), "{message}");
}
