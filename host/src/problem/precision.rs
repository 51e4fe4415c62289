//! How exact products of f32 tensors are.

use super::{Problem, ProblemBuilder};
pub use crate::terms::Precision;

impl ProblemBuilder {
    /// How exact products of f32 tensors are on a GPU; [`Precision::Tensor`] unless set.
    ///
    /// ```
    /// use ferroflash::{Dtype, Precision, Problem};
    ///
    /// let problem = Problem::builder(Dtype::F32)
    ///     .seqlen(1024)
    ///     .heads(8)
    ///     .head_dim(64)
    ///     .precision(Precision::Full)
    ///     .build()?;
    /// assert_eq!(problem.precision(), Precision::Full);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn precision(self, precision: Precision) -> Self {
        self.with(|problem| problem.precision = precision)
    }
}

impl Problem {
    /// How exact products of f32 tensors are on a GPU: see [`ProblemBuilder::precision`].
    pub fn precision(&self) -> Precision {
        self.precision
    }
}
