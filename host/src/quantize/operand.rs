//! A tensor on its way to 8 bits, and its amax.

use half::{bf16, f16};

use crate::dtype::{Dtype, Element, ScalarType};
use crate::error::{Argument, QuantizeError};
use crate::problem::{Fp8, ScaleLayout};
use crate::quantize::{Quantized, code_of, descale_of};
use crate::tensor::{Layout, Location, Tensor};

/// q, k or v on its way to 8 bits: a copy in f32, `[batch, seqlen, heads, head_dim]`, dense. Its numbers are finite.
///
/// The order is: [`Operand::hadamard`] of q and k, [`Operand::smooth`] of k, [`Operand::quantize`]. The [module](crate::quantize) has an example of all.
/// Nothing is rounded before the last step.
///
/// Packed sequences, `[total, heads, head_dim]` ([`Tensor::thd`]), are one batch entry. With [`Fp8::PerHead`] a call wants scales for each sequence: repeat
/// [`Quantized::descale`] as often as there are sequences. With [`Fp8::PerBlock`] the first block of a sequence begins with its first row: quantise sequences one by one, or by [`Quantize`](crate::Quantize).
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    pub(super) argument: Argument,
    /// `[batch, seqlen, heads, head_dim]`.
    pub(super) shape: [usize; 4],
    pub(super) heads_k: usize,
    pub(super) values: Vec<f32>,
}

impl Operand {
    /// Queries: `[batch, seqlen_q, heads_q, head_dim]` of bf16, f16 or f32 in host memory, with any strides. heads_k is the number of heads of keys, whose
    /// scales are those of the query heads that share them.
    ///
    /// ```
    /// use ferroflash::quantize::Operand;
    /// use ferroflash::{Fp8, Tensor};
    ///
    /// // One row, four heads of one column over two heads of keys.
    /// let q = Operand::q(&Tensor::bshd(&[1f32, -3.0, 0.5, 2.0], [1, 1, 4, 1])?, 2)?;
    /// assert_eq!(q.amax(Fp8::PerHead), [3.0, 2.0]);
    /// assert_eq!(q.amax(Fp8::PerTensor), [3.0]);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    ///
    /// # Errors
    /// heads_q is no multiple of heads_k; a number is not finite; the type is another; the tensor is on a device; there is no memory for the copy.
    pub fn q(q: &Tensor, heads_k: usize) -> Result<Operand, QuantizeError> {
        let heads = q.layout().heads;
        if heads_k == 0 || !heads.is_multiple_of(heads_k) {
            return Err(QuantizeError::Heads {
                argument: Argument::Q,
                given: heads,
                heads_k,
            });
        }
        Operand::new(Argument::Q, q, heads_k)
    }

    /// Keys: as [`Operand::q`], `[batch, seqlen_k, heads_k, head_dim]`.
    ///
    /// # Errors
    /// As [`Operand::q`], but for the heads.
    pub fn k(k: &Tensor) -> Result<Operand, QuantizeError> {
        Operand::new(Argument::K, k, k.layout().heads)
    }

    /// Values: as [`Operand::k`], with head_dim_v columns.
    ///
    /// # Errors
    /// As [`Operand::k`].
    pub fn v(v: &Tensor) -> Result<Operand, QuantizeError> {
        Operand::new(Argument::V, v, v.layout().heads)
    }

    fn new(argument: Argument, x: &Tensor, heads_k: usize) -> Result<Operand, QuantizeError> {
        let described = x.describe();
        let ScalarType::Float(dtype) = described.dtype else {
            let given = described.dtype;
            return Err(QuantizeError::Dtype { argument, given });
        };
        let values = match dtype {
            Dtype::Bf16 => gather::<bf16>(argument, x),
            Dtype::F16 => gather::<f16>(argument, x),
            Dtype::F32 => gather::<f32>(argument, x),
        }?;
        Operand {
            argument,
            shape: described.layout.shape(),
            heads_k,
            values,
        }
        .finite()
    }

    /// The same, if all numbers are finite.
    pub(super) fn finite(self) -> Result<Operand, QuantizeError> {
        let Some(at) = self.values.iter().position(|x| !x.is_finite()) else {
            return Ok(self);
        };
        let [_, seqlen, heads, head_dim] = self.shape;
        let row = at / head_dim;
        Err(QuantizeError::NotFinite {
            argument: self.argument,
            given: self.values[at],
            at: [
                row / heads / seqlen,
                row / heads % seqlen,
                row % heads,
                at % head_dim,
            ],
        })
    }

    /// Refuses a transform that is not for this tensor.
    pub(super) fn takes(
        &self,
        what: &'static str,
        allowed: &'static str,
        arguments: &[Argument],
    ) -> Result<(), QuantizeError> {
        let argument = self.argument;
        match arguments.contains(&argument) {
            true => Ok(()),
            false => Err(QuantizeError::NotTaken {
                what,
                allowed,
                argument,
            }),
        }
    }

    /// `[batch, seqlen, heads, head_dim]`; see [`Operand`].
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// All numbers, in the order of [`Operand::shape`].
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The greatest size of a number: `[1]` of the tensor, or `[batch, heads_k]`, where query heads that share a head of keys have one, or
    /// `[batch, heads_k, blocks]` of blocks of [`Fp8::BLOCK`] rows. 0 where there are no numbers. [`Operand::q`] has an example.
    pub fn amax(&self, scales: Fp8) -> Vec<f32> {
        let layout = scale_layout(scales, self.shape, self.heads_k);
        let mut amax = vec![0f32; layout.n_scales(self.shape[0])];
        for (row, values) in self.rows() {
            let of_row = values.iter().fold(0f32, |amax, x| amax.max(x.abs()));
            let amax = &mut amax[scale_of(layout, self.shape, self.heads_k, row)];
            *amax = amax.max(of_row);
        }
        amax
    }

    /// e4m3, with `descale = amax / 448`, so that the greatest number becomes 448: current scaling, in the words of TransformerEngine. amax of 0 has descale 1, and no
    /// descale is below 2^-60. Each element times 1 / descale becomes the nearest number of e4m3, ties to even. [`Quantize`](crate::Quantize) makes the same bits.
    ///
    /// ```
    /// use ferroflash::quantize::Operand;
    /// use ferroflash::{Fp8, Tensor};
    ///
    /// let v = Operand::v(&Tensor::bshd(&[896f32, -2.0, 34.0, 0.0], [1, 4, 1, 1])?)?.quantize(Fp8::PerTensor);
    /// assert_eq!(v.descale(), [2.0]);
    /// assert_eq!(v.dequantize(), [896.0, -2.0, 32.0, 0.0]); // 17 lies between 16 and 18, and 16 is even
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn quantize(&self, scales: Fp8) -> Quantized {
        let layout = scale_layout(scales, self.shape, self.heads_k);
        let descale = self.amax(scales).into_iter();
        self.rounded(
            layout,
            descale.map(|amax| descale_of(amax, false)).collect(),
        )
    }

    /// e4m3 with these scales, `[1]`, `[batch, heads_k]` or `[batch, heads_k, blocks]`: those of an earlier step ([`DelayedScaling`](crate::quantize::DelayedScaling)), or of a calibration.
    /// What is greater than 448 · descale becomes 448, with its sign.
    ///
    /// # Errors
    /// Another number of scales; one that is not finite, or not greater than 0.
    ///
    /// ```
    /// use ferroflash::Tensor;
    /// use ferroflash::quantize::Operand;
    ///
    /// let k = Operand::k(&Tensor::bshd(&[1000f32, -1.0], [1, 2, 1, 1])?)?.quantize_with(&[0.5])?;
    /// assert_eq!(k.dequantize(), [224.0, -1.0]);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn quantize_with(&self, descale: &[f32]) -> Result<Quantized, QuantizeError> {
        let argument = self.argument;
        let layouts = [Fp8::PerTensor, Fp8::PerHead, Fp8::PerBlock]
            .map(|scales| scale_layout(scales, self.shape, self.heads_k));
        let [batch, ..] = self.shape;
        let given = descale.len();
        let Some(&layout) = layouts.iter().find(|of| of.n_scales(batch) == given) else {
            let [_, per_head, per_block] = layouts.map(|of| of.n_scales(batch));
            return Err(QuantizeError::DescaleCount {
                argument,
                given,
                per_head,
                per_block,
            });
        };
        match descale.iter().find(|&&x| !Fp8::is_scale(x)) {
            Some(&given) => Err(QuantizeError::Descale { argument, given }),
            None => Ok(self.rounded(layout, descale.to_vec())),
        }
    }

    fn rounded(&self, layout: ScaleLayout, descale: Vec<f32>) -> Quantized {
        let mut values = Vec::with_capacity(self.values.len());
        for (row, x) in self.rows() {
            let factor = 1.0 / descale[scale_of(layout, self.shape, self.heads_k, row)];
            values.extend(x.iter().map(|&x| code_of(x * factor)));
        }
        Quantized {
            shape: self.shape,
            heads_k: self.heads_k,
            values,
            layout,
            descale,
        }
    }

    /// Rows of head_dim numbers, `[batch, seqlen, heads]`.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.values.chunks_exact(self.shape[3].max(1)).enumerate()
    }

    /// The batch entry and head of keys of a row, `[batch, heads_k]`.
    pub(super) fn head_k_of(&self, row: usize) -> usize {
        let [entry, head_k, _] = place_of(self.shape, self.heads_k, row);
        entry * self.heads_k + head_k
    }
}

/// Where the scales of a tensor of this shape lie.
fn scale_layout(scales: Fp8, [_, seqlen, ..]: [usize; 4], heads_k: usize) -> ScaleLayout {
    ScaleLayout::new(scales, heads_k, seqlen)
}

/// The place of a row's scale.
pub(super) fn scale_of(
    layout: ScaleLayout,
    shape: [usize; 4],
    heads_k: usize,
    row: usize,
) -> usize {
    let [entry, head_k, row] = place_of(shape, heads_k, row);
    layout.place(entry, head_k, row)
}

/// The batch entry, the head of keys, and which row of them one of `[batch, seqlen, heads]` is.
fn place_of([_, seqlen, heads, _]: [usize; 4], heads_k: usize, row: usize) -> [usize; 3] {
    // A row is of some head.
    let (position, head) = (row / heads, row % heads);
    [
        position / seqlen,
        head / (heads / heads_k),
        position % seqlen,
    ]
}

/// The numbers of a tensor, dense.
fn gather<T: Element>(argument: Argument, x: &Tensor) -> Result<Vec<f32>, QuantizeError> {
    let layout = x.layout();
    let Some(data) = x.host::<T>() else {
        let given = x.describe().location;
        debug_assert_ne!(given, Location::Host);
        return Err(QuantizeError::Location { argument, given });
    };
    let n_elems = layout.n_elems().unwrap_or(usize::MAX);
    let mut values = Vec::new();
    if values.try_reserve_exact(n_elems).is_err() {
        return Err(QuantizeError::Memory { argument, n_elems });
    }
    if n_elems > 0 {
        for first in firsts(layout) {
            let row = &data[first..first + layout.head_dim];
            values.extend(row.iter().map(|x| x.to_f32()));
        }
    }
    Ok(values)
}

/// Where the rows begin, in the order of `[batch, seqlen, heads]`.
fn firsts(layout: Layout) -> impl Iterator<Item = usize> {
    (0..layout.batch).flat_map(move |entry| {
        (0..layout.seqlen).flat_map(move |row| {
            let first = entry * layout.batch_stride + row * layout.row_stride;
            (0..layout.heads).map(move |head| first + head * layout.head_stride)
        })
    })
}
