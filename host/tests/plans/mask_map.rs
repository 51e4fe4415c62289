//! Blocks that a mask expression hides: when they are found before a pass, and what a plan says where they are not.

use ferroflash::plan::{MaskBlocks, Unmapped};
use ferroflash::{BlockMask, MaskExpression, Score};
use ferroflash_kernels::params::{MaskMapPhase, Params};
use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::Kind;

use super::*;

fn causal() -> MaskExpression {
    Mask::new(|at| at.k.le(at.q + at.i32("ahead"))).unwrap()
}

fn documents() -> MaskExpression {
    let mask = Mask::new(|at| {
        let document = |place| at.tensor_i32("document", [at.batch, place]);
        document(at.q).eq(document(at.k))
    });
    mask.unwrap()
}

fn masked(mask: MaskExpression) -> ProblemBuilder {
    llama_like().mask(Mask::Full).mask_expression(mask)
}

fn kinds(plan: &Plan) -> Vec<Kind> {
    plan.launches
        .iter()
        .map(|launch| launch.variant.kind)
        .collect()
}

#[test]
fn a_map_comes_before_the_lists_in_both_passes() {
    use Kind::{BlockList, Clear, MaskMap, TmaBackward, TmaBackwardPreprocess, TmaForward};
    let backward = [
        BlockList,
        BlockList,
        Clear,
        TmaBackwardPreprocess,
        TmaBackward,
    ];
    // What is known of documents is found at each query and each key first.
    for (mask, maps) in [(causal(), 1), (documents(), 2)] {
        let plan = plan_of(masked(mask), Pass::Forward, None).unwrap();
        let expected = [&vec![MaskMap; maps][..], &[BlockList, TmaForward]].concat();
        assert_eq!(kinds(&plan), expected, "{plan}");
        assert_eq!(plan.mask_blocks, Some(MaskBlocks::Skipped));
        assert!(
            plan.to_string()
                .contains("blocks that the mask expression hides are skipped")
        );
        let plan = plan_of(masked(mask), Pass::Backward, None).unwrap();
        let expected = [&vec![MaskMap; maps][..], &backward].concat();
        assert_eq!(kinds(&plan), expected, "{plan}");
        assert_eq!(plan.mask_blocks, Some(MaskBlocks::Skipped));
    }
}

/// Where gradients are summed in order, tiles of more heads lie side by side, so that fewer of each wait for each other; not under a causal mask,
/// whose tiles are spread over the queries.
#[test]
fn fewer_tiles_of_a_head_run_at_a_time_where_they_wait() {
    let heads_per_group = |problem: ProblemBuilder| {
        let plan = plan_of(problem, Pass::Backward, None).unwrap();
        let main = plan.launches.last().unwrap();
        let Params::TmaBackward(params) = main.params else {
            panic!("{plan}");
        };
        params.pass.schedule.heads_per_group
    };
    let problem = masked(documents()).seqlen_q(16_384).seqlen_k(16_384);
    assert_eq!(heads_per_group(problem), 8);
    assert_eq!(heads_per_group(problem.order(Order::Fastest)), 1);
    assert_eq!(heads_per_group(problem.mask(Mask::Causal)), 1);
}

/// There is a map for each batch entry, or head, if the mask depends on it.
#[test]
fn maps_are_of_what_the_mask_depends_on() {
    let of_heads = Mask::new(|at| at.k.le(at.q + at.kv_head)).unwrap();
    for (mask, n_maps, strides) in [
        (causal(), 1, [0, 0]),
        (documents(), 2, [32 * 32, 0]),
        (of_heads, 32, [0, 32 * 32]),
    ] {
        let plan = plan_of(masked(mask), Pass::Forward, None).unwrap();
        let Params::MaskMap(params) = plan.launches[0].params else {
            panic!("{plan}");
        };
        assert_eq!(params.n_maps, n_maps);
        let map = params.map;
        assert_eq!([map.batch_stride, map.head_stride], strides);
    }
}

/// Full blocks are not edited where there is a mask alone.
#[test]
fn scores_are_edited_in_full_blocks_too() {
    let doubled = Score::new(|s, _| s * 2.0).unwrap();
    for pass in [Pass::Forward, Pass::Backward] {
        for (problem, edits_partial) in [
            (masked(causal()), true),
            (masked(causal()).score(doubled), false),
        ] {
            let plan = plan_of(problem, pass, None).unwrap();
            let main = plan.launches.last().unwrap();
            assert!(main.spec.has(Constant::BlockMask), "{plan}");
            assert_eq!(
                main.spec.has(Constant::EditPartial),
                edits_partial,
                "{plan}"
            );
        }
    }
}

/// Masks that intervals do not bound are evaluated at pairs, by a launch more; of long ones it is the only one.
#[test]
fn masks_are_evaluated_at_pairs_where_intervals_say_little() {
    let of_bits = Mask::new(|at| ((at.q ^ at.k) >> 9).eq(0)).unwrap();
    let long = Mask::new(|at| {
        let hides = |n: i32| (at.q * at.k).ne(n);
        (1..40).fold(hides(0), |all, n| all & hides(n))
    });
    use MaskMapPhase::{Bounds, Map, Pairs};
    let phases: [(MaskExpression, &[MaskMapPhase]); 4] = [
        (of_bits, &[Map, Pairs]),
        (long.unwrap(), &[Pairs]),
        (causal(), &[Map]),
        (documents(), &[Bounds, Map]),
    ];
    for (mask, phases) in phases {
        let plan = plan_of(masked(mask), Pass::Backward, None).unwrap();
        assert_eq!(plan.mask_blocks, Some(MaskBlocks::Skipped), "{plan}");
        let launches = plan.launches.iter();
        let maps: Vec<_> = launches
            .filter(|launch| launch.variant.kind == Kind::MaskMap)
            .collect();
        assert_eq!(maps.len(), phases.len(), "{plan}");
        for (launch, &phase) in maps.iter().zip(phases) {
            let Params::MaskMap(params) = launch.params else {
                panic!("{plan}");
            };
            assert_eq!(params.phase, phase as u32, "{plan}");
            let at_pairs = phase == Pairs;
            assert_eq!(launch.spec.has(Constant::Score), at_pairs, "{plan}");
            assert_eq!(launch.edit.is_some(), at_pairs, "{plan}");
            let blocks = params.n_maps * 32 * 32;
            match phase {
                Bounds => {}
                Map => assert_eq!(launch.grid, blocks / 128, "{plan}"),
                Pairs => assert_eq!(launch.grid, 8 * blocks / 128, "{plan}"),
            }
        }
    }
}

#[test]
fn a_plan_says_why_hidden_blocks_are_computed() {
    let of_heads = Mask::new(|at| at.k.le(at.q + at.head)).unwrap();
    let blocks = BlockMask::new(128, 128);
    let check = |problem: ProblemBuilder, asked, expected: fn(&Unmapped) -> bool| {
        let plan = plan_of(problem, Pass::Forward, asked).unwrap();
        let Some(MaskBlocks::Computed(why)) = plan.mask_blocks else {
            panic!("{plan}");
        };
        assert!(expected(&why), "{plan}");
        let said = format!("blocks that the mask expression hides are computed: {why}");
        assert!(plan.to_string().contains(&said), "{plan}");
        assert!(!kinds(&plan).contains(&Kind::MaskMap), "{plan}");
    };
    check(masked(causal()).block_mask(blocks), None, |why| {
        *why == Unmapped::BlockMask
    });
    check(masked(causal()).packed_q(5000), None, |why| {
        *why == Unmapped::Lengths
    });
    check(masked(causal()).seqlen_q(127), None, |why| {
        *why == Unmapped::FewQueries {
            given: 127,
            needed: 128,
        }
    });
    // 132 SMs have 128 tiles: each one, of as many blocks as there are keys.
    let few = masked(causal()).batch(1).seqlen_q(512);
    check(few.seqlen_k(1920), None, |why| {
        *why == Unmapped::Few {
            given: 15,
            needed: 16,
        }
    });
    let enough = plan_of(few.seqlen_k(1921), Pass::Forward, None).unwrap();
    assert_eq!(enough.mask_blocks, Some(MaskBlocks::Skipped));
    check(masked(of_heads).seqlen(65536), None, |why| {
        *why == Unmapped::Many {
            given: 1 << 23,
            most: 1 << 22,
        }
    });
    check(masked(causal()).head_dim(256), None, |why| {
        *why == Unmapped::Kernels
    });
    check(masked(causal()), Some(Algorithm::Standard), |why| {
        *why == Unmapped::Kernels
    });
    assert_eq!(
        plan_of(llama_like(), Pass::Forward, None)
            .unwrap()
            .mask_blocks,
        None
    );
}
