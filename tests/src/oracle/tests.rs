//! The oracle against itself: finite differences, cases with a known answer, rows that see no key.

use super::{Inputs, Output, Sizes, backward, causal, forward, full};

/// Numbers in [−1, 1) that depend on `salt` and the index alone.
fn numbers(n: usize, salt: u64) -> Vec<f64> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

fn sizes(seqlen_q: usize, seqlen_k: usize) -> Sizes {
    Sizes {
        batch: 2,
        seqlen_q,
        seqlen_k,
        heads_q: 4,
        heads_k: 2,
        head_dim: 3,
    }
}

/// Which of the three inputs is varied.
#[derive(Clone, Copy, Debug)]
enum Input {
    Q,
    K,
    V,
}

/// `d(Σ o ∘ d_o)/d(input[at])` by a central difference of fourth order.
fn difference(inputs: &Inputs, d_o: &[f64], which: Input, at: usize) -> f64 {
    let step = 1e-3;
    let loss = |shift: f64| {
        let (mut q, mut k, mut v) = (inputs.q.to_vec(), inputs.k.to_vec(), inputs.v.to_vec());
        match which {
            Input::Q => q[at] += shift,
            Input::K => k[at] += shift,
            Input::V => v[at] += shift,
        }
        let output = forward(&Inputs {
            q: &q,
            k: &k,
            v: &v,
            ..*inputs
        });
        output
            .o
            .iter()
            .zip(d_o)
            .map(|(o, d_o)| o * d_o)
            .sum::<f64>()
    };
    (8.0 * (loss(step) - loss(-step)) - (loss(2.0 * step) - loss(-2.0 * step))) / (12.0 * step)
}

fn check_gradients(sizes: Sizes, visible: &dyn Fn(usize, usize) -> bool) {
    let q = numbers(sizes.query_elems(), 1);
    let k = numbers(sizes.key_elems(), 2);
    let v = numbers(sizes.key_elems(), 3);
    let d_o = numbers(sizes.query_elems(), 4);
    let inputs = Inputs {
        sizes,
        q: &q,
        k: &k,
        v: &v,
        softmax_scale: 0.7,
        visible,
    };
    let gradients = backward(&inputs, &d_o);
    for (which, gradient) in [
        (Input::Q, &gradients.d_q),
        (Input::K, &gradients.d_k),
        (Input::V, &gradients.d_v),
    ] {
        for (at, &exact) in gradient.iter().enumerate() {
            let numeric = difference(&inputs, &d_o, which, at);
            assert!(
                (exact - numeric).abs() < 1e-9,
                "{sizes:?} {which:?}[{at}]: {exact} by rule, {numeric} by difference"
            );
        }
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for (seqlen_q, seqlen_k) in [(3, 3), (2, 5), (5, 2), (1, 1)] {
        check_gradients(sizes(seqlen_q, seqlen_k), &full);
        check_gradients(
            sizes(seqlen_q, seqlen_k),
            &causal(sizes(seqlen_q, seqlen_k)),
        );
    }
}

#[test]
fn equal_keys_give_the_mean_of_the_values() {
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 1,
        seqlen_k: 4,
        heads_q: 1,
        heads_k: 1,
        head_dim: 1,
    };
    let output = forward(&Inputs {
        sizes,
        q: &[2.0],
        k: &[3.0; 4],
        v: &[1.0, 2.0, 3.0, 6.0],
        softmax_scale: 0.5,
        visible: &full,
    });
    assert_eq!(output.o, [3.0]);
    assert!((output.lse[0] - (3.0 + 4f64.ln())).abs() < 1e-15);
}

#[test]
fn causal_is_aligned_to_the_bottom_right() {
    let visible = causal(sizes(2, 4));
    assert_eq!(
        (0..4).map(|j| visible(0, j)).collect::<Vec<_>>(),
        [true, true, true, false]
    );
    assert_eq!((0..4).map(|j| visible(1, j)).collect::<Vec<_>>(), [true; 4]);
    let visible = causal(sizes(4, 2));
    assert!(!visible(0, 0) && !visible(1, 0) && visible(2, 0) && !visible(2, 1) && visible(3, 1));
}

#[test]
fn a_row_without_keys_gives_zero_and_minus_infinity() {
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 2,
        seqlen_k: 1,
        heads_q: 1,
        heads_k: 1,
        head_dim: 2,
    };
    let inputs = Inputs {
        sizes,
        q: &[1.0; 4],
        k: &[1.0; 2],
        v: &[5.0; 2],
        softmax_scale: 1.0,
        visible: &causal(sizes),
    };
    assert_eq!(
        forward(&inputs),
        Output {
            o: vec![0.0, 0.0, 5.0, 5.0],
            lse: vec![f64::NEG_INFINITY, 2.0]
        }
    );
    let gradients = backward(&inputs, &[1.0; 4]);
    assert_eq!(gradients.d_q, [0.0; 4]);
    assert_eq!(gradients.d_v, [1.0; 2]);
}

#[test]
fn heads_of_a_group_share_their_keys() {
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 1,
        seqlen_k: 1,
        heads_q: 4,
        heads_k: 2,
        head_dim: 1,
    };
    let output = forward(&Inputs {
        sizes,
        q: &[1.0; 4],
        k: &[1.0; 2],
        v: &[7.0, 9.0],
        softmax_scale: 1.0,
        visible: &full,
    });
    assert_eq!(output.o, [7.0, 7.0, 9.0, 9.0]);
}
