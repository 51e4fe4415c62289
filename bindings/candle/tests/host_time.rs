//! What a function costs the host above an operation of candle that does nothing, and above the library's own call.

use std::hint::black_box;
use std::time::Instant;

use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor};
use ferroflash::{Attention, Dtype, Inputs, Mask, Outputs, Problem, TensorMut};

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
fn median_us<T>(mut call: impl FnMut() -> Result<T>) -> Result<f64> {
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

/// The library's own call on the same numbers, with its plan at hand.
fn library_us() -> f64 {
    let builder = Problem::builder(Dtype::F32)
        .heads(1)
        .head_dim(8)
        .mask(Mask::Causal);
    let problem = builder.seqlen(1).build().expect("one query over one key");
    let attention = Attention::new(&ferroflash::Device::cpu(), problem).expect("a CPU");
    let (shape, x) = (problem.shape_q(), [1f32; 8]);
    let (mut o, mut lse) = ([0f32; 8], [0f32; 1]);
    let call = || {
        let x = ferroflash::Tensor::bshd(&x, shape).expect("its shape");
        let o = TensorMut::bshd(&mut o, shape).expect("its shape");
        let mut outputs = Outputs::new(o, &mut lse);
        let ran = attention.forward(&Inputs::new(&x, &x, &x), &mut outputs);
        black_box(ran.expect("what the problem says"));
        Ok(())
    };
    median_us(call).expect("none of candle's errors")
}

/// One query over one key: what is left is the way there and back, of candle's operation and of the library's call apart.
#[test]
#[ignore = "measures: cargo test --release --test host_time -- --ignored --nocapture"]
fn a_function_costs_little_above_candles_own_operation() -> Result<()> {
    let tensor = || Tensor::ones((1, 1, 1, 8), DType::F32, &Device::Cpu);
    let (q, k, v) = (tensor()?, tensor()?, tensor()?);
    let own = median_us(|| q.apply_op3_no_bwd(&k, &v, &Nothing))?;
    let library = library_us();
    let ours = median_us(|| candle_ferroflash::flash_attn(&q, &k, &v, 0.5, true))?;
    let above = ours - own - library;
    println!(
        "flash_attn {ours:.2} µs: {own:.2} of candle's operation, {library:.2} of the library's call, {above:.2} above both"
    );
    assert!(above <= MOST_US, "{above:.2} µs, more than {MOST_US}");
    Ok(())
}
