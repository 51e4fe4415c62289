//! Tensors of a CUDA device: the same calls there and, in f32 by candle's own operations, on the CPU.
//!
//! Where the driver shows no device each test prints `[not run]`; with `REQUIRE=cuda` it fails.

mod expressions;
mod forward_only;
mod kvcache;
mod options;
#[path = "../support/mod.rs"]
mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_ferroflash::{
    Error, flash_attn, flash_attn_varlen, flash_attn_windowed, flash_attn_with_lse,
};
use support::{Case, assert_close, difference, naive, numbers, widened};

/// The device, or `None` where there is none and nobody requires one.
fn gpu() -> Option<Device> {
    match Device::new_cuda(0) {
        Ok(device) => Some(device),
        Err(error) if std::env::var("REQUIRE").is_ok_and(|backend| backend == "cuda") => {
            panic!("REQUIRE=cuda: {error}")
        }
        Err(error) => {
            println!("[not run] no CUDA device: {error}");
            None
        }
    }
}

/// Half a unit in the last place of o below 1, and as much again for weights rounded before the product with v.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        _ => 1.0 / 2048.0,
    }
}

const CASE: Case = Case {
    batch: 2,
    seqlen_q: 200,
    seqlen_k: 200,
    heads_q: 4,
    heads_k: 2,
    head_dim: 64,
    left: None,
    right: Some(0),
};

/// Variables on the device and, wide, on the CPU.
fn variables(case: Case, dtype: DType, device: &Device) -> Result<([Var; 3], [Var; 3])> {
    let [q, k, v] = case.variables(dtype)?;
    let wide = [widened(&q)?, widened(&k)?, widened(&v)?];
    let there = |x: &Var| Var::from_tensor(&x.as_tensor().to_device(device)?);
    Ok(([there(&q)?, there(&k)?, there(&v)?], wide))
}

fn here(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F32)
}

fn compare(case: Case, dtype: DType, device: &Device) -> Result<()> {
    let (ours, wide) = variables(case, dtype, device)?;
    let [q, k, v] = &ours;
    let o = flash_attn_windowed(q, k, v, case.scale(), case.left, case.right)?;
    let weights = case.weights(dtype)?;
    let gradients = (&o * weights.to_device(device)?)?.sum_all()?.backward()?;

    let (expected, _) = naive(&wide[0], &wide[1], &wide[2], case)?;
    let expected_gradients = (&expected * weights.to_dtype(DType::F32)?)?
        .sum_all()?
        .backward()?;
    let most = tolerance(dtype);
    assert_close("o", &here(&o)?, &expected, most);
    for (ours, theirs) in ours.iter().zip(&wide) {
        let ours = here(gradients.get(ours).expect("a gradient"))?;
        let theirs = expected_gradients.get(theirs).expect("a gradient");
        assert_close("gradient", &ours, theirs, 8.0 * most);
    }
    Ok(())
}

#[test]
fn both_passes() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::BF16, DType::F16] {
        for head_dim in [64, 128] {
            for (left, right) in [(None, None), (None, Some(0)), (Some(50), Some(0))] {
                for (heads_q, heads_k) in [(2, 2), (4, 2), (4, 1)] {
                    let case = Case {
                        head_dim,
                        left,
                        right,
                        heads_q,
                        heads_k,
                        ..CASE
                    };
                    compare(case, dtype, &device)?;
                }
            }
        }
    }
    let decode = Case {
        seqlen_q: 1,
        ..CASE
    };
    compare(decode, DType::BF16, &device)
}

/// A stream of its own, in a device that shares its context with the first.
#[test]
fn two_devices_of_one_context() -> Result<()> {
    let Some(first) = gpu() else { return Ok(()) };
    let second = Device::new_cuda_with_stream(0)?;
    for device in [&first, &second, &first] {
        compare(CASE, DType::BF16, device)?;
    }
    Ok(())
}

/// Calls are enqueued one behind the other and nobody waits: what one writes the next reads.
#[test]
fn a_chain_of_calls() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let shape = (2, 300, 4, 64);
    let x = numbers(shape, 7)?.to_dtype(DType::BF16)?;
    let run = |device: &Device| -> Result<Tensor> {
        let mut x = x.to_device(device)?;
        for _layer in 0..20 {
            let o = flash_attn(&x, &x, &x, 0.125, true)?;
            x = (x.add(&o)? * 0.5)?;
        }
        here(&x)
    };
    let (once, again) = (run(&device)?, run(&device)?);
    assert_close("rerun", &once, &again, 0.0);
    assert_close("the CPU", &once, &run(&Device::Cpu)?, 1.0 / 16.0);
    Ok(())
}

#[test]
fn strided_and_misaligned_tensors() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let ([q, k, v], _) = variables(CASE, DType::BF16, &device)?;
    let expected = here(&flash_attn(&q, &k, &v, CASE.scale(), true)?)?;
    let transposed = |x: &Tensor| x.transpose(1, 2)?.contiguous()?.transpose(1, 2);
    let (tq, tk, tv) = (transposed(&q)?, transposed(&k)?, transposed(&v)?);
    let o = flash_attn(&tq, &tk, &tv, CASE.scale(), true)?;
    assert_close("transposed", &here(&o)?, &expected, 0.0);

    // Rows of 65 elements, the first of which are not wanted: they begin between two multiples of 16 bytes.
    let shifted = |x: &Tensor| -> Result<Var> {
        let first = x.narrow(3, 0, 1)?;
        Var::from_tensor(&Tensor::cat(&[&first, x], 3)?)
    };
    let wide = [shifted(&q)?, shifted(&k)?, shifted(&v)?];
    let part = |x: &Var| x.narrow(3, 1, 64);
    let o = flash_attn(
        &part(&wide[0])?,
        &part(&wide[1])?,
        &part(&wide[2])?,
        CASE.scale(),
        true,
    )?;
    assert_close("misaligned", &here(&o)?, &expected, 0.0);
    let gradients = o.sum_all()?.backward()?;
    let direct = flash_attn(&q, &k, &v, CASE.scale(), true)?
        .sum_all()?
        .backward()?;
    for (wide, x) in wide.iter().zip([&q, &k, &v]) {
        let of_part = gradients.get(wide).expect("a gradient").narrow(3, 1, 64)?;
        let of_x = direct.get(x).expect("a gradient");
        assert_close("gradient", &here(&of_part)?, &here(of_x)?, 0.0);
    }

    let repeated = k.narrow(2, 0, 1)?.broadcast_as(k.shape())?;
    let o = flash_attn(&q, &repeated, &repeated, CASE.scale(), true)?;
    let copied = repeated.contiguous()?;
    let direct = flash_attn(&q, &copied, &copied, CASE.scale(), true)?;
    assert_close(
        "repeated",
        &here(&o)?,
        &here(&direct)?,
        tolerance(DType::BF16),
    );
    Ok(())
}

#[test]
fn packed_sequences() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (total, heads, head_dim) = (300, 4, 64);
    for causal in [false, true] {
        let run = |device: &Device| -> Result<[Tensor; 4]> {
            let of = |seed| -> Result<Var> {
                let x = numbers((total, heads, head_dim), seed)?.to_dtype(DType::BF16)?;
                Var::from_tensor(&x.to_device(device)?)
            };
            let [q, k, v] = [of(1)?, of(2)?, of(3)?];
            let ends = Tensor::new(&[0u32, 100, 100, 229, 300], device)?;
            // The same tensor twice, as of self-attention.
            let o = flash_attn_varlen(&q, &k, &v, &ends, &ends, 129, 129, 0.125, causal)?;
            let gradients = o.sqr()?.sum_all()?.backward()?;
            let of = |x: &Var| here(gradients.get(x).expect("a gradient"));
            Ok([here(&o)?, of(&q)?, of(&k)?, of(&v)?])
        };
        for (there, here) in run(&device)?.iter().zip(run(&Device::Cpu)?) {
            assert_close("packed", there, &here, 8.0 * tolerance(DType::BF16));
        }
    }
    Ok(())
}

#[test]
fn lse_and_its_gradient() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (ours, wide) = variables(CASE, DType::F16, &device)?;
    let [q, k, v] = &ours;
    let (o, lse) = flash_attn_with_lse(q, k, v, CASE.scale(), CASE.left, CASE.right)?;
    let (expected_o, expected) = naive(&wide[0], &wide[1], &wide[2], CASE)?;
    assert_close("lse", &here(&lse)?, &expected, 1e-4);
    let loss =
        |o: &Tensor, lse: &Tensor| o.to_dtype(DType::F32)?.sum_all()? + lse.sqr()?.sum_all()?;
    let gradients = loss(&o, &lse)?.backward()?;
    let expected = loss(&expected_o, &expected)?.backward()?;
    for (ours, theirs) in ours.iter().zip(&wide) {
        let theirs = expected.get(theirs).expect("a gradient");
        let scale = difference(theirs, &theirs.zeros_like()?)?.max(1.0);
        let ours = here(gradients.get(ours).expect("a gradient"))?;
        assert_close(
            "gradient",
            &ours,
            theirs,
            8.0 * scale * tolerance(DType::F16),
        );
    }
    Ok(())
}

#[test]
fn empty_tensors() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let q = Tensor::ones((1, 4, 2, 64), DType::BF16, &device)?;
    let none = Tensor::zeros((1, 8, 2, 64), DType::BF16, &device)?.narrow(1, 8, 0)?;
    let (o, lse) = flash_attn_with_lse(&q, &none, &none, 0.125, None, None)?;
    assert_close("o", &here(&o)?, &here(&q.zeros_like()?)?, 0.0);
    assert!(
        here(&lse)?
            .flatten_all()?
            .to_vec1::<f32>()?
            .iter()
            .all(|&lse| lse == f32::NEG_INFINITY)
    );
    let o = flash_attn(&none, &q, &q, 0.125, false)?;
    assert_eq!(o.dims(), [1, 0, 2, 64]);
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let there = Tensor::zeros((1, 8, 2, 64), DType::BF16, &device)?;
    let cpu = there.to_device(&Device::Cpu)?;
    let error = flash_attn(&there, &cpu, &there, 0.125, false).unwrap_err();
    assert!(matches!(
        Error::of(&error),
        Some(Error::Device { argument: "k", .. })
    ));
    let packed = there.squeeze(0)?;
    let ends = Tensor::new(&[0u32, 8], &Device::Cpu)?;
    let error = flash_attn_varlen(&packed, &packed, &packed, &ends, &ends, 8, 8, 0.125, false);
    let error = error.unwrap_err();
    assert!(matches!(
        Error::of(&error),
        Some(Error::Device {
            argument: "seqlens_q",
            ..
        })
    ));
    // f32 has kernels up to a head_dim of 128.
    let wide = Tensor::zeros((1, 8, 2, 256), DType::F32, &device)?;
    let error = flash_attn(&wide, &wide, &wide, 0.125, false).unwrap_err();
    assert!(
        matches!(Error::of(&error), Some(Error::Ferroflash(_))),
        "{error}"
    );
    Ok(())
}
