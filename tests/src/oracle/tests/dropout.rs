//! Dropout: gradients are those of finite differences, and lse is that of all weights.

use super::*;
use crate::oracle::Dropout;

#[test]
fn gradients_with_dropout_are_those_of_finite_differences() {
    for (at, (seqlen_q, seqlen_k)) in LENGTHS.into_iter().enumerate() {
        let sizes = sizes(seqlen_q, seqlen_k);
        let dropout = Dropout {
            kept_bytes: [128, 200, 60, 128][at],
            rng: [3, at as u64],
        };
        let factor =
            |b: usize, h: usize, i: usize, j: usize| dropout.factor(b * sizes.heads_q + h, i, j);
        each_mask(sizes, &|inputs, of_output| {
            let dropped = Inputs {
                dropout: Some(&factor),
                ..*inputs
            };
            let apart = apart(&dropped, of_output, of_output);
            assert!(
                apart.iter().all(|&apart| apart < TOLERANCE),
                "{:?}: {apart:?} from the differences of q, k and v",
                inputs.sizes
            );
            let (with, without) = (forward(&dropped), forward(inputs));
            assert_eq!(with.lse, without.lse);
            assert_ne!(with.o, without.o);
        });
    }
}
