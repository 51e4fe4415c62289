//! Numbers in 8 bits and their scales.

use float8::F8E4M3;

use super::operand::scale_of;
use crate::arguments::Inputs;
use crate::error::ProblemError;
use crate::problem::ScaleLayout;
use crate::tensor::Tensor;

/// q, k or v in e4m3, dense `[batch, seqlen, heads, head_dim]`, and its scales: an element is the number times a scale.
///
/// [`Operand::quantize`](crate::quantize::Operand::quantize) makes it, and [`inputs`] gives it to a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    pub(super) shape: [usize; 4],
    pub(super) heads_k: usize,
    pub(super) values: Vec<F8E4M3>,
    pub(super) layout: ScaleLayout,
    pub(super) descale: Vec<f32>,
}

impl Quantized {
    /// `[batch, seqlen, heads, head_dim]`; see [`Quantized`].
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// All numbers, in the order of [`Quantized::shape`].
    pub fn values(&self) -> &[F8E4M3] {
        &self.values
    }

    /// The scales: `[1]` of the tensor, `[batch, heads_k]`, or `[batch, heads_k, blocks]` ([`Fp8`](crate::Fp8)), for [`Inputs::q_descale`] and its like.
    pub fn descale(&self) -> &[f32] {
        &self.descale
    }

    /// The numbers as a tensor for [`Inputs::new`].
    ///
    /// # Errors
    /// None that a `Quantized` can have.
    pub fn tensor(&self) -> Result<Tensor<'_>, ProblemError> {
        Tensor::bshd(&self.values, self.shape)
    }

    /// The numbers and the scales, for memory elsewhere: a [`DeviceBuffer`](crate::backend::cuda::memory::DeviceBuffer) takes slices of both.
    pub fn into_parts(self) -> (Vec<F8E4M3>, Vec<f32>) {
        (self.values, self.descale)
    }

    /// What the numbers stand for, in the order of [`Quantized::shape`]. [`Operand::quantize`](crate::quantize::Operand::quantize) has an example.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut dequantized = Vec::with_capacity(self.values.len());
        let rows = self.values.chunks_exact(self.shape[3].max(1));
        for (row, values) in rows.enumerate() {
            let descale = self.descale[scale_of(self.layout, self.shape, self.heads_k, row)];
            dequantized.extend(values.iter().map(|x| x.to_f32() * descale));
        }
        dequantized
    }
}

/// The inputs of a call with [`Fp8`](crate::Fp8), scales included. Sizes that do not match are refused by the call. The [module](crate::quantize) has an
/// example.
///
/// # Errors
/// None that a [`Quantized`] can have.
pub fn inputs<'a>(
    q: &'a Quantized,
    k: &'a Quantized,
    v: &'a Quantized,
) -> Result<Inputs<'a>, ProblemError> {
    Ok(Inputs::new(&q.tensor()?, &k.tensor()?, &v.tensor()?)
        .q_descale(q.descale())
        .k_descale(k.descale())
        .v_descale(v.descale()))
}
