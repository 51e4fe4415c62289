//! Sinks: differences of the loss by each of them, and known answers.

use super::*;

/// How far gradients lie at most from the differences of the loss: those of q, k, v, and those of the sinks.
fn apart_with_sinks(inputs: &Inputs, right: &OfOutput, gradients: &[f64]) -> f64 {
    let sinks = inputs.sinks.unwrap();
    let by_rule = gradients.iter().enumerate();
    by_rule
        .map(|(at, by_rule)| (by_rule - difference_by_sink(inputs, right, sinks, at)).abs())
        .fold(0.0, f64::max)
}

fn difference_by_sink(inputs: &Inputs, of_output: &OfOutput, sinks: &[f64], at: usize) -> f64 {
    central(|shift| {
        let mut sinks = sinks.to_vec();
        sinks[at] += shift;
        let sinks = Some(&*sinks);
        loss(&Inputs { sinks, ..*inputs }, of_output)
    })
}

/// Near the scores, above, below, and none.
const SINKS: [f64; 4] = [0.3, 2.5, -3.0, f64::NEG_INFINITY];

/// Every mask, with lse in the loss and without; rows that see no key have an lse where their head has a sink.
fn each_problem(check: impl Fn(&Inputs, &OfOutput)) {
    for (seqlen_q, seqlen_k) in LENGTHS {
        let sizes = sizes(seqlen_q, seqlen_k);
        each_mask(sizes, &|inputs, of_output| {
            let d_lse = numbers(sizes.row_elems(), 7);
            let inputs = Inputs {
                sinks: Some(&SINKS),
                ..*inputs
            };
            let sees = |row: usize| {
                let (head, query) = (row / sizes.seqlen_q % sizes.heads_q, row % sizes.seqlen_q);
                SINKS[head].is_finite() || (0..sizes.seqlen_k).any(|j| (inputs.visible)(query, j))
            };
            let d_lse = d_lse.into_iter().enumerate();
            let d_lse = d_lse.map(|(row, x)| if sees(row) { x } else { f64::NAN });
            let with_lse = OfOutput {
                d_lse: Some(d_lse.collect()),
                ..of_output.clone()
            };
            let of_o_alone = OfOutput {
                d_lse: None,
                ..of_output.clone()
            };
            check(&inputs, &with_lse);
            check(&inputs, &of_o_alone);
        });
    }
}

#[test]
fn gradients_with_sinks_are_those_of_finite_differences() {
    each_problem(|inputs, of_output| {
        let of_inputs = apart(inputs, of_output, of_output);
        let d_sinks = backward(inputs, &of_output.d_o, of_output.d_lse.as_deref()).d_sinks;
        let of_sinks = apart_with_sinks(inputs, of_output, &d_sinks);
        assert!(
            of_inputs.iter().all(|&apart| apart < TOLERANCE) && of_sinks < TOLERANCE,
            "{:?}: {of_inputs:?} from the differences of q, k and v, {of_sinks} of sinks",
            inputs.sizes
        );
        assert_eq!(d_sinks[3], 0.0);
    });
}

/// The tolerance tells wrong gradients of sinks from right ones: of the other sign, of a neighbouring head.
#[test]
fn differences_find_a_wrong_gradient_of_sinks() {
    each_problem(|inputs, right| {
        let d_sinks = backward(inputs, &right.d_o, right.d_lse.as_deref()).d_sinks;
        let negative: Vec<f64> = d_sinks.iter().map(|d_sink| -d_sink).collect();
        let mut rotated = d_sinks.clone();
        rotated.rotate_left(1);
        for wrong in [negative, rotated] {
            assert!(1e6 * TOLERANCE < apart_with_sinks(inputs, right, &wrong));
        }
    });
}

#[test]
fn a_sink_takes_its_share() {
    let sizes = Sizes {
        batch: 1,
        seqlen_q: 2,
        seqlen_k: 1,
        heads_q: 1,
        heads_k: 1,
        head_dim: 1,
        head_dim_v: 1,
    };
    let visible = causal(sizes);
    let inputs = Inputs {
        sizes,
        q: &[1.0, 1.0],
        k: &[2.0],
        v: &[8.0],
        softmax_scale: 1.0,
        visible: &visible,
        block: None,
        edit: None,
        sinks: Some(&[2.0 + 3f64.ln()]),
        dropout: None,
    };
    let Output { o, lse } = forward(&inputs);
    // The first row sees no key; the second one's weighs a third of the sink.
    assert_eq!((o[0], lse[0]), (0.0, 2.0 + 3f64.ln()));
    assert!((o[1] - 2.0).abs() < 1e-14 && (lse[1] - (2.0 + 4f64.ln())).abs() < 1e-14);
    let d_sinks = backward(&inputs, &[1.0, 1.0], Some(&[5.0, 0.0])).d_sinks;
    // 1 · 5 of the first row, ¾ · (0 − 2) of the second.
    assert!((d_sinks[0] - 3.5).abs() < 1e-14);
}
