//! Outputs and gradients against Burn's own products and softmax, on every backend of the build.

use burn::tensor::{DType, Device, Tensor};
use burn_ferroflash::{Mask, Options, flash_attention};

use crate::problem::{PLAIN, Problem, assert_close, devices, elements, random};

const FORWARD: f32 = 3e-6;
const BACKWARD: f32 = 2e-5;

/// o by ferroflash and by Burn, and the gradients of Σ o ∘ w by q, k and v of both.
fn check_on(problem: Problem, device: &Device) {
    let name = format!("{problem:?} on {device:?}");
    let device = device.clone().autodiff();
    let leaves = || problem.inputs(&device).map(Tensor::require_grad);
    let weights = random(4, problem.shape_q(), &device);

    let [ours, theirs] = [leaves(), leaves()];
    let o = flash_attention(
        ours[0].clone(),
        ours[1].clone(),
        ours[2].clone(),
        problem.options(),
    )
    .unwrap();
    let (reference, _lse) = problem.by_burn(theirs.clone());
    assert_close(&format!("o, {name}"), &o, &reference, FORWARD);

    let gradients = (o * weights.clone()).sum().backward();
    let reference = (reference * weights).sum().backward();
    for ((argument, ours), theirs) in ["q", "k", "v"].into_iter().zip(ours).zip(theirs) {
        let what = format!("gradient of {argument}, {name}");
        let gradient = ours.grad(&gradients).unwrap();
        assert_close(
            &what,
            &gradient,
            &theirs.grad(&reference).unwrap(),
            BACKWARD,
        );
    }
}

fn check(problem: Problem) {
    for device in devices() {
        check_on(problem, &device);
    }
}

#[test]
fn full() {
    check(PLAIN);
}

#[test]
fn causal() {
    check(Problem {
        mask: Mask::Causal,
        ..PLAIN
    });
}

#[test]
fn causal_with_other_lengths() {
    check(Problem {
        seqlen_q: 17,
        seqlen_k: 61,
        mask: Mask::Causal,
        ..PLAIN
    });
}

/// The first queries see no key.
#[test]
fn causal_with_rows_that_see_nothing() {
    check(Problem {
        seqlen_q: 61,
        seqlen_k: 17,
        mask: Mask::Causal,
        ..PLAIN
    });
}

#[test]
fn windows() {
    for (left, right) in [
        (Some(5), Some(0)),
        (Some(3), Some(7)),
        (None, Some(4)),
        (Some(0), None),
    ] {
        check(Problem {
            seqlen_q: 47,
            seqlen_k: 53,
            mask: Mask::Window { left, right },
            ..PLAIN
        });
    }
}

#[test]
fn prefix_lm() {
    check(Problem {
        mask: Mask::PrefixLm { prefix: 9 },
        ..PLAIN
    });
}

#[test]
fn grouped_heads() {
    check(Problem {
        heads_q: 6,
        heads_k: 2,
        mask: Mask::Causal,
        ..PLAIN
    });
}

#[test]
fn one_head_of_keys_and_values() {
    check(Problem {
        heads_q: 5,
        heads_k: 1,
        ..PLAIN
    });
}

#[test]
fn odd_sizes() {
    for (seqlen_q, seqlen_k, head_dim) in [
        (1, 1, 1),
        (1, 77, 64),
        (129, 1, 8),
        (131, 67, 37),
        (64, 64, 128),
    ] {
        check(Problem {
            batch: 1,
            seqlen_q,
            seqlen_k,
            head_dim,
            ..PLAIN
        });
    }
}

#[test]
fn a_scale_of_ones_own() {
    check(Problem {
        softmax_scale: Some(0.71),
        mask: Mask::Causal,
        ..PLAIN
    });
}

#[test]
fn gradient_checkpointing_changes_nothing() {
    for device in devices() {
        check_on(PLAIN, &device.autodiff().gradient_checkpointing());
    }
}

/// 16-bit elements: against f32 computed from the same rounded inputs.
#[test]
fn half_precision() {
    let device = Device::flex().autodiff();
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let problem = Problem {
            mask: Mask::Causal,
            ..PLAIN
        };
        let rounded = problem.inputs(&device).map(|input| input.cast(dtype));
        let leaves = rounded.clone().map(Tensor::require_grad);
        let [q, k, v] = leaves.clone();
        let o = flash_attention(q, k, v, problem.options()).unwrap();
        assert_eq!(o.dtype(), dtype);
        let exact = rounded.map(|input| input.detach().cast(DType::F32).require_grad());
        let (reference, _lse) = problem.by_burn(exact.clone());
        assert_close("o", &o.clone().cast(DType::F32), &reference, tolerance);

        let gradients = o.cast(DType::F32).sum().backward();
        let reference = reference.sum().backward();
        for (leaf, exact) in leaves.iter().zip(&exact) {
            let gradient = leaf.grad(&gradients).unwrap();
            assert_eq!(gradient.dtype(), dtype);
            let gradient = gradient.cast(DType::F32);
            let exact = exact.grad(&reference).unwrap();
            assert_close("gradient", &gradient, &exact, 10.0 * tolerance);
        }
    }
}

/// Only inputs that want gradients get them, and constants may come from a device without autodiff.
#[test]
fn some_inputs_are_constants() {
    let plain = Device::flex();
    let autodiff = plain.clone().autodiff();
    let [q, _, v] = PLAIN.inputs(&plain);
    let [_, k, _] = PLAIN.inputs(&autodiff);
    let k = k.require_grad();
    let o = flash_attention(q.clone(), k.clone(), v.clone(), PLAIN.options()).unwrap();
    let gradients = o.sum().backward();
    let of_k = k.grad(&gradients).unwrap();

    let all = PLAIN.inputs(&autodiff).map(Tensor::require_grad);
    let [q, k, v] = all.clone();
    let o = flash_attention(q, k, v, PLAIN.options()).unwrap();
    let gradients = o.sum().backward();
    assert_eq!(elements(&of_k), elements(&all[1].grad(&gradients).unwrap()));
}

/// One tensor as q, k and v: its gradient is the sum of the three.
#[test]
fn one_tensor_as_all_inputs() {
    let device = Device::flex().autodiff();
    let [x, ..] = PLAIN.inputs(&device).map(Tensor::require_grad);
    let reference = x.clone().detach().require_grad();
    let options = Options::new(Mask::Causal);
    let o = flash_attention(x.clone(), x.clone(), x.clone(), options).unwrap();
    let gradient = x.grad(&o.powi_scalar(2).sum().backward()).unwrap();
    let causal = Problem {
        mask: Mask::Causal,
        ..PLAIN
    };
    let (o, _lse) = causal.by_burn([0, 1, 2].map(|_| reference.clone()));
    let expected = reference.grad(&o.powi_scalar(2).sum().backward()).unwrap();
    assert_close("gradient of x", &gradient, &expected, BACKWARD);
}

/// A batch or a length of 0 gives empty tensors; queries without keys give zeros.
#[test]
fn sizes_of_zero() {
    let device = Device::flex();
    for (batch, seqlen_q, seqlen_k) in [(0, 3, 3), (2, 0, 3), (2, 3, 0)] {
        let problem = Problem {
            batch,
            seqlen_q,
            seqlen_k,
            ..PLAIN
        };
        let [q, k, v] = problem.inputs(&device);
        let o = flash_attention(q, k, v, problem.options()).unwrap();
        assert_eq!(o.dims(), problem.shape_q());
        assert!(elements(&o).iter().all(|&element| element == 0.0));
    }
}
