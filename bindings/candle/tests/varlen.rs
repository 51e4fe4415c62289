//! The functions on packed sequences: sequence by sequence beside candle's own operations.

mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    flash_attn_varlen, flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_windowed,
    flash_attn_varlen_with_lse,
};
use support::{Case, assert_close, naive, numbers, variable, widened};

const F32: f32 = 5e-6;

/// Lengths of queries and of keys, by sequence; some have none.
const LENGTHS_Q: [usize; 5] = [17, 1, 0, 23, 8];
const LENGTHS_K: [usize; 5] = [17, 9, 4, 11, 0];
const HEADS_Q: usize = 4;
const HEADS_K: usize = 2;
const HEAD_DIM: usize = 16;
const SCALE: f32 = 0.25;

fn cumulative(lengths: &[usize], dtype: DType) -> Result<Tensor> {
    let mut ends = vec![0u32];
    for &length in lengths {
        ends.push(ends[ends.len() - 1] + length as u32);
    }
    Tensor::new(ends, &Device::Cpu)?.to_dtype(dtype)
}

fn most(lengths: &[usize]) -> usize {
    lengths.iter().copied().max().unwrap_or(0)
}

fn variables(dtype: DType) -> Result<[Var; 3]> {
    let total = |lengths: &[usize]| lengths.iter().sum::<usize>();
    let (total_q, total_k) = (total(&LENGTHS_Q), total(&LENGTHS_K));
    Ok([
        variable((total_q, HEADS_Q, HEAD_DIM), 1, dtype)?,
        variable((total_k, HEADS_K, HEAD_DIM), 2, dtype)?,
        variable((total_k, HEADS_K, HEAD_DIM), 3, dtype)?,
    ])
}

/// o `[total_q, heads_q, head_dim]` and lse `[heads_q, total_q]`, a sequence at a time.
fn naive_varlen(
    [q, k, v]: [&Tensor; 3],
    left: Option<usize>,
    right: Option<usize>,
) -> Result<(Tensor, Tensor)> {
    let (mut first_q, mut first_k) = (0, 0);
    let (mut os, mut lses) = (Vec::new(), Vec::new());
    for (n_q, n_k) in LENGTHS_Q.into_iter().zip(LENGTHS_K) {
        if n_q > 0 && n_k > 0 {
            let rows = |x: &Tensor, first, n| x.narrow(0, first, n)?.unsqueeze(0);
            let case = Case {
                batch: 1,
                seqlen_q: n_q,
                seqlen_k: n_k,
                heads_q: HEADS_Q,
                heads_k: HEADS_K,
                head_dim: HEAD_DIM,
                left,
                right,
            };
            let (k, v) = (rows(k, first_k, n_k)?, rows(v, first_k, n_k)?);
            let (o, lse) = naive(&rows(q, first_q, n_q)?, &k, &v, case)?;
            os.push(o.squeeze(0)?);
            lses.push(lse.squeeze(0)?);
        } else if n_q > 0 {
            os.push(q.narrow(0, first_q, n_q)?.zeros_like()?);
            let none = Tensor::full(f32::NEG_INFINITY, (HEADS_Q, n_q), &Device::Cpu)?;
            lses.push(none);
        }
        first_q += n_q;
        first_k += n_k;
    }
    Ok((Tensor::cat(&os, 0)?, Tensor::cat(&lses, 1)?))
}

fn compare(dtype: DType, left: Option<usize>, right: Option<usize>, allowed: f32) -> Result<()> {
    let [q, k, v] = &variables(dtype)?;
    let (ends_q, ends_k) = (
        cumulative(&LENGTHS_Q, DType::U32)?,
        cumulative(&LENGTHS_K, DType::U32)?,
    );
    let (max_q, max_k) = (most(&LENGTHS_Q), most(&LENGTHS_K));
    let o =
        flash_attn_varlen_windowed(q, k, v, &ends_q, &ends_k, max_q, max_k, SCALE, left, right)?;
    assert_eq!((o.dims(), o.dtype()), (q.dims(), dtype));
    let weights = numbers(o.shape(), 4)?.to_dtype(dtype)?;
    let gradients = (&o * &weights)?.sum_all()?.backward()?;

    let wide = [widened(q)?, widened(k)?, widened(v)?];
    let (expected, _) = naive_varlen([&wide[0], &wide[1], &wide[2]], left, right)?;
    let expected_gradients = (&expected * weights.to_dtype(DType::F32)?)?
        .sum_all()?
        .backward()?;
    assert_close("o", &o, &expected, allowed);
    for (ours, theirs) in [q, k, v].into_iter().zip(&wide) {
        let (ours, theirs) = (
            gradients.get(ours).unwrap(),
            expected_gradients.get(theirs).unwrap(),
        );
        assert_close("gradient", ours, theirs, 4.0 * allowed);
    }
    Ok(())
}

#[test]
fn each_sequence_by_itself() -> Result<()> {
    for (left, right) in [
        (None, None),
        (None, Some(0)),
        (Some(4), Some(0)),
        (Some(3), None),
    ] {
        compare(DType::F32, left, right, F32)?;
    }
    Ok(())
}

/// As of dense tensors: half a unit in the last place, twice.
#[test]
fn bf16_and_f16() -> Result<()> {
    for (dtype, allowed) in [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)] {
        compare(dtype, None, Some(0), allowed)?;
    }
    Ok(())
}

#[test]
fn lengths_are_u32_or_i32_and_may_begin_inside_their_memory() -> Result<()> {
    let [q, k, v] = &variables(DType::F32)?;
    let (max_q, max_k) = (most(&LENGTHS_Q), most(&LENGTHS_K));
    let run = |ends_q: &Tensor, ends_k: &Tensor| {
        flash_attn_varlen(q, k, v, ends_q, ends_k, max_q, max_k, SCALE, true)
    };
    let [q_u32, k_u32] = [
        cumulative(&LENGTHS_Q, DType::U32)?,
        cumulative(&LENGTHS_K, DType::U32)?,
    ];
    let expected = run(&q_u32, &k_u32)?;
    let [q_i32, k_i32] = [q_u32.to_dtype(DType::I32)?, k_u32.to_dtype(DType::I32)?];
    assert_close("i32", &run(&q_i32, &k_i32)?, &expected, 0.0);
    let both = Tensor::cat(&[&q_u32, &k_u32], 0)?;
    let half = |first| both.narrow(0, first, LENGTHS_Q.len() + 1);
    assert_close("inside", &run(&half(0)?, &half(6)?)?, &expected, 0.0);
    let neutral = flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        None,
        &q_u32,
        &k_u32,
        max_q,
        max_k,
        SCALE,
        None,
        Some(0),
        0.0,
    )?;
    assert_close("neutral", &neutral, &expected, 0.0);
    Ok(())
}

#[test]
fn lse_and_its_gradient() -> Result<()> {
    let [q, k, v] = &variables(DType::F32)?;
    let (ends_q, ends_k) = (
        cumulative(&LENGTHS_Q, DType::U32)?,
        cumulative(&LENGTHS_K, DType::U32)?,
    );
    let (max_q, max_k) = (most(&LENGTHS_Q), most(&LENGTHS_K));
    let (o, lse) =
        flash_attn_varlen_with_lse(q, k, v, &ends_q, &ends_k, max_q, max_k, SCALE, None, None)?;
    let wide = [widened(q)?, widened(k)?, widened(v)?];
    let (expected_o, expected) = naive_varlen([&wide[0], &wide[1], &wide[2]], None, None)?;
    assert_close("o", &o, &expected_o, F32);
    assert_close("lse", &lse, &expected, F32);

    // The last sequence has no keys: its lse is −∞, which no loss can be made of.
    let rows = |lse: &Tensor| lse.narrow(1, 0, 41)?.sqr()?.sum_all();
    let (ours, theirs) = (rows(&lse)?.backward()?, rows(&expected)?.backward()?);
    for (a, b) in [q, k].into_iter().zip(&wide) {
        assert_close(
            "gradient",
            ours.get(a).unwrap(),
            theirs.get(b).unwrap(),
            16.0 * F32,
        );
    }
    Ok(())
}
