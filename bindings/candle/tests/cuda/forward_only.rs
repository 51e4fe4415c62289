//! Values in the keys, and caches in 8 bits: on the device and, by the same calls, on the CPU.

use candle_core::{DType, Device, Result, Tensor};
use candle_ferroflash::{Error, KvCache, flash_attn_with_kvcache, flash_mla_with_kvcache};

use crate::support::{assert_close, numbers};
use crate::{gpu, here, tolerance};

/// The device's compute capability.
fn compute_capability(device: &Device) -> Result<(i32, i32)> {
    let context = device.as_cuda_device()?.cuda_stream();
    let capability = context.context().compute_capability();
    capability.map_err(candle_core::Error::wrap)
}

/// Each page once, in an order of its own: 7 divides no number of pages below.
fn table(batch: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let n_pages = batch * columns;
    let table: Vec<u32> = (0..n_pages)
        .map(|slot| (slot * 7 % n_pages) as u32)
        .collect();
    Tensor::from_vec(table, (batch, columns), device)
}

#[test]
fn latent_caches() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (heads, used) = (128, [640u32, 1, 0, 333]);
    let run = |device: &Device, dtype, page_size: Option<usize>| -> Result<[Tensor; 2]> {
        let q = numbers((4, 2, heads, 576), 1)?.to_dtype(dtype)?;
        let shape = page_size.map_or((4, 640), |n| (4 * 640 / n, n));
        let cache = numbers((shape.0, shape.1, 1, 576), 2)?.to_dtype(dtype)?;
        let (q, cache) = (q.to_device(device)?, cache.to_device(device)?);
        let table = page_size.map(|n| table(4, 640 / n, device)).transpose()?;
        let used = Tensor::new(&used, device)?;
        let (o, lse) = flash_mla_with_kvcache(&q, &cache, table.as_ref(), &used, 512, 0.07, true)?;
        Ok([here(&o)?, here(&lse)?])
    };
    for dtype in [DType::BF16, DType::F16] {
        for page_size in [None, Some(64), Some(16)] {
            let there = run(&device, dtype, page_size);
            if compute_capability(&device)? != (9, 0) {
                let error = there.expect_err("a kernel for Hopper alone");
                assert!(matches!(Error::of(&error), Some(Error::Ferroflash(_))));
                println!("[not run] no device of compute capability 9.0");
                return Ok(());
            }
            let [o, lse] = there?;
            let [of_o, of_lse] = run(&Device::Cpu, dtype, page_size)?;
            assert_close("o", &o, &of_o, 4.0 * tolerance(dtype));
            assert_close("lse", &lse, &of_lse, 1e-3);
        }
    }
    Ok(())
}

#[test]
fn caches_in_8_bits() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    if compute_capability(&device)? < (8, 9) {
        println!("[not run] no device of compute capability 8.9 or newer");
        return Ok(());
    }
    let (batch, most, heads_k, page_size) = (3, 320, 2, 16);
    let n_pages = batch * most / page_size;
    let run = |device: &Device, dtype, head_dim| -> Result<Vec<Tensor>> {
        let there = |x: Tensor| x.to_device(device);
        let q = there(numbers((batch, 2, 8, head_dim), 1)?.to_dtype(dtype)?)?;
        let pool = |seed| {
            let numbers = numbers((n_pages, page_size, heads_k, head_dim), seed)?;
            there(numbers.to_dtype(DType::F8E4M3)?)
        };
        let scales = |entries, seed| there(((numbers((entries, heads_k), seed)? * 0.5)? + 1.0)?);
        let (k, v) = (pool(2)?, pool(3)?);
        let used = Tensor::new(&[320u32, 1, 77], device)?;
        let table = table(batch, most / page_size, device)?;
        let (of_k, of_v) = (scales(batch, 4)?, scales(batch, 5)?);
        let (pages_k, pages_v) = (scales(n_pages, 6)?, scales(n_pages, 7)?);
        let paged = KvCache::paged(&k, &v, &table, most, &used);
        let shape = (batch, most, heads_k, head_dim);
        let (k, v) = (k.reshape(shape)?, v.reshape(shape)?);
        let rows = KvCache::new(&k, &v, &used);
        [
            paged,
            paged.with_descale(&of_k, &of_v),
            paged.with_descale_of_pages(&pages_k, &pages_v),
            rows.with_descale(&of_k, &of_k),
        ]
        .iter()
        .map(|cache| here(&flash_attn_with_kvcache(&q, cache, 0.1, None, Some(0))?))
        .collect()
    };
    for dtype in [DType::BF16, DType::F16] {
        for head_dim in [64, 128] {
            let there = run(&device, dtype, head_dim)?;
            for (there, here) in there.iter().zip(run(&Device::Cpu, dtype, head_dim)?) {
                assert_close("o", there, &here, 4.0 * tolerance(dtype));
            }
        }
    }
    Ok(())
}
