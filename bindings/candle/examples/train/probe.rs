//! The time of attention alone, forward and backward, on the shapes of a training.
//!
//! candle's `backward` runs through all operations at once and lets nobody measure one of them. So the backward pass of
//! attention is timed apart from the model.

use std::time::{Duration, Instant};

use candle_core::{Device, Result, Tensor, Var};

use crate::attention::Attention;
use crate::model::Config;

/// Timed calls; one more goes before them.
const CALLS: u32 = 5;

/// The mean time of a forward and a backward pass of one layer's attention.
pub fn both_passes(
    config: &Config,
    batch: usize,
    seqlen: usize,
    attention: &Attention,
    device: &Device,
) -> Result<Duration> {
    let shape = (batch, seqlen, config.heads, config.head_dim);
    let variable = || -> Result<Var> {
        let numbers = Tensor::randn(0f32, 1f32, shape, device)?;
        Var::from_tensor(&numbers.to_dtype(config.dtype)?)
    };
    let [q, k, v] = [variable()?, variable()?, variable()?];
    let d_o = variable()?.as_tensor().detach();
    let call = || -> Result<()> {
        // The gradient of this sum, with respect to o, is d_o.
        let sum = (attention.call(&q, &k, &v)? * &d_o)?.sum_all()?;
        sum.backward()?;
        device.synchronize()
    };
    call()?;
    let start = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    Ok(start.elapsed() / CALLS)
}
