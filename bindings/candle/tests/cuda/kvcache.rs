//! Caches: appends and attention on the device and, by the same calls, on the CPU.

use candle_core::{DType, Device, Result, Tensor};
use candle_ferroflash::{
    Error, KvCache, NewRows, Rotary, append_kvcache, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_with_kvcache, flash_attn_with_kvcache,
};

use crate::support::{assert_close, numbers};
use crate::{gpu, here, tolerance};

const HEADS_Q: usize = 8;
const HEADS_K: usize = 2;
const MOST: usize = 320;
const SCALE: f32 = 0.1;

/// A cache and the rows that two steps add to it, on a device.
struct Engine {
    device: Device,
    dtype: DType,
    head_dim: usize,
    page_size: usize,
    /// Keys and values.
    pools: [Tensor; 2],
    table: Tensor,
}

/// Sequences that begin, go on, and are in the midst of their prompt.
const STEPS: [[usize; 4]; 2] = [[130, 1, 40, 0], [1, 1, 70, 9]];
const BEFORE: [u32; 4] = [0, 250, 33, 0];

impl Engine {
    fn new(device: &Device, dtype: DType, head_dim: usize, page_size: usize) -> Result<Engine> {
        let columns = MOST.div_ceil(page_size);
        let n_pages = 4 * columns;
        // Each page once, in an order of its own: 7 divides no number of pages below.
        let table: Vec<u32> = (0..n_pages)
            .map(|slot| (slot * 7 % n_pages) as u32)
            .collect();
        let shape = (n_pages, page_size, HEADS_K, head_dim);
        let pool = |seed| numbers(shape, seed)?.to_dtype(dtype)?.to_device(device);
        Ok(Engine {
            device: device.clone(),
            dtype,
            head_dim,
            page_size,
            pools: [pool(1)?, pool(2)?],
            table: Tensor::from_vec(table, (4, columns), device)?,
        })
    }

    fn of(&self, shape: impl Into<candle_core::Shape>, seed: u64) -> Result<Tensor> {
        let numbers = numbers(shape, seed)?.to_dtype(self.dtype)?;
        numbers.to_device(&self.device)
    }

    fn tables(&self) -> Result<[Tensor; 2]> {
        let half = self.head_dim / 2;
        let angle = |at: usize| (at / half) as f32 * 0.8f32.powi((at % half) as i32);
        let angles: Vec<f32> = (0..MOST * half).map(angle).collect();
        let angles = Tensor::from_vec(angles, (MOST, half), &Device::Cpu)?;
        Ok([
            angles.cos()?.to_device(&self.device)?,
            angles.sin()?.to_device(&self.device)?,
        ])
    }

    /// Both steps: outputs, the lengths after each, and the pools.
    fn run(&self) -> Result<Vec<Tensor>> {
        let [cos, sin] = self.tables()?;
        let [k_cache, v_cache] = &self.pools;
        let mut used = Tensor::new(&BEFORE, &self.device)?;
        let mut results = Vec::new();
        for (step, lengths) in STEPS.into_iter().enumerate() {
            let total = lengths.iter().sum::<usize>();
            let most = lengths.into_iter().max().unwrap_or(0);
            let mut ends = vec![0u32];
            for length in lengths {
                ends.push(ends[ends.len() - 1] + length as u32);
            }
            let ends = Tensor::new(ends, &self.device)?;
            let qkv = self.of(
                (total, HEADS_Q + 2 * HEADS_K, self.head_dim),
                10 + step as u64,
            )?;
            let part = |first, heads| qkv.narrow(1, first, heads);
            let q = part(0, HEADS_Q)?;
            let (k, v) = (part(HEADS_Q, HEADS_K)?, part(HEADS_Q + HEADS_K, HEADS_K)?);
            let cache = KvCache::paged(k_cache, v_cache, &self.table, MOST, &used);
            let appended = append_kvcache(
                &cache,
                &NewRows::packed(&k, &v, &ends).with_q(&q),
                Some(&Rotary::halves(&cos, &sin)),
            )?;
            let q = appended.q.expect("queries were given");
            let cache = cache.with_seqused_k(&appended.seqused_k);
            let o = flash_attn_varlen_with_kvcache(&q, &ends, most, &cache, SCALE, None, Some(0))?;
            let starts = appended.seqused_k.to_vec1::<u32>()?;
            let mut ends_k = vec![0];
            for n in starts {
                ends_k.push(ends_k[ends_k.len() - 1] + n);
            }
            let ends_k = Tensor::new(ends_k, &self.device)?;
            let theirs = flash_attn_varlen_paged_windowed(
                &q,
                k_cache,
                v_cache,
                &ends,
                &ends_k,
                &self.table,
                None,
                most,
                MOST,
                SCALE,
                None,
                Some(0),
                self.page_size,
                None,
            )?;
            assert_close("lengths or ends", &here(&theirs)?, &here(&o)?, 0.0);
            results.extend([here(&q)?, here(&o)?, here(&appended.seqused_k)?]);
            used = appended.seqused_k;
        }
        results.extend([here(k_cache)?, here(v_cache)?]);
        Ok(results)
    }
}

#[test]
fn appends_and_attention_in_pages() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::BF16, DType::F16] {
        for (head_dim, page_size) in [(64, 16), (128, 16), (128, 64), (64, 1), (128, 256)] {
            let engine = |device| Engine::new(device, dtype, head_dim, page_size);
            let (there, here) = (engine(&device)?.run()?, engine(&Device::Cpu)?.run()?);
            for (there, here) in there.iter().zip(&here) {
                assert_close("engine", there, here, 4.0 * tolerance(dtype));
            }
        }
    }
    Ok(())
}

/// Contiguous caches of other strides, padded queries, and lengths of i32.
#[test]
fn decode_steps() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let run = |device: &Device| -> Result<Vec<Tensor>> {
        let of = |shape: (usize, usize, usize, usize), seed| {
            numbers(shape, seed)?
                .to_dtype(DType::BF16)?
                .to_device(device)
        };
        // [batch, heads, rows, head_dim] in memory.
        let by_head = |seed| of((3, HEADS_K, 200, 128), seed)?.transpose(1, 2);
        let (k_cache, v_cache) = (by_head(1)?, by_head(2)?);
        let used = Tensor::new(&[199i64, 0, 77], &Device::Cpu)?;
        let mut used = used.to_dtype(DType::I32)?.to_device(device)?;
        let mut results = Vec::new();
        for step in 0..3 {
            // The last step has no place for the first sequence's row: the device drops it, and cuts the length.
            if step > 0 && matches!(device, Device::Cpu) {
                break;
            }
            let (q, k, v) = (
                of((3, 1, HEADS_Q, 128), 3)?,
                of((3, 1, HEADS_K, 128), 4)?,
                of((3, 1, HEADS_K, 128), 5)?,
            );
            let cache = KvCache::new(&k_cache, &v_cache, &used);
            let appended = append_kvcache(&cache, &NewRows::new(&k, &v), None)?;
            let cache = cache.with_seqused_k(&appended.seqused_k);
            results.push(here(&flash_attn_with_kvcache(
                &q, &cache, SCALE, None, None,
            )?)?);
            used = appended.seqused_k;
        }
        results.push(here(&k_cache)?.narrow(1, 0, 1)?);
        let used = used.to_device(&Device::Cpu)?;
        assert_eq!(used.dtype(), DType::I32);
        let expected = match device {
            Device::Cpu => [200, 1, 78],
            _ => [200, 3, 80],
        };
        assert_eq!(used.to_vec1::<i32>()?, expected);
        Ok(results)
    };
    let (there, here) = (run(&device)?, run(&Device::Cpu)?);
    assert_close("o", &there[0], &here[0], tolerance(DType::BF16));
    // Row 0 of each sequence, which the first step writes where there was none.
    assert_close("k", &there[there.len() - 1], &here[1], 0.0);
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let engine = Engine::new(&device, DType::BF16, 64, 16)?;
    let [k, v] = &engine.pools;
    let used = Tensor::new(&BEFORE, &Device::Cpu)?;
    let new = engine.of((4, 1, HEADS_K, 64), 3)?;
    let cache = KvCache::paged(k, v, &engine.table, MOST, &used);
    let error = append_kvcache(&cache, &NewRows::new(&new, &new), None).unwrap_err();
    assert!(matches!(
        Error::of(&error),
        Some(Error::Device {
            argument: "seqused_k",
            ..
        })
    ));
    // Rows that begin between two multiples of 16 bytes: a cache is never copied.
    let wide = Tensor::zeros((4, MOST, HEADS_K, 65), DType::BF16, &device)?;
    let other = wide.zeros_like()?;
    let used = used.to_device(&device)?;
    let (odd, other) = (wide.narrow(3, 1, 64)?, other.narrow(3, 1, 64)?);
    let cache = KvCache::new(&odd, &other, &used);
    let error = append_kvcache(&cache, &NewRows::new(&new, &new), None).unwrap_err();
    assert!(
        matches!(Error::of(&error), Some(Error::Ferroflash(_))),
        "{error}"
    );
    Ok(())
}
