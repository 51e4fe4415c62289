//! The Hadamard transform of rows.

use crate::error::{Argument, QuantizeError};
use crate::problem::quantize::QuantizeProblem;
use crate::quantize::Operand;

impl Operand {
    /// The rows of q or k times an orthogonal matrix, which spreads an outlier over the columns: the incoherent processing of FlashAttention-3
    /// ([arXiv 2407.08608](https://arxiv.org/abs/2407.08608), section 3.3). q and k with the same seed have the products that they had,
    /// so o and lse stay.
    ///
    /// The matrix is that of the Hadamard transform divided by √head_dim, and with a seed the columns are multiplied by random signs before it. `None` is
    /// the transform alone, which gathers a row of equal numbers in one column. If head_dim is no power of two, blocks as wide as its largest power-of-two
    /// divisor are transformed, each by itself: 64 columns of 192, 16 of 80, and of an odd head_dim only signs are left.
    ///
    /// v is refused: it has no partner in such a product, and o would have to be rotated back.
    ///
    /// ```
    /// use ferroflash::Tensor;
    /// use ferroflash::quantize::Operand;
    ///
    /// let (q, k) = ([100f32, 0.0, 1.0, 0.0], [0.5f32, 2.0, 1.0, 1.0]);
    /// let q = Operand::q(&Tensor::bshd(&q, [1, 1, 1, 4])?, 1)?.hadamard(None)?;
    /// let k = Operand::k(&Tensor::bshd(&k, [1, 1, 1, 4])?)?.hadamard(None)?;
    /// assert_eq!(q.values(), [50.5, 50.5, 49.5, 49.5]);
    /// let products = q.values().iter().zip(k.values()).map(|(q, k)| q * k);
    /// assert_eq!(products.sum::<f32>(), 51.0); // 100 · 0.5 + 1 · 1
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of v; a sum of two numbers is greater than f32 has: [`QuantizeError::NotFinite`].
    pub fn hadamard(mut self, seed: Option<u64>) -> Result<Operand, QuantizeError> {
        self.takes("hadamard", "q and k", &[Argument::Q, Argument::K])?;
        let head_dim = self.shape[3];
        if self.values.is_empty() {
            return Ok(self);
        }
        let rotation = Rotation::new(seed, head_dim);
        for row in self.values.chunks_exact_mut(head_dim) {
            rotation.rotate(row);
        }
        self.finite()
    }
}

/// The matrix of a seed.
pub(crate) struct Rotation {
    /// Columns of a block.
    width: usize,
    /// Of each column: −1 or 1.
    signs: Vec<f32>,
}

impl Rotation {
    /// Of a problem that has one.
    pub(crate) fn of(problem: &QuantizeProblem) -> Option<Rotation> {
        let [.., head_dim] = problem.sizes();
        problem.rotation().map(|seed| Rotation::new(seed, head_dim))
    }

    pub(crate) fn new(seed: Option<u64>, head_dim: usize) -> Rotation {
        Rotation {
            width: 1 << head_dim.trailing_zeros(),
            signs: match seed {
                Some(seed) => signs(seed, head_dim),
                None => vec![1.0; head_dim],
            },
        }
    }

    /// Multiplies a row by it.
    pub(crate) fn rotate(&self, row: &mut [f32]) {
        row.iter_mut()
            .zip(&self.signs)
            .for_each(|(x, sign)| *x *= sign);
        for block in row.chunks_exact_mut(self.width) {
            transform(block);
            block.iter_mut().for_each(|x| *x *= self.unit());
        }
    }

    /// Columns of a block: a power of 2.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// 1 / √width.
    pub(crate) fn unit(&self) -> f32 {
        (1.0 / (self.width as f64).sqrt()) as f32
    }

    /// A bit for each of the first 256 columns, the first in the lowest: whether it changes its sign.
    pub(crate) fn sign_bits(&self) -> [u64; 4] {
        let mut bits = [0; 4];
        for (at, _) in self
            .signs
            .iter()
            .take(256)
            .enumerate()
            .filter(|(_, sign)| **sign < 0.0)
        {
            bits[at / 64] |= 1 << (at % 64);
        }
        bits
    }
}

/// The Hadamard matrix times a block whose width is a power of two.
fn transform(block: &mut [f32]) {
    let mut half = 1;
    while half < block.len() {
        for pair in block.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// A sign for each column: bits of SplitMix64 (Steele, Lea and Flood 2014), which differ from seed to seed.
fn signs(seed: u64, head_dim: usize) -> Vec<f32> {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    let mut signs = Vec::with_capacity(head_dim.next_multiple_of(64));
    while signs.len() < head_dim {
        let word = word();
        let sign = |bit: u32| [1.0, -1.0][usize::from(word >> bit & 1 == 1)];
        signs.extend((0..u64::BITS).map(sign));
    }
    signs.truncate(head_dim);
    signs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first words of the reference implementation (Vigna, splitmix64.c) with state 0 begin with these bits.
    #[test]
    fn signs_are_the_bits_of_splitmix64() {
        let bits = |word: u64| (0..64).map(move |bit| [1.0, -1.0][(word >> bit & 1) as usize]);
        let known: Vec<f32> = bits(0xE220_A839_7B1D_CDAF)
            .chain(bits(0x6E78_9E6A_A1B9_65F4))
            .collect();
        assert_eq!(signs(0, 128), known);
        assert_eq!(signs(0, 80), known[..80]);
    }

    /// H has entries of ±1, the first row and column +1, and orthogonal rows.
    #[test]
    fn the_transform_is_the_hadamard_matrix() {
        let column = |at: usize| {
            let mut unit = [0f32; 8];
            unit[at] = 1.0;
            transform(&mut unit);
            unit
        };
        for i in 0..8 {
            for j in 0..8 {
                let sign = [1.0, -1.0][((i & j) as u32).count_ones() as usize % 2];
                assert_eq!(column(i)[j], sign);
            }
        }
    }
}
