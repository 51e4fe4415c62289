//! Strides: views give what contiguous tensors give, to the last bit.

use burn::tensor::{Device, Tensor};
use burn_ferroflash::{Mask, Options, flash_attention};

use crate::problem::{PLAIN, devices, elements, random};

type View = fn(Tensor<4>) -> Tensor<4>;

/// o, and the gradient of a leaf, with a view of the leaf as q, k and v.
fn bits(leaf: Tensor<4>, view: impl Fn(Tensor<4>) -> Tensor<4>) -> [Vec<f32>; 2] {
    let leaf = leaf.require_grad();
    let x = view(leaf.clone());
    let options = Options::new(Mask::Causal);
    let o = flash_attention(x.clone(), x.clone(), x, options).unwrap();
    let weights = random(4, o.dims(), &o.device());
    let gradients = (o.clone() * weights).sum().backward();
    [elements(&o), elements(&leaf.grad(&gradients).unwrap())]
}

/// The same elements, contiguous: Burn's sum makes a new tensor.
fn contiguous(x: Tensor<4>) -> Tensor<4> {
    x.add_scalar(0.0)
}

#[test]
fn views_give_the_same_bits() {
    let views: [(&str, View); 6] = [
        ("rows and heads exchanged", |x| x.swap_dims(1, 2)),
        ("some rows", |x| x.narrow(2, 3, 20)),
        ("some columns", |x| x.narrow(3, 4, 8)),
        ("rows and columns exchanged", |x| x.swap_dims(2, 3)),
        ("heads backwards", |x| x.flip([1])),
        ("columns backwards", |x| x.flip([3])),
    ];
    for device in devices() {
        let device = device.autodiff();
        for (name, view) in views {
            let [leaf, ..] = PLAIN.inputs(&device);
            let seen = bits(leaf.clone(), view);
            let copied = bits(leaf, |x| contiguous(view(x)));
            assert_eq!(seen, copied, "{name} on {device:?}");
        }
    }
}

/// Every second row: a step that Burn's backends make a copy or a stride of.
#[test]
fn steps_give_the_same_bits() {
    let device = Device::flex().autodiff();
    let [leaf, ..] = PLAIN.inputs(&device);
    let view = |x: Tensor<4>| x.slice(burn::tensor::s![.., .., 0..33;2, ..]);
    let seen = bits(leaf.clone(), view);
    assert_eq!(seen, bits(leaf, |x| contiguous(view(x))));
}

/// One head of keys and values, repeated by a stride of 0.
#[test]
fn expanded_heads_give_the_same_bits() {
    for device in devices() {
        let q = random(1, [2, 4, 9, 16], &device);
        let k = random(2, [2, 1, 9, 16], &device);
        let options = Options::new(Mask::Full);
        let shared = flash_attention(q.clone(), k.clone(), k.clone(), options).unwrap();
        let expanded = k.expand([2, 4, 9, 16]);
        let repeated = flash_attention(q, expanded.clone(), expanded, options).unwrap();
        assert_eq!(elements(&shared), elements(&repeated));
    }
}

/// Gradients that come as one number, repeated by strides of 0.
#[test]
fn a_gradient_without_memory_of_its_own() {
    let device = Device::flex().autodiff();
    let leaves = || PLAIN.inputs(&device).map(Tensor::require_grad);
    let [summed, weighted] = [leaves(), leaves()];
    let o = |[q, k, v]: [Tensor<4>; 3]| flash_attention(q, k, v, PLAIN.options()).unwrap();
    let of_sum = o(summed.clone()).sum().backward();
    let ones = Tensor::ones(PLAIN.shape_q(), &device);
    let of_product = (o(weighted.clone()) * ones).sum().backward();
    for (summed, weighted) in summed.iter().zip(&weighted) {
        let (summed, weighted) = (
            summed.grad(&of_sum).unwrap(),
            weighted.grad(&of_product).unwrap(),
        );
        assert_eq!(elements(&summed), elements(&weighted));
    }
}
