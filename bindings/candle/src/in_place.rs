//! An append in the memory of its caches: candle lends that of one tensor at a time, so one operation runs inside another.

use std::cell::{Cell, OnceCell};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage};

use crate::append::Appended;
use crate::append_call::AppendCall;
use crate::layout::tensor;
#[cfg(feature = "cuda")]
use crate::memory::Cuda;
use crate::memory::Host;
use crate::passes;

/// The results of an append outside the cache.
pub(crate) struct Written {
    /// The rotated queries; contiguous.
    pub(crate) q: Option<Storage>,
    /// How many rows each sequence has now.
    pub(crate) seqused_k: Storage,
}

/// Appends, in the memory of the caches.
pub(crate) fn append(call: AppendCall) -> Result<Appended> {
    let written = OnceCell::new();
    call.k_cache.inplace_op1(&Keys {
        call: &call,
        written: &written,
    })?;
    // Set by `Values`, or an error has come back.
    let written = written.into_inner().ok_or(candle_core::Error::UnwrapNone)?;
    let q = match (written.q, &call.q) {
        (Some(rotated), Some(q)) => Some(tensor(rotated, q.shape())),
        _ => None,
    };
    let seqused_k = tensor(written.seqused_k, call.problem.batch());
    Ok(Appended { q, seqused_k })
}

/// The first half of an append: candle lends the memory of one tensor to each in-place operation. This one has the memory of the cache's keys, and
/// runs another, which has that of its values.
struct Keys<'a> {
    call: &'a AppendCall,
    written: &'a OnceCell<Written>,
}

/// The second half. `S` is the memory of the keys; `None` when it has run.
struct Values<'a, S> {
    call: &'a AppendCall,
    written: &'a OnceCell<Written>,
    keys: Cell<Option<(&'a mut S, &'a Layout)>>,
}

impl Keys<'_> {
    fn with_values<'a, S>(&'a self, keys: &'a mut S, layout: &'a Layout) -> Values<'a, S> {
        Values {
            call: self.call,
            written: self.written,
            keys: Cell::new(Some((keys, layout))),
        }
    }
}

impl<'a, S> Values<'a, S> {
    /// The memory of the keys, which is lent once.
    fn keys(&self) -> Result<(&'a mut S, &'a Layout)> {
        self.keys.take().ok_or(candle_core::Error::UnwrapNone)
    }

    fn keep(&self, written: Written) {
        // Runs once, by `append`.
        let _ = self.written.set(written);
    }
}

/// Both halves' name in candle's errors.
const NAME: &str = "ferroflash-append";

impl InplaceOp1 for Keys<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, keys: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let values = self.with_values(keys, layout);
        self.call.v_cache.inplace_op1(&values)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, keys: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let values = self.with_values(keys, layout);
        self.call.v_cache.inplace_op1(&values)
    }
}

impl InplaceOp1 for Values<'_, CpuStorage> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, values: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let caches = [self.keys()?, (values, layout)];
        self.keep(passes::append::<Host>(self.call, caches)?);
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl InplaceOp1 for Values<'_, CudaStorage> {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Unreachable: the keys are on a GPU, so the values are.
    fn cpu_fwd(&self, _values: &mut CpuStorage, _layout: &Layout) -> Result<()> {
        Err(candle_core::Error::UnwrapNone)
    }

    fn cuda_fwd(&self, values: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let caches = [self.keys()?, (values, layout)];
        self.keep(passes::append::<Cuda>(self.call, caches)?);
        Ok(())
    }
}
