//! Every refusal names the argument, what was given and what is allowed; none is a panic.

mod support;

use candle_core::{DType, Device, Result, Tensor};
use candle_ferroflash::{self as ff, Error};
use support::refusal;

/// A dense tensor of zeros.
fn dense(shape: (usize, usize, usize, usize)) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

fn packed(total: usize) -> Tensor {
    Tensor::zeros((total, 2, 8), DType::F32, &Device::Cpu).unwrap()
}

fn ends(ends: &[u32]) -> Tensor {
    Tensor::new(ends, &Device::Cpu).unwrap()
}

fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    ff::flash_attn(q, k, v, 0.5, false)
}

#[test]
fn ranks_shapes_and_types() {
    let q = dense((2, 5, 4, 8));
    let k = dense((2, 7, 2, 8));
    let flat = k.flatten_all().unwrap();
    assert_eq!(
        refusal(flash_attn(&flat, &k, &k)),
        "q has 1 dimensions; allowed: 4"
    );
    assert_eq!(
        refusal(flash_attn(&q, &k, &flat)),
        "v has 1 dimensions; allowed: 4"
    );
    let other = dense((3, 7, 2, 8));
    assert_eq!(
        refusal(flash_attn(&q, &other, &k)),
        "k has shape [3, 7, 2, 8]; allowed: [2, 7, 2, 8]"
    );
    let wide = dense((2, 7, 2, 16));
    assert_eq!(
        refusal(flash_attn(&q, &k, &wide)),
        "v has shape [2, 7, 2, 16]; allowed: [2, 7, 2, 8]"
    );
    let double = q.to_dtype(DType::F64).unwrap();
    assert_eq!(
        refusal(flash_attn(&double, &k, &k)),
        "q is F64; allowed: [BF16, F16, F32]"
    );
    let half = k.to_dtype(DType::F16).unwrap();
    assert_eq!(
        refusal(flash_attn(&q, &k, &half)),
        "v is F16; allowed: [F32]"
    );
}

#[test]
fn what_ferroflash_checks() {
    let q = dense((2, 5, 4, 8));
    let k = dense((2, 7, 3, 8));
    let text = refusal(flash_attn(&q, &k, &k));
    assert!(text.contains("heads_q is 4, heads_k is 3"), "{text}");
    let wide = dense((1, 2, 1, 577));
    let text = refusal(flash_attn(&wide, &wide, &wide));
    assert!(
        text.contains("head_dim is 577; allowed: 1 to 576"),
        "{text}"
    );
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let text = refusal(ff::flash_attn(&q, &q, &q, scale, false));
        assert!(text.contains("softmax_scale is"), "{text}");
    }
}

#[test]
fn the_last_dimension_is_contiguous() {
    let q = dense((2, 5, 4, 8));
    let transposed = dense((2, 5, 8, 4)).transpose(2, 3).unwrap();
    assert_eq!(
        refusal(flash_attn(&q, &transposed, &q)),
        "k has strides [160, 32, 1, 4]; allowed: 1 in the last dimension"
    );
}

#[test]
fn slopes_and_soft_caps() {
    let q = dense((1, 5, 2, 8));
    let (p, e) = (packed(6), ends(&[0, 2, 6]));
    let capped =
        |softcap| ff::flash_attn_alibi_windowed_softcap(&q, &q, &q, None, 0.5, None, None, softcap);
    let packed_capped = |softcap| {
        ff::flash_attn_varlen_alibi_windowed_softcap(
            &p, &p, &p, None, &e, &e, 4, 4, 0.5, None, None, softcap,
        )
    };
    for (softcap, given) in [(-30.0, "-30"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let text =
            format!("softcap is {given}; allowed: 0, which is none, or a number greater than 0");
        assert_eq!(refusal(capped(softcap)), text);
        assert_eq!(refusal(packed_capped(softcap)), text);
    }
    assert!(capped(-0.0).is_ok());

    let alibi = |slopes: &Tensor| refusal(ff::flash_attn_alibi(&q, &q, &q, slopes, 0.5, true));
    let varlen = |slopes: &Tensor| {
        refusal(ff::flash_attn_varlen_alibi(
            &p, &p, &p, slopes, &e, &e, 4, 4, 0.5, true,
        ))
    };
    let ones = |n: usize, dtype| Tensor::ones(n, dtype, &Device::Cpu).unwrap();
    for (slopes, text) in [
        (
            ones(3, DType::F32),
            "alibi_slopes has shape [3]; allowed: [2]",
        ),
        (ones(2, DType::F64), "alibi_slopes is F64; allowed: [F32]"),
        (
            ones(2, DType::F32).unsqueeze(0).unwrap(),
            "alibi_slopes has 2 dimensions; allowed: 1",
        ),
    ] {
        assert_eq!(alibi(&slopes), text);
        assert_eq!(varlen(&slopes), text);
    }
}

#[test]
fn lengths() {
    let p = packed(6);
    let good = ends(&[0, 2, 6]);
    let run = |q: &Tensor, k: &Tensor, max_q, max_k| {
        ff::flash_attn_varlen(&p, &p, &p, q, k, max_q, max_k, 0.5, true)
    };
    assert!(run(&good, &good, 4, 4).is_ok());
    assert_eq!(
        refusal(run(&ends(&[0]), &good, 4, 4)),
        "seqlens_q has 1 elements; allowed: 2 or more"
    );
    assert_eq!(
        refusal(run(&good, &ends(&[0, 6]), 4, 4)),
        "seqlens_k has 2 elements; allowed: 3, as many as of seqlens_q"
    );
    let float = good.to_dtype(DType::F32).unwrap();
    assert_eq!(
        refusal(run(&float, &good, 4, 4)),
        "seqlens_q is F32; allowed: [U32, I32]"
    );
    let square = Tensor::zeros((3, 1), DType::U32, &Device::Cpu).unwrap();
    assert_eq!(
        refusal(run(&good, &square, 4, 4)),
        "seqlens_k has 2 dimensions; allowed: 1"
    );
    assert_eq!(
        refusal(run(&ends(&[0, 3_000_000_000, 6]), &good, 4, 4)),
        "seqlens_q[1] is 3000000000; allowed: 0 to 2147483647"
    );
    let strided = Tensor::new(&[[0u32, 9], [2, 9], [6, 9]], &Device::Cpu).unwrap();
    let strided = strided.narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    assert_eq!(
        refusal(run(&good, &strided, 4, 4)),
        "seqlens_k has strides [2]; allowed: 1 in the last dimension"
    );
    let text = refusal(run(&good, &good, 3, 4));
    assert!(
        text.contains("cu_seqlens_q, sequence 1: 6; allowed: 2 to 5"),
        "{text}"
    );
    let text = refusal(run(&good, &ends(&[0, 4, 2]), 4, 4));
    assert!(text.contains("cu_seqlens_k, sequence 1: 2"), "{text}");
    let text = refusal(run(&ends(&[0, 2, 7]), &good, 9, 9));
    assert!(
        text.contains("cu_seqlens_q, sequence 1: 7; allowed: 2 to 6"),
        "{text}"
    );
    let square = dense((1, 6, 2, 8));
    let dense = ff::flash_attn_varlen(&square, &p, &p, &good, &good, 4, 4, 0.5, true);
    assert_eq!(refusal(dense), "q has 4 dimensions; allowed: 3");
}

#[test]
fn an_error_is_found_under_what_candle_wraps_around_it() {
    let q = dense((1, 2, 1, 8));
    let k = dense((1, 2, 1, 16));
    let error = flash_attn(&q, &k, &k).unwrap_err();
    let error = error.context("layer 3").with_path("model");
    assert!(matches!(
        Error::of(&error),
        Some(Error::Shape { argument: "k", .. })
    ));
    let foreign = candle_core::Error::msg("something else");
    assert!(Error::of(&foreign).is_none());
}
