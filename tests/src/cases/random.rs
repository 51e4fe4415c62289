//! Random cases, and what runs properties on them.

use ferroflash::Mask;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::{Case, HALVES, MASKS};
use crate::buffer::ALIGNED;
use crate::inputs::{ADVERSARIAL, Fill, LseGradient};

/// Random cases of these head_dims with sequences up to this length, of which every backend takes most.
pub fn random(head_dims: &[usize], max_seqlen: usize) -> impl Strategy<Value = Case> {
    let arrangements = select(ALIGNED.to_vec());
    let fills = prop_oneof![3 => Just(Fill::Normal), 1 => select(ADVERSARIAL.to_vec())];
    let scales = prop_oneof![3 => Just(None), 1 => (0.01f32..1.0).prop_map(Some)];
    let lengths = (0..=max_seqlen, 0..=max_seqlen, any::<bool>());
    let heads = (1usize..3, 1usize..3, 1usize..3);
    let lse_gradients = select(vec![LseGradient::Absent, LseGradient::Given]);
    (
        select(HALVES.to_vec()),
        masks(max_seqlen),
        select(head_dims.to_vec()),
        lengths,
        heads,
        arrangements,
        fills,
        scales,
        lse_gradients,
        any::<u32>(),
    )
        .prop_map(
            |(
                dtype,
                mask,
                head_dim,
                (seqlen_q, seqlen_k, equal),
                (batch, heads_k, group),
                arrangement,
                fill,
                softmax_scale,
                lse_gradient,
                seed,
            )| {
                let seqlen_k = if equal { seqlen_q } else { seqlen_k };
                let case = Case::new(dtype, mask, head_dim, seqlen_q, seqlen_k).heads(
                    batch,
                    heads_k * group,
                    heads_k,
                );
                Case {
                    arrangement,
                    fill,
                    softmax_scale,
                    lse_gradient,
                    seed: seed.into(),
                    ..case
                }
            },
        )
}

/// Every kind of mask; prefixes, and windows of all widths, narrow ones more often.
fn masks(max_seqlen: usize) -> impl Strategy<Value = Mask> {
    let side = move || {
        prop_oneof![
            1 => Just(None),
            2 => (0..=max_seqlen / 4).prop_map(Some),
            1 => (0..=2 * max_seqlen).prop_map(Some),
        ]
    };
    prop_oneof![
        select(MASKS.to_vec()),
        (side(), side()).prop_map(|(left, right)| Mask::Window { left, right }),
        (0..=max_seqlen).prop_map(|prefix| Mask::PrefixLm { prefix }),
    ]
}

/// Runs properties on this many cases; equal seeds give equal cases.
pub fn runner(n_cases: u32, seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: n_cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
