//! The row statistics of a forward pass: kept when it has run, and returned by a separate node.

use candle_core::{Result, Shape};

use crate::call::Call;
use crate::error::elsewhere;
use crate::layout::tensor;
use crate::memory::{Place, Stored};
use crate::passes;

impl Call {
    /// o from q, k and v; lse is kept.
    pub(crate) fn forward<P: Place>(&self, inputs: [Stored<P>; 3]) -> Result<P::Storage> {
        let (o, lse) = passes::forward::<P>(self, inputs, true)?;
        if let Some(lse) = lse {
            self.keep_lse(tensor(P::wrap(lse), self.lse_shape()));
        }
        Ok(o)
    }

    /// The kept lse, on the device of q.
    pub(crate) fn lse_of<P: Place>(&self, q: &P::Storage) -> Result<(P::Storage, Shape)> {
        let lse = self.lse()?;
        let (storage, layout) = lse.storage_and_layout();
        match P::find(&storage) {
            Some(storage) => Ok((P::copy(storage, layout)?, lse.shape().clone())),
            None => Err(elsewhere("lse", lse, P::of(q)?.location()).into()),
        }
    }
}
