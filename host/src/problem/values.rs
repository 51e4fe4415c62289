//! The columns of v, and values that are columns of the keys.

use super::{Problem, ProblemBuilder};

/// Where the values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Values {
    /// In a separate tensor.
    Given,
    /// In the first columns of the keys.
    InKeys,
}

impl ProblemBuilder {
    /// Columns of v and o, which differ from those of q and k in multi-head latent attention and in some linear layers; head_dim unless
    /// set.
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Outputs, Problem, Tensor, TensorMut};
    ///
    /// let problem = Problem::builder(Dtype::F32)
    ///     .seqlen_q(1)
    ///     .seqlen_k(2)
    ///     .heads(1)
    ///     .head_dim(1)
    ///     .head_dim_v(3)
    ///     .build()?;
    /// assert_eq!((problem.shape_k(), problem.shape_v()), ([1, 2, 1, 1], [1, 2, 1, 3]));
    /// // Both keys are alike.
    /// let (q, k, v) = ([1f32], [0f32; 2], [1f32, 2., 3., 3., 4., 5.]);
    /// let inputs = Inputs::new(
    ///     &Tensor::bshd(&q, problem.shape_q())?,
    ///     &Tensor::bshd(&k, problem.shape_k())?,
    ///     &Tensor::bshd(&v, problem.shape_v())?,
    /// );
    /// let (mut o, mut lse) = ([0f32; 3], [0f32]);
    /// let o_mut = TensorMut::bshd(&mut o, problem.shape_o())?;
    /// Attention::new(&Device::cpu(), problem)?.forward(&inputs, &mut Outputs::new(o_mut, &mut lse))?;
    /// assert!(o.iter().zip([2., 3., 4.]).all(|(o, right)| (o - right).abs() < 1e-6));
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn head_dim_v(self, head_dim_v: usize) -> Self {
        self.with(|problem| problem.head_dim_v = Some(head_dim_v))
    }

    /// The value of a key is the first [`head_dim_v`](ProblemBuilder::head_dim_v) columns of its row, and no v is given:
    /// [`Inputs::latent`](crate::Inputs::latent). Only in the forward pass, and not with keys in 8 bits.
    ///
    /// This is the absorbed form of multi-head latent attention (DeepSeek-V2, section 2.1), which is used for decode: one KV head, whose rows are
    /// the 512 columns of the latent vector and the 64 that carry the position.
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Outputs, Problem, Tensor, TensorMut};
    ///
    /// let problem = Problem::builder(Dtype::F32)
    ///     .seqlen_q(1)
    ///     .seqlen_k(100)
    ///     .heads_q(16)
    ///     .heads_k(1)
    ///     .head_dim(576)
    ///     .head_dim_v(512)
    ///     .values_in_keys()
    ///     // Of the heads before absorption: 128 columns, and 64 that carry the position.
    ///     .softmax_scale(1.0 / 192f32.sqrt())
    ///     .build()?;
    /// let (q, cache) = (vec![0.5f32; 16 * 576], vec![1f32; 100 * 576]);
    /// let inputs =
    ///     Inputs::latent(&Tensor::bshd(&q, problem.shape_q())?, &Tensor::bshd(&cache, problem.shape_k())?);
    /// let (mut o, mut lse) = (vec![0f32; 16 * 512], [0f32; 16]);
    /// let o_mut = TensorMut::bshd(&mut o, problem.shape_o())?;
    /// Attention::new(&Device::cpu(), problem)?.forward(&inputs, &mut Outputs::new(o_mut, &mut lse))?;
    /// assert!(o.iter().all(|o| (o - 1.0).abs() < 1e-5));
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn values_in_keys(self) -> Self {
        self.with(|problem| problem.values = Values::InKeys)
    }
}

impl Problem {
    /// Columns of v and o.
    pub fn head_dim_v(&self) -> usize {
        self.head_dim_v.unwrap_or(self.head_dim)
    }

    /// Whether the value of a key is the first columns of its row: see [`ProblemBuilder::values_in_keys`].
    pub fn values_in_keys(&self) -> bool {
        self.values == Values::InKeys
    }

    /// Columns of a key and of its value that are read.
    pub(crate) fn kv_columns(&self) -> usize {
        match self.values {
            Values::Given => self.head_dim + self.head_dim_v(),
            Values::InKeys => self.head_dim,
        }
    }
}
