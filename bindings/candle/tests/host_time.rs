//! What a function costs the host above an operation of candle that does nothing.

use std::hint::black_box;
use std::time::Instant;

use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};

/// The most that it may be, in microseconds.
const MOST_US: f64 = 10.0;

/// An operation on three tensors that gives room for its result, and does nothing.
struct Nothing;

impl CustomOp3 for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn cpu_fwd(
        &self,
        _q: &CpuStorage,
        q_layout: &Layout,
        _k: &CpuStorage,
        _k_layout: &Layout,
        _v: &CpuStorage,
        _v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = q_layout.shape();
        Ok((
            CpuStorage::F32(vec![0.0; shape.elem_count()]),
            shape.clone(),
        ))
    }
}

/// The median of rounds, in microseconds a call.
fn median_us(mut call: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    const N_CALLS: u32 = 200;
    let mut rounds = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        for _ in 0..N_CALLS {
            black_box(call()?);
        }
        rounds.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(N_CALLS));
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}

/// One query over one key: what is left is the way there and back.
#[test]
#[ignore = "measures: cargo test --release --test host_time -- --ignored --nocapture"]
fn a_function_costs_little_above_candles_own_operation() -> Result<()> {
    let tensor = || Tensor::ones((1, 1, 1, 8), DType::F32, &Device::Cpu);
    let (q, k, v) = (tensor()?, tensor()?, tensor()?);
    let own = median_us(|| q.apply_op3_no_bwd(&k, &v, &Nothing))?;
    let ours = median_us(|| candle_ferroflash::flash_attn(&q, &k, &v, 0.5, true))?;
    let above = ours - own;
    println!("candle's own {own:.2} µs, flash_attn {ours:.2} µs: {above:.2} µs above");
    assert!(above <= MOST_US, "{above:.2} µs, more than {MOST_US}");
    Ok(())
}
