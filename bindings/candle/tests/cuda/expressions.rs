//! Scores and masks of the caller's own: on the device and, by the same calls, on the CPU.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    Error, Expressions, Mask, Score, flash_attn_alibi_windowed_softcap, flash_attn_with_expressions,
};

use crate::support::{assert_close, numbers};
use crate::{CASE, gpu, here, tolerance};

/// o and the gradients of q, k and v.
fn both_passes(
    dtype: DType,
    device: &Device,
    attention: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let there = |x: &Var| Var::from_tensor(&x.as_tensor().to_device(device)?);
    let [q, k, v] = CASE.variables(dtype)?;
    let [q, k, v] = [there(&q)?, there(&k)?, there(&v)?];
    let o = attention(&q, &k, &v)?;
    let weights = CASE.weights(dtype)?.to_device(device)?;
    let gradients = (&o * weights)?.sum_all()?.backward()?;
    let mut results = vec![here(&o)?];
    for input in [q, k, v] {
        results.push(here(gradients.get(&input).expect("a gradient"))?);
    }
    Ok(results)
}

fn compare(dtype: DType, run: impl Fn(&Device) -> Result<Vec<Tensor>>) -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (there, here) in run(&device)?.iter().zip(run(&Device::Cpu)?) {
        assert_close("o or a gradient", there, &here, 8.0 * tolerance(dtype));
    }
    Ok(())
}

#[test]
fn alibi_and_a_soft_cap() -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        for right in [None, Some(0)] {
            compare(dtype, |device| {
                let slopes = Tensor::new(&[0.5f32, 0.25, 0.1, 0.02], device)?;
                both_passes(dtype, device, |q, k, v| {
                    let slopes = Some(&slopes);
                    flash_attn_alibi_windowed_softcap(q, k, v, slopes, 0.1, None, right, 2.0)
                })
            })?;
        }
    }
    Ok(())
}

/// Tensors of every type, with gaps and repeated elements, one of them under two names.
#[test]
fn expressions_of_ones_own() -> Result<()> {
    let score = Score::new(|s, at| {
        let [a, b] = ["a", "b"].map(|name| at.tensor_f16(name, [at.head]));
        s * at.f32("factor") + at.tensor_bf16("bias", [at.batch, at.q, at.k]) * (a - b + 1.0)
    })
    .map_err(Error::from)?;
    let mask = Mask::new(|at| {
        let document = |place| at.tensor_i32("document", [place]);
        document(at.q).eq(document(at.k))
    })
    .map_err(Error::from)?;
    compare(DType::BF16, |device| {
        let bias = numbers((1, 250, 200), 5)?.to_dtype(DType::BF16)?;
        let bias = bias.to_device(device)?.narrow(1, 50, 200)?;
        let bias = bias.transpose(1, 2)?.broadcast_as((2, 200, 200))?;
        let half = numbers(4, 6)?.to_dtype(DType::F16)?.to_device(device)?;
        let document = Tensor::from_iter((0..200i32).map(|place| place / 70), device)?;
        let expressions = Expressions::new()
            .score(score)
            .mask(mask)
            .param("factor", 1.5f32)
            .tensor("a", &half)
            .tensor("b", &half)
            .tensor("bias", &bias)
            .tensor("document", &document);
        both_passes(DType::BF16, device, |q, k, v| {
            flash_attn_with_expressions(q, k, v, &expressions, 0.1, None, Some(0))
        })
    })
}
