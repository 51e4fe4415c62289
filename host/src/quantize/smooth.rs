//! Keys without their mean, and lse with it.

use crate::error::{Argument, QuantizeError};
use crate::quantize::Operand;

/// The mean of the keys of each batch entry and head, f32 `[batch, heads_k, head_dim]`, which [`Operand::smooth`] has subtracted.
#[derive(Clone, Debug, PartialEq)]
pub struct KMean {
    /// `[batch, heads_k, head_dim]`.
    shape: [usize; 3],
    values: Vec<f32>,
}

impl Operand {
    /// Keys from which the mean over all keys of their batch entry and head is subtracted, and that mean: the smoothing of SageAttention
    /// ([arXiv 2410.02367](https://arxiv.org/abs/2410.02367)). Keys often have a bias that is large beside their differences, and takes up e4m3's range.
    ///
    /// All scores of a row become smaller by `softmax_scale · q · mean`. The weights of a row are what they were, so o stays. lse becomes smaller by the same, and
    /// [`KMean::correct_lse`] adds it again.
    ///
    /// That is so of scores that nothing but a mask changes: with an expression of the scores, or with sinks, o is another.
    ///
    /// ```
    /// use ferroflash::Tensor;
    /// use ferroflash::quantize::Operand;
    ///
    /// // Three keys of two columns.
    /// let k = [10f32, 1.0, 11.0, 2.0, 12.0, 0.0];
    /// let (k, mean) = Operand::k(&Tensor::bshd(&k, [1, 3, 1, 2])?)?.smooth()?;
    /// assert_eq!(mean.values(), [11.0, 1.0]);
    /// assert_eq!(k.values(), [-1.0, 0.0, 0.0, 1.0, 1.0, -1.0]);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of q or v; a difference is greater than f32 has: [`QuantizeError::NotFinite`].
    pub fn smooth(mut self) -> Result<(Operand, KMean), QuantizeError> {
        self.takes("smooth", "k", &[Argument::K])?;
        let [batch, seqlen, _, head_dim] = self.shape;
        let places: Vec<usize> = self.rows().map(|(row, _)| self.head_k_of(row)).collect();
        let mut sums = vec![0f64; batch * self.heads_k * head_dim];
        for ((_, x), place) in self.rows().zip(&places) {
            let sums = &mut sums[place * head_dim..][..head_dim];
            sums.iter_mut()
                .zip(x)
                .for_each(|(sum, &x)| *sum += f64::from(x));
        }
        let mean = |sum: &f64| (sum / seqlen.max(1) as f64) as f32;
        let values: Vec<f32> = sums.iter().map(mean).collect();
        for (x, place) in self.values.chunks_exact_mut(head_dim.max(1)).zip(&places) {
            let mean = &values[place * head_dim..][..head_dim];
            x.iter_mut().zip(mean).for_each(|(x, mean)| *x -= mean);
        }
        let shape = [batch, self.heads_k, head_dim];
        Ok((self.finite()?, KMean { shape, values }))
    }
}

impl KMean {
    /// `[batch, heads_k, head_dim]`; see [`KMean`].
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// All numbers, in the order of [`KMean::shape`].
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Makes lse over smoothed keys that over the keys as they were: adds `softmax_scale · q · mean` to each row. lse is `[batch, heads_q, seqlen_q]`;
    /// softmax_scale is that of the call ([`Problem::scale`](crate::Problem::scale)). q is what the call had before it was rounded, and rotated if k was
    /// rotated before [`Operand::smooth`]. A row that sees no key keeps −∞.
    ///
    /// # Errors
    /// q has another batch, another head_dim or another heads_k; lse has another number of elements.
    ///
    /// ```
    /// use ferroflash::Tensor;
    /// use ferroflash::quantize::Operand;
    ///
    /// // One query, and two keys: scores of 2 and 4, and of −1 and 1 after smoothing.
    /// let q = Operand::q(&Tensor::bshd(&[1f32], [1, 1, 1, 1])?, 1)?;
    /// let (_, mean) = Operand::k(&Tensor::bshd(&[2f32, 4.0], [1, 2, 1, 1])?)?.smooth()?;
    /// let mut lse = [(1f32.exp() + (-1f32).exp()).ln()];
    /// mean.correct_lse(&mut lse, &q, 1.0)?;
    /// assert!((lse[0] - (2f32.exp() + 4f32.exp()).ln()).abs() < 1e-6);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn correct_lse(
        &self,
        lse: &mut [f32],
        q: &Operand,
        softmax_scale: f32,
    ) -> Result<(), QuantizeError> {
        let [batch, seqlen, heads, head_dim] = q.shape;
        let (given, needed) = ([batch, q.heads_k, head_dim], self.shape);
        if given != needed {
            return Err(QuantizeError::MeanShape { given, needed });
        }
        let (given, needed) = (lse.len(), batch * seqlen * heads);
        if given != needed {
            return Err(QuantizeError::LseCount { given, needed });
        }
        for (row, x) in q.rows() {
            let mean = &self.values[q.head_k_of(row) * head_dim..][..head_dim];
            let products = x.iter().zip(mean);
            let product: f64 = products.map(|(&x, &m)| f64::from(x) * f64::from(m)).sum();
            let (entry, query, head) = (row / heads / seqlen, row / heads % seqlen, row % heads);
            let lse = &mut lse[(entry * heads + head) * seqlen + query];
            *lse = (f64::from(*lse) + f64::from(softmax_scale) * product) as f32;
        }
        Ok(())
    }
}
