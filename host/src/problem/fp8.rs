//! Queries, keys and values in 8 bits.

use std::fmt;

use ferroflash_kernels::params::{SCALE_ROWS, ScaleStrides};

/// Queries, keys and values are 8-bit floating-point numbers of the format e4m3 (OCP 8-bit Floating Point Specification; `float8::F8E4M3`), and flash3 multiplies
/// both products in 8 bits (FlashAttention-3, section 3.3): S = Q Kᵀ, and P V, for which P is rounded to e4m3, too. Few queries run on flash2's decode kernel, which
/// divides keys and multiplies in 16 bits. The problem's type is that of o. The value
/// of an element of q is the element times a scale, from [`Inputs::q_descale`](crate::Inputs::q_descale); likewise for k and v.
///
/// [`Attention::backward`](crate::Attention::backward) takes q, k and v out of 8 bits first: what they stand for, rounded to the problem's type, which its products and
/// the gradients have. Gradients are those of these numbers. On a GPU any algorithm's backward pass runs behind it, so there is more of it than of the forward pass:
/// every compute capability from 8.0 on, and dropout aside every option.
///
/// lse is f32. The error is that of rounding to three bits of mantissa, of the inputs, which the caller rounds, and of P; a GPU's tensor cores also cut the sums
/// of products after 14 bits: see [`Fp8Sums`]. On a CPU P is not rounded, and sums are f32.
///
/// [`quantize`](crate::quantize) makes the numbers and the scales.
///
/// ```
/// use ferroflash::{Attention, Device, Dtype, Fp8, Inputs, Outputs, Problem, Tensor, TensorMut};
/// use float8::F8E4M3;
///
/// let problem = Problem::builder(Dtype::Bf16).seqlen_q(1).seqlen_k(2).fp8(Fp8::PerTensor).heads(1).head_dim(16).build()?;
/// // Both keys are alike; the values stand for 0.5 · 3 and 0.5 · 5.
/// let (q, k) = ([F8E4M3::from_f32(1.0); 16], [F8E4M3::from_f32(1.0); 32]);
/// let v: Vec<F8E4M3> = (0..32).map(|at| F8E4M3::from_f32(if at < 16 { 3.0 } else { 5.0 })).collect();
/// let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
/// let inputs = Inputs::new(&Tensor::bshd(&q, of_q)?, &Tensor::bshd(&k, of_k)?, &Tensor::bshd(&v, of_k)?)
///     .q_descale(&[1f32])
///     .k_descale(&[1f32])
///     .v_descale(&[0.5f32]);
/// let (mut o, mut lse) = ([half::bf16::ZERO; 16], [0f32]);
/// let attention = Attention::new(&Device::cpu(), problem)?;
/// attention.forward(&inputs, &mut Outputs::new(TensorMut::bshd(&mut o, of_q)?, &mut lse))?;
/// assert_eq!(o[0].to_f32(), 2.0);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// One scale for each of q, k and v: f32 `[1]`.
    PerTensor,
    /// Scales are f32 `[batch, heads_k]`, for each sequence and head of keys. Query heads that share a head of keys have one scale.
    PerHead,
    /// Scales are f32 `[batch, heads_k, blocks]`: the rows of a sequence are divided into blocks of [`Fp8::BLOCK`], counted from its first row on, and each has one.
    /// `blocks` is seqlen_q / [`Fp8::BLOCK`], rounded up, for q, and the same of seqlen_k for k and v; at least 1. seqlen_q and seqlen_k are the problem's, so a
    /// shorter sequence leaves its last scales unused. In pages rows are counted through the sequence, too.
    ///
    /// A great number then takes range from its block alone. On a GPU flash3's forward pass has [`Fp8Sums::TwoLevels`]: a block of
    /// values has its scale where its sum is added to o.
    PerBlock,
}

impl Fp8 {
    /// Rows of a block of [`Fp8::PerBlock`].
    pub const BLOCK: usize = SCALE_ROWS as usize;

    /// What has a scale of its own, in words.
    pub(crate) fn of(self) -> &'static str {
        match self {
            Fp8::PerTensor => "tensor",
            Fp8::PerHead => "head",
            Fp8::PerBlock => "block",
        }
    }

    /// Whether a number can be a scale: finite, greater than 0.
    pub(crate) fn is_scale(given: f32) -> bool {
        given > 0.0 && given.is_finite()
    }
}

/// `q, k and v in e4m3 with a scale per head`.
impl fmt::Display for Fp8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q, k and v in e4m3 with a scale per {}", self.of())
    }
}

/// Where the scales of a tensor lie: of q, or of k and v.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScaleLayout {
    of: Fp8,
    heads_k: usize,
    /// Blocks of a sequence and head.
    blocks: usize,
}

impl ScaleLayout {
    /// Of sequences of at most `seqlen` rows.
    pub(crate) fn new(of: Fp8, heads_k: usize, seqlen: usize) -> ScaleLayout {
        let blocks = match of {
            Fp8::PerTensor | Fp8::PerHead => 1,
            Fp8::PerBlock => seqlen.div_ceil(Fp8::BLOCK).max(1),
        };
        ScaleLayout {
            of,
            heads_k,
            blocks,
        }
    }

    /// Scales of so many sequences. Saturates.
    pub(crate) fn n_scales(self, sequences: usize) -> usize {
        match self.of {
            Fp8::PerTensor => 1,
            Fp8::PerHead | Fp8::PerBlock => sequences
                .saturating_mul(self.heads_k)
                .saturating_mul(self.blocks),
        }
    }

    /// The place of the scale of a sequence's row, of a head of keys.
    pub(crate) fn place(self, sequence: usize, head_k: usize, row: usize) -> usize {
        match self.of {
            Fp8::PerTensor => 0,
            Fp8::PerHead | Fp8::PerBlock => {
                (sequence * self.heads_k + head_k) * self.blocks + row / self.rows()
            }
        }
    }

    /// Rows of a sequence that share a scale.
    pub(crate) fn rows(self) -> usize {
        match self.of {
            Fp8::PerTensor | Fp8::PerHead => usize::MAX,
            Fp8::PerBlock => Fp8::BLOCK,
        }
    }

    /// As kernels have it.
    pub(crate) fn strides(self) -> ScaleStrides {
        match self.of {
            Fp8::PerTensor => ScaleStrides::default(),
            Fp8::PerHead | Fp8::PerBlock => ScaleStrides {
                batch: (self.heads_k * self.blocks) as u32,
                head: self.blocks as u32,
                block: u32::from(self.of == Fp8::PerBlock),
            },
        }
    }
}

/// How P V is summed over the keys in 8 bits on a GPU. Tensor cores of Hopper sum products of 8-bit numbers with 14 bits, and cut what is below: a sum over
/// thousands of keys whose values have a mean comes out too small, by 2 % over 2 thousand keys, 10 % over 8 thousand, 18 % over 16 thousand
/// (docs/src/fp8.md). A CPU sums in f32, and so does flash2's decode kernel. Set by [`ProblemBuilder::fp8_sums`](crate::ProblemBuilder::fp8_sums); the rest is as in the example of [`Fp8`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fp8Sums {
    /// A block of keys has a sum of its own, which is added to o in f32: 0.1 % too small, however many keys there are. The default, and the only one with
    /// [`Fp8::PerBlock`].
    #[default]
    TwoLevels,
    /// One sum over all keys, as cuDNN and FlashAttention-3 have it, where that is the faster one: above head_dim 128 from 1024 queries on, under a mask from 2048, and
    /// then at 128, too. Elsewhere sums have two levels. For values whose columns have no mean.
    OneLevel,
}

/// `sums of two levels`.
impl fmt::Display for Fp8Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fp8Sums::TwoLevels => "sums of two levels",
            Fp8Sums::OneLevel => "sums of one level",
        })
    }
}
