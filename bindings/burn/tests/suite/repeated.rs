//! Equal inputs give bit-equal outputs and gradients.

use burn::tensor::Tensor;
use burn_ferroflash::{Mask, flash_attention_with_lse};

use crate::problem::{PLAIN, Problem, devices, elements, random};

#[test]
fn equal_inputs_give_equal_bits() {
    let problem = Problem {
        heads_q: 8,
        heads_k: 2,
        seqlen_q: 150,
        seqlen_k: 170,
        head_dim: 64,
        mask: Mask::Causal,
        ..PLAIN
    };
    for device in devices() {
        let device = device.autodiff();
        let run = || {
            let leaves = problem.inputs(&device).map(Tensor::require_grad);
            let [q, k, v] = leaves.clone();
            let (o, lse) = flash_attention_with_lse(q, k, v, problem.options()).unwrap();
            let loss =
                (o.clone() * random(4, problem.shape_q(), &device)).sum() + lse.clone().sum();
            let gradients = loss.backward();
            let [d_q, d_k, d_v] = leaves.map(|leaf| elements(&leaf.grad(&gradients).unwrap()));
            [elements(&o), elements(&lse), d_q, d_k, d_v]
        };
        let first = run();
        for _ in 0..5 {
            assert_eq!(first, run());
        }
    }
}
