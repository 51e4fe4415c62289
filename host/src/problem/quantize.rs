//! The description of a rounding to 8 bits.

use std::fmt;

use super::new_rows::NewRows;
use super::{Fp8, ScaleLayout};
use crate::dtype::Dtype;

/// A tensor to be rounded to e4m3, with its scales: see [`crate::Quantize`]. Plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeProblem {
    dtype: Dtype,
    batch: usize,
    rows: NewRows,
    max_seqlen: usize,
    heads: usize,
    heads_k: usize,
    head_dim: usize,
    scales: Fp8,
    power_of_2: bool,
    gives_descale: bool,
    /// A Hadamard transform, if there is one, and the seed of its signs, if it has some.
    hadamard: Option<Option<u64>>,
}

impl QuantizeProblem {
    /// For a tensor `[batch, seqlen, heads, head_dim]`, with scales that follow from its amax.
    pub fn new(dtype: Dtype, shape: [usize; 4], scales: Fp8) -> QuantizeProblem {
        let [batch, seqlen, heads, head_dim] = shape;
        QuantizeProblem {
            dtype,
            batch,
            rows: NewRows::Padded { seqlen },
            max_seqlen: seqlen,
            heads,
            heads_k: heads,
            head_dim,
            scales,
            power_of_2: false,
            gives_descale: false,
            hadamard: None,
        }
    }

    /// For this many packed sequences of at most max_seqlen rows, `[total, heads, head_dim]`: [`QuantizeInputs::cu_seqlens`](crate::QuantizeInputs::cu_seqlens) has
    /// the first row of each.
    pub fn packed(
        dtype: Dtype,
        batch: usize,
        max_seqlen: usize,
        shape: [usize; 3],
        scales: Fp8,
    ) -> QuantizeProblem {
        let [total, heads, head_dim] = shape;
        QuantizeProblem {
            batch,
            rows: NewRows::Packed { total },
            max_seqlen,
            ..QuantizeProblem::new(dtype, [1, total, heads, head_dim], scales)
        }
    }

    /// Heads of keys: query heads that share one have one scale. As many as there are heads unless set.
    #[must_use]
    pub fn heads_k(self, heads_k: usize) -> QuantizeProblem {
        QuantizeProblem { heads_k, ..self }
    }

    /// Scales are powers of 2, the least ones that are not below amax / 448: a division by such a scale rounds nothing.
    #[must_use]
    pub fn power_of_2(self) -> QuantizeProblem {
        QuantizeProblem {
            power_of_2: true,
            ..self
        }
    }

    /// Every call gives scales ([`QuantizeInputs::descale`](crate::QuantizeInputs::descale)), such as those of
    /// [`DelayedScaling`](crate::quantize::DelayedScaling).
    #[must_use]
    pub fn giving_descale(self) -> QuantizeProblem {
        QuantizeProblem {
            gives_descale: true,
            ..self
        }
    }

    /// Rows are multiplied by a Hadamard matrix first, as [`Operand::hadamard`](crate::quantize::Operand::hadamard) does it: of q and k, with the same seed.
    #[must_use]
    pub fn hadamard(self, seed: Option<u64>) -> QuantizeProblem {
        QuantizeProblem {
            hadamard: Some(seed),
            ..self
        }
    }

    /// Element type of the tensor that is rounded.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of sequences.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Shape of both tensors: `[batch, seqlen, heads, head_dim]`; packed, `[1, total, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.rows.shape(self.batch, self.heads, self.head_dim)
    }

    /// Which numbers have one scale.
    pub fn scales(&self) -> Fp8 {
        self.scales
    }

    /// Number of scales: see [`Fp8`]. Saturates.
    pub fn n_scales(&self) -> u64 {
        self.scale_layout().n_scales(self.batch) as u64
    }

    /// Where the scales lie.
    pub(crate) fn scale_layout(&self) -> ScaleLayout {
        ScaleLayout::new(self.scales, self.heads_k, self.max_seqlen)
    }

    pub(crate) fn rows(&self) -> NewRows {
        self.rows
    }

    pub(crate) fn max_seqlen(&self) -> usize {
        self.max_seqlen
    }

    /// Heads, those of keys, and columns.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        [self.heads, self.heads_k, self.head_dim]
    }

    /// Heads that share one of keys; 0 where there are none.
    pub(crate) fn group_size(&self) -> usize {
        self.heads.checked_div(self.heads_k).unwrap_or(0)
    }

    pub(crate) fn is_power_of_2(&self) -> bool {
        self.power_of_2
    }

    pub(crate) fn gives_descale(&self) -> bool {
        self.gives_descale
    }

    /// A Hadamard transform, if there is one, with its seed.
    pub(crate) fn rotation(&self) -> Option<Option<u64>> {
        self.hadamard
    }
}

/// `bf16 x [1, 128, 8, 64], a scale per head`.
impl fmt::Display for QuantizeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape, of) = (self.dtype, self.shape(), self.scales.of());
        write!(f, "{dtype} x {shape:?}, a scale per {of}")?;
        let parts = [
            (self.power_of_2, ", powers of 2"),
            (self.gives_descale, ", given"),
            (self.hadamard.is_some(), ", Hadamard transform"),
        ];
        let mut parts = parts.iter().filter(|(is_there, _)| *is_there);
        parts.try_for_each(|(_, part)| f.write_str(part))
    }
}
