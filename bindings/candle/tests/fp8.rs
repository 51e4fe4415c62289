//! Attention in 8 bits beside candle's own operations on the rounded numbers, forward and backward.

mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    Fp8Sums, flash_attn_fp8, flash_attn_varlen_fp8, quantize, quantize_with_descale,
};
use support::{Case, assert_close, naive, refusal, widened};

const CPU: &Device = &Device::Cpu;

/// What a tensor stands for when it has been rounded, with the scales of each sequence and head of keys.
fn rounded(x: &Tensor, heads_k: usize) -> Result<Tensor> {
    let (batch, _, heads, _) = x.dims4()?;
    let mut of_heads = Vec::new();
    for entry in 0..batch {
        for head in 0..heads {
            let first = head / (heads / heads_k) * (heads / heads_k);
            let group = x.narrow(0, entry, 1)?.narrow(2, first, heads / heads_k)?;
            let amax = group.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            of_heads.push(if amax == 0.0 { 1.0 } else { amax / 448.0 });
        }
    }
    let of_heads = Tensor::from_vec(of_heads, (batch, 1, heads, 1), CPU)?;
    let codes = x.broadcast_div(&of_heads)?.to_dtype(DType::F8E4M3)?;
    codes.to_dtype(DType::F32)?.broadcast_mul(&of_heads)
}

#[test]
fn values_and_gradients_are_those_of_the_rounded_tensors() -> Result<()> {
    let windowed = Case {
        left: Some(9),
        right: Some(0),
        seqlen_k: 50,
        ..Case::PLAIN
    };
    let causal = Case {
        right: Some(0),
        head_dim: 64,
        ..Case::PLAIN
    };
    for (case, sums) in [
        (Case::PLAIN, Fp8Sums::TwoLevels),
        (windowed, Fp8Sums::OneLevel),
        (causal, Fp8Sums::OneLevel),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            let variables = case.variables(dtype)?;
            let [q, k, v] = &variables;
            let weights = case.weights(dtype)?;
            let o = flash_attn_fp8(q, k, v, case.scale(), case.left, case.right, sums)?;
            assert_eq!((o.dims(), o.dtype()), (q.dims(), dtype));
            let gradients = (&o * &weights)?.sum_all()?.backward()?;

            let wide = [q, k, v].map(|x| widened(x)?.detach().to_dtype(DType::F32));
            let [q8, k8, v8] = wide.map(|x| Var::from_tensor(&rounded(&x?, case.heads_k)?));
            let rounded = [q8?, k8?, v8?];
            let [q8, k8, v8] = &rounded;
            let (expected, _) = naive(q8, k8, v8, case)?;
            let weights = weights.to_dtype(DType::F32)?;
            let theirs = (&expected * &weights)?.sum_all()?.backward()?;
            let (allowed, of_gradients) = match dtype {
                DType::F32 => (1e-5, 1e-4),
                _ => (1.0 / 128.0, 2e-2),
            };
            assert_close("o", &o, &expected, allowed);
            for (at, (own, other)) in variables.iter().zip(&rounded).enumerate() {
                let found = gradients.get(own).expect("a gradient");
                assert_eq!(found.dtype(), dtype);
                let other = theirs.get(other).expect("a gradient");
                assert_close(&format!("gradient {at}"), found, other, of_gradients);
            }
        }
    }
    Ok(())
}

#[test]
fn packed_sequences_are_as_each_alone() -> Result<()> {
    // Rows 0 and 16 are of no sequence.
    let ends = [1u32, 6, 6, 16];
    let seqlens = Tensor::new(&ends, CPU)?;
    let x = |heads| -> Result<Var> {
        let sizes = Tensor::arange(1u32, 18, CPU)?.to_dtype(DType::F32)?;
        let x = Tensor::randn(0f32, 1f32, (17, heads, 32), CPU)?;
        Var::from_tensor(&x.broadcast_mul(&sizes.reshape((17, 1, 1))?)?)
    };
    let [q, k, v] = [x(4)?, x(2)?, x(2)?];
    let call = |x: [&Tensor; 3]| {
        let [q, k, v] = x;
        flash_attn_varlen_fp8(
            q,
            k,
            v,
            &seqlens,
            &seqlens,
            10,
            10,
            0.2,
            None,
            Some(0),
            Fp8Sums::TwoLevels,
        )
    };
    let o = call([&q, &k, &v])?;
    let gradients = o.sqr()?.sum_all()?.backward()?;
    for rows in ends.windows(2) {
        let (first, n) = (rows[0] as usize, (rows[1] - rows[0]) as usize);
        let own = |x: &Tensor| Var::from_tensor(&x.detach().narrow(0, first, n)?.unsqueeze(0)?);
        let [q_own, k_own, v_own] = [own(&q)?, own(&k)?, own(&v)?];
        let alone = flash_attn_fp8(
            &q_own,
            &k_own,
            &v_own,
            0.2,
            None,
            Some(0),
            Fp8Sums::TwoLevels,
        )?;
        assert_close("o", &o.narrow(0, first, n)?, &alone.squeeze(0)?, 1e-5);
        let of_own = alone.sqr()?.sum_all()?.backward()?;
        for (name, x, own) in [
            ("d_q", &q, &q_own),
            ("d_k", &k, &k_own),
            ("d_v", &v, &v_own),
        ] {
            let expected = of_own.get(own).expect("a gradient").squeeze(0)?;
            let found = gradients.get(x).expect("a gradient").narrow(0, first, n)?;
            assert_close(name, &found, &expected, 1e-3);
        }
    }
    let refused = refusal(flash_attn_varlen_fp8(
        &q,
        &k,
        &v,
        &seqlens,
        &seqlens,
        10,
        9,
        0.2,
        None,
        None,
        Fp8Sums::TwoLevels,
    ));
    assert!(refused.contains("cu_seqlens"), "{refused}");
    Ok(())
}

#[test]
fn given_scales_round_and_leave_amax() -> Result<()> {
    let x = Tensor::randn(0f32, 1f32, (2, 300, 4, 32), CPU)?;
    let (rounded, own) = quantize(&x, 2)?;
    let (again, amax) = quantize_with_descale(&x, 2, &own)?;
    let wide = |x: &Tensor| x.to_dtype(DType::F32);
    assert_close("rounded again", &wide(&again)?, &wide(&rounded)?, 0.0);
    let most = x.abs()?.reshape((2, 300, 2, 64))?.max(3)?.max(1)?;
    assert_close("amax", &amax, &most, 0.0);
    // Scales that some numbers are beyond, and that are not contiguous.
    let small = Tensor::new(&[[1e-3f32, 2.0], [0.5, 1e-3]], CPU)?.t()?;
    let (cut, amax) = quantize_with_descale(&x, 2, &small)?;
    assert_close("amax of what is cut", &amax, &most, 0.0);
    let greatest = wide(&cut)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert_eq!(greatest, 448.0);
    Ok(())
}

#[test]
fn scales_that_do_not_fit_are_named() -> Result<()> {
    let x = Tensor::ones((2, 3, 4, 16), DType::F32, CPU)?;
    let scales = |values: [f32; 4]| Tensor::from_slice(&values, (2, 2), CPU);
    let ones = scales([1.0; 4])?;
    for (descale, words) in [
        (
            ones.narrow(1, 0, 1)?,
            "descale has shape [2, 1]; allowed: [2, 2]",
        ),
        (ones.to_dtype(DType::F64)?, "descale is"),
        (scales([1.0, 0.0, 1.0, 1.0])?, "descale is 0 at 1"),
        (scales([1.0, 1.0, -1.0, 1.0])?, "descale is -1 at 2"),
        (scales([f32::NAN, 1.0, 1.0, 1.0])?, "descale is NaN at 0"),
    ] {
        let refused = refusal(quantize_with_descale(&x, 2, &descale));
        assert!(refused.contains(words), "{refused}");
    }
    Ok(())
}

#[test]
fn zeros_and_empty_tensors() -> Result<()> {
    let zeros = Tensor::zeros((1, 5, 2, 16), DType::F32, CPU)?;
    let o = flash_attn_fp8(&zeros, &zeros, &zeros, 0.25, None, None, Fp8Sums::TwoLevels)?;
    assert_close("o", &o, &zeros, 0.0);
    let none = Tensor::zeros((1, 0, 2, 16), DType::F32, CPU)?;
    let o = flash_attn_fp8(&zeros, &none, &none, 0.25, None, None, Fp8Sums::TwoLevels)?;
    assert_close("o without keys", &o, &zeros, 0.0);
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let q = Tensor::zeros((1, 5, 2, 16), DType::F32, CPU)?;
    let k = Tensor::zeros((1, 5, 2, 16), DType::BF16, CPU)?;
    let refused = refusal(flash_attn_fp8(
        &q,
        &k,
        &k,
        0.25,
        None,
        None,
        Fp8Sums::TwoLevels,
    ));
    assert!(refused.starts_with("k is"), "{refused}");
    let refused = refusal(flash_attn_fp8(
        &q,
        &q,
        &q,
        -1.0,
        None,
        None,
        Fp8Sums::TwoLevels,
    ));
    assert!(refused.contains("softmax_scale"), "{refused}");
    Ok(())
}
