//! Memory of Burn's tensors, kept alive and passed to ferroflash as addresses. The only folder with `unsafe`.
//!
//! A backend implements how it lends its memory ([`Memory`]); the passes are written once, for all backends.
#![allow(unsafe_code)]

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "flex")]
mod flex;
#[cfg(any(feature = "flex", feature = "ndarray"))]
mod host;
#[cfg(feature = "ndarray")]
mod ndarray;

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};
use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::prepared::Layouts;
use ferroflash::raw::{Addresses, Call, Values};
use ferroflash::{Attention, Device, Layout, PlanCache, Queue};

#[cfg(feature = "cuda")]
pub(crate) use cuda::is_cuda;

use crate::check;
use crate::error::Error;

/// How many prepared calls are kept.
const N_PLANS: usize = 256;

/// The prepared calls of all devices.
static PLANS: LazyLock<PlanCache> = LazyLock::new(|| PlanCache::new(N_PLANS));

/// The constructor of a pass's call.
type Pass = fn(&Attention, &Layouts, &PlanCache) -> Result<Call, ferroflash::Error>;

/// The device, and its queue: none on the host.
pub(crate) struct Place {
    pub(crate) device: Device,
    queue: Option<Mutex<Queue>>,
}

/// An address, and what keeps the memory there in place.
type Lent<'a, B> = (u64, <B as Memory>::Hold<'a>);

/// A backend that lends its tensors' memory.
pub(crate) trait Memory: Backend {
    /// The types that q, k and v may have.
    const DTYPES: &'static [DType];
    /// Keeps memory in place in addition to a borrowed tensor.
    type Hold<'a>;
    /// A new tensor while it is written.
    type Room;

    /// The device of q, k and v.
    fn place(inputs: [&FloatTensor<Self>; 3]) -> Result<Arc<Place>, Error>;

    /// A tensor `[batch, heads, seqlen, head_dim]` to read: in place if its strides allow it, or a copy.
    fn read<'a>(
        argument: Argument,
        tensor: &'a FloatTensor<Self>,
    ) -> Result<(Lent<'a, Self>, Layout), Error>;

    /// A tensor to read as contiguous numbers: in place, or a copy.
    fn read_gapless<'a>(
        argument: Argument,
        tensor: &'a FloatTensor<Self>,
    ) -> Result<Lent<'a, Self>, Error>;

    /// New contiguous memory on the device of a tensor.
    fn room(beside: &FloatTensor<Self>, shape: Shape, dtype: DType) -> Self::Room;

    /// New memory, to write.
    fn write<'a>(argument: Argument, room: &'a mut Self::Room) -> Result<Lent<'a, Self>, Error>;

    /// The tensor that has been written, on the device of another.
    fn tensor(beside: &FloatTensor<Self>, room: Self::Room) -> FloatTensor<Self>;

    /// Waits for the backend's work on lent memory.
    fn wait(hold: &Self::Hold<'_>) -> Result<(), Error>;
}

/// Builder of a pass: addresses, layouts, and what keeps memory in place.
pub(crate) struct Run<'a, B: Memory> {
    addresses: Addresses,
    layouts: Layouts,
    held: Vec<B::Hold<'a>>,
    /// The type of q.
    dtype: DType,
}

impl<'a, B: Memory> Run<'a, B> {
    /// With q, k and v.
    pub(crate) fn new([q, k, v]: [&'a FloatTensor<B>; 3]) -> Result<Run<'a, B>, Error> {
        let mut run = Run {
            addresses: Addresses::default(),
            layouts: Layouts::contiguous(),
            held: Vec::new(),
            dtype: q.dtype(),
        };
        run.read(Argument::Q, q)?;
        run.read(Argument::K, k)?;
        run.read(Argument::V, v)?;
        Ok(run)
    }

    /// With a tensor `[batch, heads, seqlen, head_dim]` that is read, of q's type.
    pub(crate) fn read(
        &mut self,
        argument: Argument,
        tensor: &'a FloatTensor<B>,
    ) -> Result<(), Error> {
        check::same_dtype(argument, tensor, self.dtype)?;
        let (lent, layout) = B::read(argument, tensor)?;
        self.layouts = self.layouts.with(argument, layout);
        self.hold(argument, lent);
        Ok(())
    }

    /// With this many row statistics, f32, that are read.
    pub(crate) fn read_rows(
        &mut self,
        argument: Argument,
        tensor: &'a FloatTensor<B>,
        n_rows: usize,
    ) -> Result<(), Error> {
        check::dtype(argument, tensor, &[DType::F32])?;
        let (given, needed) = (tensor.shape().num_elements() as u64, n_rows as u64);
        if given != needed {
            let error = ProblemError::ElementCount {
                argument,
                given,
                needed,
            };
            return Err(error.into());
        }
        let lent = B::read_gapless(argument, tensor)?;
        self.hold(argument, lent);
        Ok(())
    }

    /// With a new tensor of this shape, `[batch, heads, seqlen, head_dim]`, that is written.
    pub(crate) fn write(
        &mut self,
        argument: Argument,
        room: &'a mut B::Room,
        shape: [usize; 4],
    ) -> Result<(), Error> {
        self.layouts = self.layouts.with(argument, Layout::bhsd(shape)?);
        self.write_rows(argument, room)
    }

    /// With new row statistics that are written.
    pub(crate) fn write_rows(
        &mut self,
        argument: Argument,
        room: &'a mut B::Room,
    ) -> Result<(), Error> {
        let lent = B::write(argument, room)?;
        self.hold(argument, lent);
        Ok(())
    }

    fn hold(&mut self, argument: Argument, (address, hold): Lent<'a, B>) {
        self.addresses.set(argument, address);
        self.held.push(hold);
    }

    /// Runs the pass of the problem of q, k and v, on their device; it is done when this returns.
    pub(crate) fn run(self, pass: Pass, attention: &Attention, place: &Place) -> Result<(), Error> {
        let call = pass(attention, &self.layouts, &PLANS)?;
        for hold in &self.held {
            B::wait(hold)?;
        }
        let mut queue = place.queue.as_ref().map(lock);
        // SAFETY: each address is that of a tensor of Burn's, which is borrowed or held for as long as `self`. Its
        // type, and the number of statistics, have been checked where it was lent; its shape and strides are those of
        // the call. Burn has written what is read, and writes no tensor that is borrowed or has a second owner; what is
        // written is new and borrowed exclusively. What has been enqueued is waited for below, even if not all of it
        // could be.
        let ran = unsafe { call.run(&self.addresses, &Values::default(), queue.as_deref_mut()) };
        let waited = queue.map_or(Ok(()), |mut queue| queue.synchronize());
        ran?;
        Ok(waited.map_err(ferroflash::Error::from)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
