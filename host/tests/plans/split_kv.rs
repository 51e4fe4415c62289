//! Keys divided into splits: which kernels do it, where their results lie, and what is refused.

use ferroflash::BlockMask;
use ferroflash::error::ProblemError;
use ferroflash::plan::{Outcome, Reason};
use ferroflash::validate::sizes;

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
            Forward with flash3 on cuda
              problem   bf16 q [2, 1, 32, 128] k [2, 65536, 8, 128] causal scale 0.088388346 Deterministic
              launch    forward_sm90a_bf16_d128_compact split_kv grid 132 threads 256 shared 114992
                        tiles 17 heads 16 heads_per_group 1, 17 splits of 4032 keys, 4 heads of q share a tile
              workspace 594432 bytes
                          tile_counter  at            0, 4 bytes
                          arrivals      at          256, 256 bytes
                          split_o       at        33024, 557056 bytes
                          split_lse     at       590080, 4352 bytes
              standard attention would need 25165824 bytes
              candidate flash3    chosen, with compact tiles; with default tiles: it does not divide the keys of a sequence, as split_kv asks
              candidate flash2    cannot run: it does not divide the keys of a sequence, as split_kv asks
              candidate flash1    cannot run: its forward kernels are not built yet
              candidate standard  cannot run: it does not divide the keys of a sequence, as split_kv asks
              candidate tiled     cannot run: it does not run on cuda
        "#]],
    );
}

#[test]
fn other_algorithms_refuse() {
    for asked in [Algorithm::Flash2, Algorithm::Standard] {
        let Err(PlanError::NoCandidate { candidates, .. }) =
            plan_of(decode(), Pass::Forward, Some(asked))
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
