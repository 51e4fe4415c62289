//! lse: its values, its gradient alone and beside that of o, and what it is for.

use burn::tensor::{Device, Tensor};
use burn_ferroflash::{Mask, Options, flash_attention, flash_attention_with_lse};

use crate::problem::{PLAIN, Problem, assert_close, devices, elements, random};

/// Which outputs a loss depends on.
#[derive(Clone, Copy, Debug)]
enum Loss {
    O,
    Lse,
    Both,
}

#[test]
fn gradients_of_both_outputs() {
    let problem = Problem {
        heads_k: 2,
        mask: Mask::Causal,
        ..PLAIN
    };
    for device in devices() {
        let device = device.autodiff();
        for loss in [Loss::O, Loss::Lse, Loss::Both] {
            let of_o = random(4, problem.shape_q(), &device);
            let of_lse = random(5, [2, 4, 33], &device);
            let value = |o: Tensor<4>, lse: Tensor<3>| {
                let (o, lse) = ((o * of_o.clone()).sum(), (lse * of_lse.clone()).sum());
                match loss {
                    Loss::O => o,
                    Loss::Lse => lse,
                    Loss::Both => o + lse,
                }
            };
            let leaves = || problem.inputs(&device).map(Tensor::require_grad);
            let [ours, theirs] = [leaves(), leaves()];
            let [q, k, v] = ours.clone();
            let (o, lse) = flash_attention_with_lse(q, k, v, problem.options()).unwrap();
            let (reference, reference_lse) = problem.by_burn(theirs.clone());
            assert_close("lse", &lse, &reference_lse, 3e-6);
            let gradients = value(o, lse).backward();
            let expected = value(reference, reference_lse).backward();
            for (idx, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                let Some(expected) = theirs.grad(&expected) else {
                    // v has no part in lse: Burn gives no gradient, ferroflash zeros.
                    assert!(matches!((loss, idx), (Loss::Lse, 2)));
                    let gradient = ours.grad(&gradients).unwrap();
                    assert!(elements(&gradient).iter().all(|&element| element == 0.0));
                    continue;
                };
                let what = format!("gradient {idx} of {loss:?}");
                assert_close(&what, &ours.grad(&gradients).unwrap(), &expected, 2e-5);
            }
        }
    }
}

/// Both calls give the same o, to the last bit, and the same gradients where the loss depends on o alone.
#[test]
fn both_calls_agree() {
    let device = Device::flex().autodiff();
    let leaves = || PLAIN.inputs(&device).map(Tensor::require_grad);
    let [alone, beside] = [leaves(), leaves()];
    let [q, k, v] = alone.clone();
    let o_alone = flash_attention(q, k, v, PLAIN.options()).unwrap();
    let [q, k, v] = beside.clone();
    let (o_beside, _lse) = flash_attention_with_lse(q, k, v, PLAIN.options()).unwrap();
    assert_eq!(elements(&o_alone), elements(&o_beside));
    let (of_alone, of_beside) = (o_alone.sum().backward(), o_beside.sum().backward());
    for (alone, beside) in alone.iter().zip(&beside) {
        let (alone, beside) = (
            alone.grad(&of_alone).unwrap(),
            beside.grad(&of_beside).unwrap(),
        );
        assert_eq!(elements(&alone), elements(&beside));
    }
}

#[test]
fn rows_that_see_no_key() {
    let problem = Problem {
        seqlen_q: 5,
        seqlen_k: 3,
        mask: Mask::Causal,
        ..PLAIN
    };
    let [q, k, v] = problem.inputs(&Device::flex());
    let (o, lse) = flash_attention_with_lse(q, k, v, problem.options()).unwrap();
    let blind = elements(&lse.narrow(2, 0, 2));
    assert!(blind.iter().all(|&lse| lse == f32::NEG_INFINITY));
    assert!(elements(&o.narrow(2, 0, 2)).iter().all(|&o| o == 0.0));
}

/// Attention over all keys out of attention over two parts of them, and its gradients through lse.
#[test]
fn parts_merge_by_lse() {
    let device = Device::flex().autodiff();
    let leaves = || PLAIN.inputs(&device).map(Tensor::require_grad);
    let options = Options::new(Mask::Full);
    let [whole, parts] = [leaves(), leaves()];
    let [q, k, v] = whole.clone();
    let expected = flash_attention(q, k, v, options).unwrap();

    let [q, k, v] = parts.clone();
    let part = |first, n| {
        let (k, v) = (k.clone().narrow(2, first, n), v.clone().narrow(2, first, n));
        flash_attention_with_lse(q.clone(), k, v, options).unwrap()
    };
    let ((o_1, lse_1), (o_2, lse_2)) = (part(0, 20), part(20, 13));
    let lse = (lse_1.clone().exp() + lse_2.clone().exp()).log();
    let weight = |of: Tensor<3>| (of - lse.clone()).exp().unsqueeze_dim::<4>(3);
    let merged = o_1 * weight(lse_1) + o_2 * weight(lse_2);
    assert_close("o", &merged, &expected, 3e-6);

    let of_o = random(4, PLAIN.shape_q(), &device);
    let merged = (merged * of_o.clone()).sum().backward();
    let expected = (expected * of_o).sum().backward();
    for (part, whole) in parts.iter().zip(&whole) {
        let (part, whole) = (part.grad(&merged).unwrap(), whole.grad(&expected).unwrap());
        assert_close("gradient", &part, &whole, 2e-5);
    }
}
