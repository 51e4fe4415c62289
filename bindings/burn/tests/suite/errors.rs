//! Each refusal: which it is, and that it names the argument, what was given and what is allowed.

use burn::backend::flex::FlexTensor;
use burn::backend::{Dispatch, Flex};
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_ferroflash::{
    Argument, AttentionBackend, Error, FlashBackend, Forward, Mask, Options, OutputGradients,
    Saved, flash_attention, flash_attention_with_lse,
};

use crate::problem::random;

const FULL: Options = Options::new(Mask::Full);

fn tensor(shape: [usize; 4]) -> Tensor<4> {
    random(1, shape, &Device::flex())
}

/// Both calls refuse in the same way, with and without autodiff.
fn refused(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, options: Options) -> Error {
    let error = flash_attention(q.clone(), k.clone(), v.clone(), options).unwrap_err();
    let other = flash_attention_with_lse(q, k, v, options).unwrap_err();
    assert_eq!(error.to_string(), other.to_string());
    error
}

#[test]
fn shapes() {
    let q = || tensor([2, 4, 7, 16]);
    let cases = [
        (
            [3, 4, 9, 16],
            [2, 4, 9, 16],
            Argument::K,
            [3, 4, 9, 16],
            [2, 4, 9, 16],
        ),
        (
            [2, 4, 9, 8],
            [2, 4, 9, 8],
            Argument::K,
            [2, 4, 9, 8],
            [2, 4, 9, 16],
        ),
        (
            [2, 2, 9, 16],
            [2, 4, 9, 16],
            Argument::V,
            [2, 4, 9, 16],
            [2, 2, 9, 16],
        ),
        (
            [2, 2, 9, 16],
            [2, 2, 8, 16],
            Argument::V,
            [2, 2, 8, 16],
            [2, 2, 9, 16],
        ),
        (
            [2, 2, 9, 16],
            [2, 2, 9, 17],
            Argument::V,
            [2, 2, 9, 17],
            [2, 2, 9, 16],
        ),
    ];
    for (k, v, argument, given, needed) in cases {
        let error = refused(q(), tensor(k), tensor(v), FULL);
        assert_eq!(
            error,
            Error::Shape {
                argument,
                given,
                needed
            }
        );
    }
    let k = tensor([3, 4, 9, 16]);
    assert_eq!(
        refused(q(), k.clone(), k, FULL).to_string(),
        "k has shape [3, 4, 9, 16]; allowed: [2, 4, 9, 16] ([batch, heads, seqlen, head_dim])"
    );
}

#[test]
fn heads() {
    let k = tensor([2, 3, 9, 16]);
    let error = refused(tensor([2, 4, 9, 16]), k.clone(), k, FULL);
    assert_eq!(
        error.to_string(),
        "heads_q is 4, heads_k is 3; heads_q must be a positive multiple of heads_k, or both 0"
    );
}

#[test]
fn head_dims() {
    for head_dim in [0, 577] {
        let x = tensor([1, 1, 2, head_dim]);
        assert_eq!(
            refused(x.clone(), x.clone(), x, FULL).to_string(),
            format!("head_dim is {head_dim}; allowed: 1 to 576")
        );
    }
}

#[test]
fn scales() {
    let x = || tensor([1, 1, 2, 8]);
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = refused(x(), x(), x(), FULL.softmax_scale(scale));
        let needed = format!("softmax_scale is {scale}; it must be greater than 0");
        assert!(error.to_string().starts_with(&needed), "{error}");
    }
}

#[test]
fn types() {
    let x = || tensor([1, 1, 2, 8]);
    let double = x().cast(DType::F64);
    assert_eq!(
        refused(double.clone(), double.clone(), double, FULL).to_string(),
        "q is F64; allowed: [F32, F16, BF16]"
    );
    let half = x().cast(DType::F16);
    assert_eq!(
        refused(x(), half.clone(), x(), FULL).to_string(),
        "k is F16; allowed: F32, as q is"
    );
    assert_eq!(
        refused(half.clone(), half, x(), FULL).to_string(),
        "v is F32; allowed: F16, as q is"
    );
}

#[test]
fn quantized_tensors() {
    let x = || tensor([1, 1, 32, 32]);
    let scheme = Device::flex().settings().quantization.scheme;
    let quantized = x().quantize_dynamic(&scheme);
    let error = refused(quantized, x(), x(), FULL);
    let Error::Dtype { argument, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(argument, Argument::Q);
}

/// Burn's own entry takes tensors of any rank.
#[test]
fn ranks() {
    let flat = random(1, [2, 7, 16], &Device::flex()).into_dispatch();
    let outcome = Dispatch::flash_attention(flat.clone(), flat.clone(), flat, FULL);
    let error = outcome.into_result().unwrap_err();
    assert_eq!(error.to_string(), "q has 3 dimensions; allowed: 4");
    let q = tensor([2, 4, 7, 16]).into_dispatch();
    let k = random(1, [2, 1, 4, 7, 16], &Device::flex().autodiff()).into_dispatch();
    let outcome = Dispatch::flash_attention_with_lse(q, k.clone(), k, FULL);
    let error = outcome.into_result().unwrap_err();
    assert_eq!(error.to_string(), "k has 5 dimensions; allowed: 4");
}

/// A backend's backward pass takes what its caller has kept, of whatever sizes and types.
#[test]
fn what_the_backward_pass_is_given() {
    let zeros = |shape: &[usize]| FlexTensor::zeros(Shape::from(shape.to_vec()), DType::F32);
    let (x, lse) = (zeros(&[1, 1, 2, 8]), zeros(&[1, 1, 2]));
    let refused = |o: &FlexTensor, lse: &FlexTensor, d_lse: &FlexTensor| {
        let (o, lse) = (o.clone(), lse.clone());
        let (q, k, v) = (x.clone(), x.clone(), x.clone());
        let forward = Forward { o, lse };
        let saved = Saved::<Flex> { q, k, v, forward };
        let of_output = OutputGradients {
            d_o: x.clone(),
            d_lse: Some(d_lse.clone()),
        };
        let error = Flex::flash_backward(&saved, &of_output, &FULL).unwrap_err();
        error.to_string()
    };
    let more = zeros(&[1, 1, 3]);
    let needed = "has 3 elements; the problem needs 2";
    assert_eq!(refused(&x, &more, &lse), format!("lse {needed}"));
    assert_eq!(refused(&x, &lse, &more), format!("d_lse {needed}"));
    let half = FlexTensor::zeros(Shape::from([1, 1, 2]), DType::F16);
    assert_eq!(refused(&x, &half, &lse), "lse is F16; allowed: [F32]");
    let half = FlexTensor::zeros(Shape::from([1, 1, 2, 8]), DType::F16);
    assert_eq!(
        refused(&half, &lse, &lse),
        "o is F16; allowed: F32, as q is"
    );
    let error = refused(&zeros(&[1, 1, 3, 8]), &lse, &lse);
    assert!(error.starts_with("o has shape [1, 3, 1, 8]"), "{error}");
}

#[test]
fn gradient_checkpointing() {
    let x = |device: &Device| random(1, [1, 1, 2, 8], device);
    let all = Device::flex().autodiff();
    let some = all.clone().gradient_checkpointing();
    assert_eq!(
        refused(x(&Device::flex()), x(&all), x(&some), FULL).to_string(),
        "v has gradient checkpointing Balanced; allowed: Disabled, as tensors before it"
    );
}

#[cfg(feature = "ndarray")]
#[test]
fn devices() {
    for ndarray in [Device::ndarray(), Device::ndarray().autodiff()] {
        let x = tensor([1, 1, 2, 8]);
        let error = refused(x.clone(), x, random(1, [1, 1, 2, 8], &ndarray), FULL);
        assert_eq!(
            error.to_string(),
            "v lies on NdArray(Cpu); allowed: Flex(Cpu), where q lies"
        );
    }
}

#[cfg(feature = "ndarray")]
#[test]
fn types_of_ndarray() {
    let x = random(1, [1, 1, 2, 8], &Device::ndarray()).cast(DType::F64);
    assert!(matches!(
        refused(x.clone(), x.clone(), x, FULL),
        Error::Dtype {
            argument: Argument::Q,
            given: DType::F64,
            ..
        }
    ));
}

#[cfg(not(any(feature = "ndarray", feature = "cuda")))]
#[test]
fn backends() {
    for ndarray in [Device::ndarray(), Device::ndarray().autodiff()] {
        let x = random(1, [1, 1, 2, 8], &ndarray);
        assert_eq!(
            refused(x.clone(), x.clone(), x, FULL).to_string(),
            "q lies on NdArray(Cpu); allowed in this build: Flex"
        );
    }
}
