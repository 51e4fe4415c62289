//! The attention of the model: ferroflash's, or candle's own operations, behind one call that can be timed.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Result, Tensor};
use candle_ferroflash::Fp8Sums;

/// What computes o from q, k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `candle_ferroflash::flash_attn`.
    Ferroflash,
    /// `candle_ferroflash::flash_attn_fp8`: products of the forward pass in 8 bits.
    Fp8,
    /// matmul, softmax, matmul.
    Candle,
}

/// Causal attention by one backend. Tensors are `[batch, seqlen, heads, head_dim]`.
pub struct Attention {
    backend: Backend,
    /// Time spent in calls; `None` while nobody asks for it.
    spent: Cell<Option<Duration>>,
}

impl Attention {
    pub fn new(backend: Backend) -> Attention {
        Attention {
            backend,
            spent: Cell::new(None),
        }
    }

    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Measures the calls from here on. A GPU is then waited for before and after each.
    pub fn start_clock(&self) {
        self.spent.set(Some(Duration::ZERO));
    }

    /// The time of all calls since [`Attention::start_clock`], which ends the measurement.
    pub fn stop_clock(&self) -> Duration {
        self.spent.take().unwrap_or_default()
    }

    /// softmax(q·kᵀ/√head_dim, causal)·v. With fewer queries than keys the queries are the last ones: a decode step has one.
    pub fn call(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let Some(before) = self.spent.get() else {
            return self.attend(q, k, v);
        };
        let device = q.device();
        device.synchronize()?;
        let start = Instant::now();
        let o = self.attend(q, k, v)?;
        device.synchronize()?;
        self.spent.set(Some(before + start.elapsed()));
        Ok(o)
    }

    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
        match self.backend {
            Backend::Ferroflash => candle_ferroflash::flash_attn(q, k, v, scale as f32, true),
            Backend::Fp8 => candle_ferroflash::flash_attn_fp8(
                q,
                k,
                v,
                scale as f32,
                None,
                Some(0),
                Fp8Sums::TwoLevels,
            ),
            Backend::Candle => materialised(q, k, v, scale),
        }
    }
}

/// Attention whose scores, `[batch, heads, seqlen_q, seqlen_k]`, lie in memory.
///
/// Softmax runs in f32 for every type, as in candle's own Llama: candle adds bf16 numbers in bf16, which stops at 256.
fn materialised(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Tensor> {
    let by_head = |x: &Tensor| x.transpose(1, 2)?.contiguous();
    let (q, k, v) = (by_head(&(q * scale)?)?, by_head(k)?, by_head(v)?);
    let s = q.matmul(&k.t()?)?.to_dtype(DType::F32)?;
    let mask = causal_mask(q.dim(2)?, k.dim(2)?, q.device())?;
    let p = candle_nn::ops::softmax(&s.broadcast_add(&mask)?, D::Minus1)?;
    p.to_dtype(q.dtype())?
        .matmul(&v)?
        .transpose(1, 2)?
        .contiguous()
}

/// What is added to the scores: 0 where the query sees the key, −∞ elsewhere.
fn causal_mask(seqlen_q: usize, seqlen_k: usize, device: &Device) -> Result<Tensor> {
    let first = seqlen_k.saturating_sub(seqlen_q) as u32;
    let places = Tensor::arange(first, first + seqlen_q as u32, device)?.unsqueeze(1)?;
    let keys = Tensor::arange(0, seqlen_k as u32, device)?.unsqueeze(0)?;
    let hidden = keys.broadcast_gt(&places)?;
    let hide = Tensor::full(f32::NEG_INFINITY, hidden.shape(), device)?;
    hidden.where_cond(&hide, &hide.zeros_like()?)
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Ferroflash => "ferroflash",
            Backend::Fp8 => "ferroflash, 8 bits",
            Backend::Candle => "candle",
        })
    }
}
