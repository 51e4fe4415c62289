//! `flash_attn` and `flash_attn_windowed` beside candle's own operations, forward and backward.

mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    flash_attn, flash_attn_alibi_windowed_softcap, flash_attn_windowed, flash_attn_with_lse,
};
use support::{Case, assert_close, naive, numbers, widened};

/// f32 on both sides: sums in another order.
const F32: f32 = 5e-6;

/// Both passes beside autograd through matmul and softmax of the same values in f32. `most` bounds o, four times it the
/// gradients, which are larger: sums over queries.
fn compare(case: Case, dtype: DType, most: f32) -> Result<()> {
    let variables = case.variables(dtype)?;
    let [q, k, v] = &variables;
    let o = flash_attn_windowed(q, k, v, case.scale(), case.left, case.right)?;
    assert_eq!((o.dims(), o.dtype()), (q.dims(), dtype));
    let weights = case.weights(dtype)?;
    let gradients = (&o * &weights)?.sum_all()?.backward()?;

    let wide = [widened(q)?, widened(k)?, widened(v)?];
    let (expected, _) = naive(&wide[0], &wide[1], &wide[2], case)?;
    let weights = weights.to_dtype(DType::F32)?;
    let expected_gradients = (&expected * &weights)?.sum_all()?.backward()?;

    assert_close("o", &o, &expected, most);
    for (name, (ours, theirs)) in ["dq", "dk", "dv"].iter().zip(variables.iter().zip(&wide)) {
        let ours = gradients.get(ours).expect("a gradient");
        assert_eq!(ours.dtype(), dtype);
        let theirs = expected_gradients.get(theirs).expect("a gradient");
        assert_close(name, ours, theirs, 4.0 * most);
    }
    Ok(())
}

#[test]
fn without_a_mask() -> Result<()> {
    compare(Case::PLAIN, DType::F32, F32)
}

#[test]
fn causal_is_aligned_to_the_bottom_right() -> Result<()> {
    let causal = Case {
        right: Some(0),
        ..Case::PLAIN
    };
    compare(causal, DType::F32, F32)?;
    for (seqlen_q, seqlen_k) in [(5, 40), (40, 5), (1, 33)] {
        let case = Case {
            seqlen_q,
            seqlen_k,
            ..causal
        };
        compare(case, DType::F32, F32)?;
    }
    Ok(())
}

#[test]
fn windows() -> Result<()> {
    let windows = [
        (Some(3), Some(0)),
        (Some(0), Some(0)),
        (Some(2), Some(5)),
        (Some(4), None),
        (None, Some(6)),
        (Some(1000), Some(usize::MAX)),
    ];
    for (left, right) in windows {
        for (seqlen_q, seqlen_k) in [(37, 37), (12, 30), (30, 12)] {
            let case = Case {
                seqlen_q,
                seqlen_k,
                left,
                right,
                ..Case::PLAIN
            };
            compare(case, DType::F32, F32)?;
        }
    }
    Ok(())
}

#[test]
fn heads_that_share_keys() -> Result<()> {
    for (heads_q, heads_k) in [(6, 6), (6, 2), (6, 1)] {
        let case = Case {
            heads_q,
            heads_k,
            right: Some(0),
            ..Case::PLAIN
        };
        compare(case, DType::F32, F32)?;
    }
    Ok(())
}

#[test]
fn any_head_dim_on_the_cpu() -> Result<()> {
    for head_dim in [1, 7, 64, 80, 256] {
        let case = Case {
            head_dim,
            seqlen_q: 20,
            seqlen_k: 20,
            ..Case::PLAIN
        };
        compare(case, DType::F32, 4.0 * F32)?;
    }
    Ok(())
}

/// Results are rounded to the type once: half a unit in the last place of numbers below 1 in o, below 4 in gradients, and as
/// much again for what is rounded in between (weights before the product with v, dS before those with q and k).
#[test]
fn bf16_and_f16() -> Result<()> {
    for (dtype, most) in [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)] {
        for right in [None, Some(0)] {
            let case = Case {
                right,
                ..Case::PLAIN
            };
            compare(case, dtype, most)?;
        }
    }
    Ok(())
}

#[test]
fn flash_attn_is_the_window_that_causal_says() -> Result<()> {
    let [q, k, v] = Case::PLAIN.variables(DType::F32)?;
    for (causal, right) in [(false, None), (true, Some(0))] {
        let named = flash_attn(&q, &k, &v, 0.3, causal)?;
        let windowed = flash_attn_windowed(&q, &k, &v, 0.3, None, right)?;
        let neutral = flash_attn_alibi_windowed_softcap(&q, &k, &v, None, 0.3, None, right, 0.0)?;
        assert_close("windowed", &named, &windowed, 0.0);
        assert_close("neutral", &named, &neutral, 0.0);
    }
    Ok(())
}

/// Heads before rows, heads of one projection, and rows that overlap: read where they lie.
#[test]
fn strided_tensors() -> Result<()> {
    let case = Case {
        right: Some(0),
        ..Case::PLAIN
    };
    let Case {
        batch,
        seqlen_q,
        heads_q,
        heads_k,
        head_dim,
        ..
    } = case;
    let [q, k, v] = case.variables(DType::F32)?;
    let expected = flash_attn(&q, &k, &v, case.scale(), true)?;

    let transposed = |x: &Tensor| x.transpose(1, 2)?.contiguous()?.transpose(1, 2);
    let (tq, tk, tv) = (transposed(&q)?, transposed(&k)?, transposed(&v)?);
    assert!(!tq.is_contiguous());
    assert_close(
        "transposed",
        &flash_attn(&tq, &tk, &tv, case.scale(), true)?,
        &expected,
        0.0,
    );

    let width = (heads_q + 2 * heads_k) * head_dim;
    let flat = |x: &Tensor| x.flatten_from(2);
    let packed = Tensor::cat(&[flat(&q)?, flat(&k)?, flat(&v)?], 2)?;
    assert_eq!(packed.dims(), [batch, seqlen_q, width]);
    let packed = Var::from_tensor(&packed)?;
    let heads = packed.reshape((batch, seqlen_q, heads_q + 2 * heads_k, head_dim))?;
    let part = |first: usize, n: usize| heads.narrow(2, first, n);
    let (pq, pk, pv) = (
        part(0, heads_q)?,
        part(heads_q, heads_k)?,
        part(heads_q + heads_k, heads_k)?,
    );
    let o = flash_attn(&pq, &pk, &pv, case.scale(), true)?;
    assert_close("packed", &o, &expected, 0.0);

    let weights = case.weights(DType::F32)?;
    let of_packed = (o * &weights)?.sum_all()?.backward()?;
    let of_parts = (expected * &weights)?.sum_all()?.backward()?;
    let parts = [&q, &k, &v].map(|x| flat(of_parts.get(x).expect("a gradient")).unwrap());
    let of_packed = of_packed.get(&packed).expect("a gradient");
    assert_close("gradients", of_packed, &Tensor::cat(&parts, 2)?, 0.0);

    let repeated = k.narrow(2, 0, 1)?.broadcast_as(k.shape())?;
    let copied = repeated.contiguous()?;
    let o = flash_attn(&q, &repeated, &repeated, case.scale(), true)?;
    assert_close(
        "repeated",
        &o,
        &flash_attn(&q, &copied, &copied, case.scale(), true)?,
        0.0,
    );
    Ok(())
}

/// A sum repeats one number as the gradient of all, and a transposition gives it other strides.
#[test]
fn gradients_of_any_strides() -> Result<()> {
    let case = Case::PLAIN;
    let [q, k, v] = case.variables(DType::F32)?;
    let o = flash_attn(&q, &k, &v, case.scale(), false)?;
    let wide = [widened(&q)?, widened(&k)?, widened(&v)?];
    let (expected, _) = naive(&wide[0], &wide[1], &wide[2], case)?;
    let losses: [fn(&Tensor) -> Result<Tensor>; 3] = [
        |o| o.sum_all(),
        |o| o.transpose(1, 3)?.contiguous()?.sqr()?.sum_all(),
        |o| o.mean(1)?.broadcast_as((3, 2, 4, 16))?.sum_all(),
    ];
    for loss in losses {
        let ours = loss(&o)?.backward()?;
        let theirs = loss(&expected)?.backward()?;
        for (a, b) in [&q, &k, &v].into_iter().zip(&wide) {
            let (a, b) = (ours.get(a).unwrap(), theirs.get(b).unwrap());
            assert_close("gradient", a, b, 8.0 * F32);
        }
    }
    Ok(())
}

#[test]
fn one_tensor_as_queries_keys_and_values() -> Result<()> {
    let case = Case {
        heads_k: 4,
        right: Some(0),
        ..Case::PLAIN
    };
    let [x, _, _] = case.variables(DType::F32)?;
    let ours = flash_attn(&x, &x, &x, case.scale(), true)?
        .sqr()?
        .sum_all()?;
    let (o, _) = naive(&x, &x, &x, case)?;
    let theirs = o.sqr()?.sum_all()?;
    let (ours, theirs) = (ours.backward()?, theirs.backward()?);
    assert_close(
        "dx",
        ours.get(&x).unwrap(),
        theirs.get(&x).unwrap(),
        8.0 * F32,
    );
    Ok(())
}

/// A graph with two losses, and the same graph differentiated twice.
#[test]
fn differentiated_more_than_once() -> Result<()> {
    let [q, k, v] = Case::PLAIN.variables(DType::F32)?;
    let o = flash_attn(&q, &k, &v, 0.25, true)?;
    let first = o.sqr()?.sum_all()?.backward()?;
    let second = o.sqr()?.sum_all()?.backward()?;
    let other = o.sum_all()?.backward()?;
    for x in [&q, &k, &v] {
        let (first, second) = (first.get(x).unwrap(), second.get(x).unwrap());
        assert_close("again", first, second, 0.0);
        assert!(support::difference(first, other.get(x).unwrap())? > 1e-3);
    }
    Ok(())
}

#[test]
fn lse_and_its_gradient() -> Result<()> {
    for (left, right) in [(None, None), (None, Some(0)), (Some(5), Some(2))] {
        let case = Case {
            left,
            right,
            ..Case::PLAIN
        };
        let [q, k, v] = case.variables(DType::F32)?;
        let (o, lse) = flash_attn_with_lse(&q, &k, &v, case.scale(), left, right)?;
        let wide = [widened(&q)?, widened(&k)?, widened(&v)?];
        let (expected_o, expected_lse) = naive(&wide[0], &wide[1], &wide[2], case)?;
        assert_close("o", &o, &expected_o, F32);
        assert_close("lse", &lse, &expected_lse, F32);

        let of_lse = numbers(lse.shape(), 5)?;
        let loss = |o: &Tensor, lse: &Tensor| -> Result<Tensor> {
            o.sqr()?.sum_all()? + (lse.sin()? * &of_lse)?.sum_all()?
        };
        let ours = loss(&o, &lse)?.backward()?;
        let theirs = loss(&expected_o, &expected_lse)?.backward()?;
        for (a, b) in [&q, &k, &v].into_iter().zip(&wide) {
            assert_close(
                "both",
                ours.get(a).unwrap(),
                theirs.get(b).unwrap(),
                8.0 * F32,
            );
        }
        let ours = lse.sin()?.sum_all()?.backward()?;
        let theirs = expected_lse.sin()?.sum_all()?.backward()?;
        for (a, b) in [&q, &k].into_iter().zip(&wide) {
            assert_close(
                "lse alone",
                ours.get(a).unwrap(),
                theirs.get(b).unwrap(),
                8.0 * F32,
            );
        }
    }
    Ok(())
}

#[test]
fn rows_that_see_no_key() -> Result<()> {
    let case = Case {
        seqlen_q: 9,
        seqlen_k: 4,
        right: Some(0),
        ..Case::PLAIN
    };
    let [q, k, v] = case.variables(DType::F32)?;
    let (o, lse) = flash_attn_with_lse(&q, &k, &v, case.scale(), None, Some(0))?;
    let hidden = o.narrow(1, 0, 5)?;
    assert_close("o", &hidden, &hidden.zeros_like()?, 0.0);
    let hidden = lse.narrow(2, 0, 5)?;
    let none = hidden
        .ones_like()?
        .affine(f64::from(f32::NEG_INFINITY), 0.0)?;
    assert_close("lse", &hidden, &none, 0.0);
    Ok(())
}

#[test]
fn empty_tensors() -> Result<()> {
    let zeros =
        |shape: (usize, usize, usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    for (batch, seqlen_q, seqlen_k) in [(0, 4, 4), (1, 0, 4), (1, 4, 0)] {
        let (q, k) = (
            zeros((batch, seqlen_q, 2, 8))?,
            zeros((batch, seqlen_k, 2, 8))?,
        );
        let q = Var::from_tensor(&q)?;
        let o = flash_attn(&q, &k, &k, 1.0, false)?;
        assert_close("o", &o, &q.zeros_like()?, 0.0);
        let gradients = o.sum_all()?.backward()?;
        assert_close("dq", gradients.get(&q).unwrap(), &q.zeros_like()?, 0.0);
    }
    Ok(())
}
