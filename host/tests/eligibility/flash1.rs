//! What flash1 refuses, and that it runs only where it is asked for by name.

use ferroflash::{BlockMask, Fp8Kv, Pages, Score};

use super::*;

const PASSES: [Pass; 2] = [Pass::Forward, Pass::Backward];

fn planned(problem: &Problem, pass: Pass, asked: Option<Algorithm>) -> Result<Plan, PlanError> {
    let checked = without_tensors(problem, pass, Location::Cuda(0)).unwrap();
    plan(&checked, &DeviceInfo::h200(), Backend::Cuda, asked)
}

#[track_caller]
fn refuses(problem: &Problem, pass: Pass, reason: Reason) {
    let checked = without_tensors(problem, pass, Location::Cuda(0)).unwrap();
    let refused = refusal(Algorithm::Flash1, &checked, &DeviceInfo::h200());
    assert_eq!(refused, reason, "{pass:?} of {problem:?}");
}

#[test]
fn it_runs_where_it_is_asked_for_and_nowhere_else() {
    for pass in PASSES {
        let plan = planned(&small(), pass, Some(Algorithm::Flash1)).unwrap();
        assert_eq!(plan.algorithm, Algorithm::Flash1);
        let text = planned(&small(), pass, None).unwrap().to_string();
        let says = "candidate flash1    could run; it does only when asked for by name";
        assert!(text.contains(says), "{text}");
        let text = planned(&small(), pass, Some(Algorithm::Flash2))
            .unwrap()
            .to_string();
        assert!(
            text.contains("candidate flash1    could run; another was"),
            "{text}"
        );
    }
}

#[test]
fn what_its_kernels_do_not_take_is_refused() {
    for pass in PASSES {
        refuses(&with(|p| p.packed_q(100)), pass, Reason::Lengths);
        refuses(&with(|p| p.packed_k(100)), pass, Reason::Lengths);
        refuses(&with(|p| p.dropout(0.5)), pass, Reason::Dropout);
        let score = Score::new(|s, _| s + 1.0).unwrap();
        refuses(
            &with(|p| p.score(score)),
            pass,
            Reason::Score { beside: None },
        );
        let f32 = Problem::builder(Dtype::F32)
            .seqlen(64)
            .heads(2)
            .head_dim(64);
        let given = Dtype::F32;
        refuses(&f32.build().unwrap(), pass, Reason::Dtype { given });
        let head_dim = Reason::HeadDimMultiple {
            given: 264,
            multiple: 8,
            most: 256,
        };
        refuses(&with(|p| p.head_dim(264)), pass, head_dim);
    }
    let blocks = with(|p| p.block_mask(BlockMask::new(128, 128)));
    for (pass, block_q, block_k) in [(Pass::Forward, 128, 256), (Pass::Backward, 64, 128)] {
        refuses(&blocks, pass, Reason::BlockMask { block_q, block_k });
    }
    refuses(&with(|p| p.split_kv(128)), Pass::Forward, Reason::SplitKv);
    refuses(
        &with(|p| p.pages(Pages::new(8, 16))),
        Pass::Forward,
        Reason::Lengths,
    );
    let in_8_bits = with(|p| p.seqlen_q(1).fp8_kv(Fp8Kv::PerSequence));
    refuses(&in_8_bits, Pass::Forward, Reason::Fp8Kv);
    let latent = with(|p| p.values_in_keys());
    refuses(&latent, Pass::Forward, Reason::ValuesInKeys);
    refuses(&small(), Pass::ForwardWithWeights, Reason::NoWeights);
}

/// Its backward pass has compact tiles where shared memory has no room for others, up to head_dim 128.
#[test]
fn a_device_of_99_kilobytes_has_compact_tiles() {
    let device = DeviceInfo::rtx3060();
    let on_it = |head_dim: usize, pass| {
        let problem = with(|p| p.head_dim(head_dim));
        let checked = without_tensors(&problem, pass, Location::Cuda(0)).unwrap();
        plan(&checked, &device, Backend::Cuda, Some(Algorithm::Flash1))
    };
    for head_dim in [32, 64, 128] {
        for pass in PASSES {
            let plan = on_it(head_dim, pass).unwrap();
            let compact = pass == Pass::Backward && head_dim == 128;
            let tiles = if compact {
                TileShape::Compact
            } else {
                TileShape::Default
            };
            assert!(
                plan.launches
                    .iter()
                    .all(|launch| launch.variant.tiles == tiles)
            );
        }
    }
    assert!(PASSES.iter().all(|&pass| on_it(256, pass).is_err()));
}
