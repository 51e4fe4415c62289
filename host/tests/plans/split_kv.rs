//! Keys divided into splits: which kernels do it, where their results lie, and what is refused.

use ferroflash::error::ProblemError;
use ferroflash::plan::{Outcome, Reason};
use ferroflash::validate::sizes;
use ferroflash::{BlockMask, Pages};
use ferroflash_kernels::params::Params;

use super::*;

fn decode() -> ProblemBuilder {
    llama_like().seqlen_q(1).seqlen_k(65536).split_kv(4000)
}

#[test]
fn a_query_over_many_keys() {
    check(
        decode(),
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash2 on cuda
              problem   bf16 q [2, 1, 32, 128] k [2, 65536, 8, 128] causal scale 0.088388346 Deterministic
              launch    forward_sm80_bf16_d128_compact split_kv grid 272 threads 128 shared 98304
                        tiles 1 heads 16 heads_per_group 8, 17 splits of 4032 keys, 4 heads of q share a tile
              workspace 823808 bytes
                          arrivals      at          256, 256 bytes
                          split_o       at       262400, 557056 bytes
                          split_lse     at       819456, 4352 bytes
              standard attention would need 25165824 bytes
              candidate flash2    chosen, with compact tiles; with default tiles: it does not divide the keys of a sequence, as split_kv asks
              candidate flash3    could run; a faster one can too
              candidate flash1    cannot run: it does not divide the keys of a sequence, as split_kv asks
              candidate standard  cannot run: it does not divide the keys of a sequence, as split_kv asks
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn other_algorithms_refuse() {
    // flash2 divides keys of padded queries alone.
    let of_flash2 = decode().packed_q(2);
    let of_standard = decode();
    for (asked, problem) in [
        (Algorithm::Flash2, of_flash2),
        (Algorithm::Standard, of_standard),
    ] {
        let Err(PlanError::NoCandidate { candidates, .. }) =
            plan_of(problem, Pass::Forward, Some(asked))
        else {
            panic!("{asked} divides no keys");
        };
        let mut candidates = candidates.iter();
        let refused = candidates.find(|candidate| candidate.algorithm == asked);
        assert_eq!(
            refused.map(|candidate| &candidate.outcome),
            Some(&Outcome::Refused(Reason::SplitKv))
        );
    }
}

/// flash2's kernel for few queries takes what it is faster at: lengths, pages and large caches.
#[test]
fn flash2_is_preferred_for_few_queries_where_it_is_faster() {
    let chosen = |problem: ProblemBuilder| plan_of(problem, Pass::Forward, None).unwrap().algorithm;
    let decode = llama_like().seqlen_q(1);
    assert_eq!(chosen(decode.seqlen_k(8192)), Algorithm::Flash3);
    assert_eq!(chosen(decode.batch(64).seqlen_k(8192)), Algorithm::Flash2);
    let paged = decode.seqlen_k(8192).pages(Pages::new(2000, 16));
    assert_eq!(chosen(paged), Algorithm::Flash2);
    assert_eq!(chosen(paged.seqlen_q(9)), Algorithm::Flash3);
    assert_eq!(chosen(paged.head_dim(96)), Algorithm::Flash3);
}

#[test]
fn few_queries_in_pages() {
    check(
        llama_like()
            .seqlen_q(1)
            .seqlen_k(8192)
            .pages(Pages::new(2000, 16)),
        Pass::Forward,
        None,
        expect![[r#"
            Forward with flash2 on cuda
              problem   bf16 q [2, 1, 32, 128] k [2000, 16, 8, 128] causal scale 0.088388346 Deterministic
              launch    forward_sm80_bf16_d128_compact lengths+split_kv+pages grid 280 threads 128 shared 98304
                        tiles 1 heads 16 heads_per_group 8, 16 splits of 512 keys, 4 heads of q share a tile
              workspace 790784 bytes
                          arrivals      at          256, 256 bytes
                          split_o       at       262400, 524288 bytes
                          split_lse     at       786688, 4096 bytes
              standard attention would need 3145728 bytes
              candidate flash2    chosen
              candidate flash3    could run; a faster one can too
              candidate flash1    cannot run: its kernels take sequences of one length
              candidate standard  cannot run: it does not find keys and values in pages
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

/// Work that 32 bits do not count is divided equally: by itself the device would find more parts than there are blocks.
#[test]
fn very_many_keys_are_divided_equally() {
    let divided = |batch: u32| {
        let pages = Pages::new(2000, 256);
        let problem = llama_like().batch(batch as usize).seqlen_q(1);
        let problem = problem.seqlen_k(1 << 28);
        let plan = plan_of(problem.pages(pages), Pass::Forward, Some(Algorithm::Flash2)).unwrap();
        let launch = &plan.launches[0];
        let Params::Forward(params) = plan.params(launch, 0, |_| 0) else {
            panic!("{}", launch.variant.name);
        };
        assert!(params.split.n > 1);
        let blocks = batch * 8 * params.split.n;
        (params.split.parts > 0, launch.grid == blocks)
    };
    assert_eq!(divided(64), (true, false));
    assert_eq!(divided(128), (false, true));
}

#[test]
fn the_backward_pass_is_as_without() {
    let with = decode().seqlen_k(4096);
    let without = llama_like().seqlen_q(1).seqlen_k(4096);
    let [with, without] =
        [with, without].map(|problem| plan_of(problem, Pass::Backward, None).unwrap());
    assert_eq!(with.launches, without.launches);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let of = |problem: ProblemBuilder| sizes(&problem.build().unwrap());
    assert_eq!(of(decode()), Ok(()));
    assert_eq!(of(decode().split_kv(0)), Err(ProblemError::SplitKv));
    assert_eq!(
        of(decode().block_mask(BlockMask::new(128, 128))),
        Err(ProblemError::BlockMaskWithSplitKv)
    );
}
