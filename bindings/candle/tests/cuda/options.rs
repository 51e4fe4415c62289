//! Sinks, dropout and gradients of biases: on the device and, by the same calls, on the CPU.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    Error, Expressions, Options, Score, flash_attn_varlen_with_options, flash_attn_with_options,
};

use crate::support::{assert_close, numbers};
use crate::{CASE, gpu, here, tolerance};

const SINKS: [f32; 4] = [0.5, -3.0, 2.0, 1.0];

/// o and the gradients of all variables, in f32 on the CPU.
fn both_passes(o: &Tensor, weights: &Tensor, variables: &[&Var]) -> Result<Vec<Tensor>> {
    let gradients = (o * weights)?.sum_all()?.backward()?;
    let mut results = vec![here(o)?];
    for variable in variables {
        results.push(here(gradients.get(variable).expect("a gradient"))?);
    }
    Ok(results)
}

fn compare(dtype: DType, run: impl Fn(&Device) -> Result<Vec<Tensor>>) -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (there, here) in run(&device)?.iter().zip(run(&Device::Cpu)?) {
        // Gradients of sinks and of a bias that all share are sums of many terms.
        let size = here.abs()?.max_all()?.to_scalar::<f32>()?.max(1.0);
        assert_close(
            "o or a gradient",
            there,
            &here,
            8.0 * tolerance(dtype) * size,
        );
    }
    Ok(())
}

fn there(x: &Tensor, device: &Device) -> Result<Var> {
    Var::from_tensor(&x.to_device(device)?)
}

#[test]
fn all_together() -> Result<()> {
    let score = Score::new(|s, at| {
        s + at.tensor_f32("bias", [at.batch, at.kv_head, at.q, at.k])
            + at.tensor_f16("shared", [at.k, at.q])
    })
    .map_err(Error::from)?;
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        compare(dtype, |device| {
            let [q, k, v] = CASE.variables(dtype)?;
            let [q, k, v] = [there(&q, device)?, there(&k, device)?, there(&v, device)?];
            let bias = there(&numbers((2, 2, 203, 200), 5)?, device)?;
            let shared = there(&numbers((200, 200), 6)?.to_dtype(DType::F16)?, device)?;
            let sinks = Var::new(&SINKS, device)?;
            let expressions = Expressions::new()
                .score(score)
                .tensor("bias", &bias)
                .tensor("shared", &shared);
            let options = Options::new()
                .expressions(&expressions)
                .sinks(&sinks)
                .dropout(0.25, 7, 1 << 40);
            let o = flash_attn_with_options(&q, &k, &v, &options, 0.125, None, Some(0))?;
            let weights = CASE.weights(dtype)?.to_device(device)?;
            both_passes(&o, &weights, &[&q, &k, &v, &bias, &shared, &sinks])
        })?;
    }
    Ok(())
}

#[test]
fn packed_sequences() -> Result<()> {
    let score = Score::new(|s, at| s + at.tensor_bf16("bias", [at.head, at.q, at.k]))
        .map_err(Error::from)?;
    compare(DType::BF16, |device| {
        let of = |heads, seed| numbers((270, heads, 64), seed)?.to_dtype(DType::BF16);
        let (q, k, v) = (of(4, 1)?, of(2, 2)?, of(2, 3)?);
        let [q, k, v] = [there(&q, device)?, there(&k, device)?, there(&v, device)?];
        let bias = there(&numbers((4, 200, 200), 5)?.to_dtype(DType::BF16)?, device)?;
        let sinks = Var::new(&SINKS, device)?;
        let ends = Tensor::new(&[0u32, 70, 270], device)?;
        let expressions = Expressions::new().score(score).tensor("bias", &bias);
        let options = Options::new().expressions(&expressions).sinks(&sinks);
        let o = flash_attn_varlen_with_options(
            &q, &k, &v, &options, &ends, &ends, 200, 200, 0.125, None, None,
        )?;
        let weights = of(4, 4)?.to_device(device)?;
        both_passes(&o, &weights, &[&q, &k, &v, &bias, &sinks])
    })
}

/// Nobody asks for the gradients of sinks and of a bias.
#[test]
fn what_asks_for_no_gradient() -> Result<()> {
    let score = Score::new(|s, at| s + at.tensor_f32("bias", [at.q, at.k])).map_err(Error::from)?;
    compare(DType::BF16, |device| {
        let [q, k, v] = CASE.variables(DType::BF16)?;
        let [q, k, v] = [there(&q, device)?, there(&k, device)?, there(&v, device)?];
        let bias = numbers((200, 200), 5)?.to_device(device)?;
        let sinks = Tensor::new(&SINKS, device)?;
        let expressions = Expressions::new().score(score).tensor("bias", &bias);
        let options = Options::new().expressions(&expressions).sinks(&sinks);
        let o = flash_attn_with_options(&q, &k, &v, &options, 0.125, None, Some(0))?;
        let weights = CASE.weights(DType::BF16)?.to_device(device)?;
        both_passes(&o, &weights, &[&q, &k, &v])
    })
}
