//! Dropout: weights that are dropped at random.

pub(crate) mod philox;

use super::{Number, Problem, ProblemBuilder};

/// Random numbers of a byte.
const BYTES: u32 = 256;

/// How many weights are dropped: see [`ProblemBuilder::dropout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dropout {
    kept: u32,
}

impl Dropout {
    /// From a probability, rounded to a multiple of 1/256, at least 1/256 and at most 255/256.
    pub(crate) fn of(p: f32) -> Dropout {
        let dropped = (p * BYTES as f32).round() as u32;
        Dropout {
            kept: BYTES - dropped.clamp(1, BYTES - 1),
        }
    }

    /// A weight is kept if its random byte is below this number.
    pub fn kept_bytes(self) -> u32 {
        self.kept
    }

    /// The probability that a weight is kept, a multiple of 1/256.
    pub fn keep_probability(self) -> f32 {
        self.kept as f32 / BYTES as f32
    }

    /// The probability that a weight is dropped, a multiple of 1/256.
    pub fn probability(self) -> f32 {
        1.0 - self.keep_probability()
    }
}

impl ProblemBuilder {
    /// Drops weights of the softmax at random, each with probability `p`, and divides the others by the probability of being kept:
    ///
    /// ```text
    /// o = (mask ∘ softmax(s)) v / keep
    /// ```
    ///
    /// `p` is at least 0, which drops none, and less than 1. It is rounded to a multiple of 1/256, at least 1/256 and at most 255/256, and `keep` is
    /// 1 minus the rounded value ([`Dropout::keep_probability`]). lse is that of all weights. Give the backward pass the same seed and offset: it
    /// then drops the same weights ([`Inputs::dropout_rng`](crate::Inputs::dropout_rng)).
    ///
    /// Whether a weight is dropped depends only on seed, offset, batch entry (or packed sequence), query head, query and key, and not on the device,
    /// the algorithm or the pass. The random numbers are those of Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"),
    /// a byte for each weight;
    /// [`dropout_mask`](crate::dropout_mask) gives all of them. Every backend has it, with every mask, expressions, lengths, pages, sinks and
    /// grouped heads, but not with keys and values in 8 bits, nor with values that are columns of the keys.
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Outputs, Problem, Tensor, TensorMut, dropout_mask};
    ///
    /// // One query and four keys of equal scores, whose values are 1: o is the share of weights that were kept, divided by its average.
    /// let problem = Problem::builder(Dtype::F32).seqlen_q(1).seqlen_k(4).heads(1).head_dim(1).dropout(0.5).build()?;
    /// let (q, k, v) = ([0f32], [0f32; 4], [1f32; 4]);
    /// let inputs = Inputs::new(
    ///     &Tensor::bshd(&q, problem.shape_q())?,
    ///     &Tensor::bshd(&k, problem.shape_k())?,
    ///     &Tensor::bshd(&v, problem.shape_v())?,
    /// );
    /// let (mut o, mut lse) = ([0f32], [0f32]);
    /// let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
    /// Attention::new(&Device::cpu(), problem)?.forward(&inputs.dropout_rng(7, 0), &mut outputs)?;
    /// let kept = dropout_mask(&problem, 7, 0)?.into_iter().filter(|&kept| kept).count();
    /// assert!((o[0] - kept as f32 / 4.0 / 0.5).abs() < 1e-6);
    /// assert!((lse[0] - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn dropout(self, p: f32) -> Self {
        self.with(|problem| problem.dropout = Number::of(p))
    }
}

impl Problem {
    /// The probability that was asked for; 0 without dropout.
    pub fn dropout_p(&self) -> f32 {
        self.dropout.get()
    }

    /// How many weights are dropped, if some are.
    pub fn dropout(&self) -> Option<Dropout> {
        let p = self.dropout_p();
        (p > 0.0).then(|| Dropout::of(p))
    }

    /// Sinks and dropout in words, if there are any: `, sinks, dropout 0.1015625`.
    pub(crate) fn sinks_and_dropout(&self) -> String {
        let sinks = if self.has_sinks() { ", sinks" } else { "" };
        let dropout = self.dropout().map_or(String::new(), |dropout| {
            format!(", dropout {}", dropout.probability())
        });
        sinks.to_owned() + &dropout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_rounded_but_not_to_none_or_all() {
        for (p, kept) in [
            (f32::MIN_POSITIVE, 255),
            (0.001, 255),
            (0.1, 230),
            (0.25, 192),
            (0.5, 128),
            (0.999, 1),
            (1.0 - f32::EPSILON / 2.0, 1),
        ] {
            let dropout = Dropout::of(p);
            assert_eq!(dropout.kept_bytes(), kept, "{p}");
            assert_eq!(dropout.keep_probability() * 256.0, kept as f32);
            assert_eq!(dropout.probability() + dropout.keep_probability(), 1.0);
        }
    }
}
