//! Which weights dropout keeps.

use ferroflash::Dtype;
use pyo3::prelude::*;

use crate::dlpack::Array;
use crate::error::to_py;

/// Which weights are kept, for this probability of being dropped, this seed and this offset: bool, of this shape,
/// `[batch, heads_q, seqlen_q, seqlen_k]`. Masked weights are included; packed sequences have the first rows and columns of their entries.
#[pyfunction]
pub(crate) fn dropout_mask(
    py: Python<'_>,
    shape: [usize; 4],
    dropout_p: f32,
    seed: u64,
    offset: u64,
) -> PyResult<Array> {
    let [batch, heads_q, seqlen_q, seqlen_k] = shape;
    let problem = ferroflash::Problem::builder(Dtype::F32)
        .batch(batch)
        .heads(heads_q)
        .seqlen_q(seqlen_q)
        .seqlen_k(seqlen_k)
        .head_dim(1)
        .dropout(dropout_p);
    py.detach(|| ferroflash::dropout_mask(&problem.build()?, seed, offset))
        .map(|kept| Array::of_truths(&kept, shape.to_vec()))
        .map_err(to_py)
}
