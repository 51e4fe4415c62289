//! Memory of candle's tensors, kept alive and passed to ferroflash as addresses. The only folder with `unsafe`.
//!
//! A pass or an append is written once, for every [`Place`] of memory: the host, and a CUDA device.
#![allow(unsafe_code)]

#[cfg(feature = "cuda")]
mod cuda;
mod host;

use candle_core::{DType, DeviceLocation, Layout, Result, Storage, StorageRef, Tensor};
use ferroflash::Device;
use ferroflash::arguments::Argument;
use ferroflash::raw::{Addresses, Call, ScoreTensor, Values};

#[cfg(feature = "cuda")]
pub(crate) use cuda::Cuda;
pub(crate) use host::Host;

use crate::error::{Error, elsewhere};
use crate::given::{Given, Source};

/// A tensor as candle passes it to an operation.
pub(crate) type Stored<'a, P> = (&'a <P as Place>::Storage, &'a Layout);

/// The place of a call's memory, and the device that computes there.
pub(crate) trait Place: Sized {
    /// The memory of a tensor.
    type Storage;
    /// Orders the work of other streams with the use of a tensor's memory.
    type Order<'a>
    where
        Self: 'a;

    /// The place of this memory.
    fn of(storage: &Self::Storage) -> Result<Self>;

    /// ferroflash's device.
    fn device(&self) -> &Device;

    /// candle's device.
    fn location(&self) -> DeviceLocation;

    /// The memory of a tensor, if it is of this kind.
    fn find(storage: &Storage) -> Option<&Self::Storage>;

    /// The same as the storage of candle's tensors.
    fn wrap(storage: Self::Storage) -> Storage;

    /// New uninitialised memory of this many elements: a pass writes all of them, or fails and they are dropped.
    fn room(&self, dtype: DType, n_elems: usize) -> Result<Self::Storage>;

    /// The address of an element, to read from there on.
    fn read<'a>(
        &'a self,
        storage: &'a Self::Storage,
        first: usize,
    ) -> Result<(u64, Self::Order<'a>)>;

    /// The address of an element, to write from there on.
    fn write<'a>(
        &'a self,
        storage: &'a mut Self::Storage,
        first: usize,
    ) -> Result<(u64, Self::Order<'a>)>;

    /// A copy of a tensor's memory.
    fn copy(storage: &Self::Storage, layout: &Layout) -> Result<Self::Storage>;

    /// Computes a call, or enqueues it on candle's stream.
    ///
    /// # Safety
    /// As for [`Call::run`], until the [`Place::Order`] of the memory at the addresses is dropped.
    unsafe fn run(&self, call: &Call, addresses: &Addresses, values: &Values) -> Result<()>;
}

/// Guards of the tensors that a call reads in addition to those that candle lends it: one guard per storage, as two arguments may be one tensor.
pub(crate) struct Held<'a> {
    guards: Vec<Guard<'a>>,
    /// The index of the guard of each argument.
    arguments: Vec<(Argument, usize)>,
    /// The index of the guard of each name of an expression, and its strides.
    named: Vec<(&'static str, usize, Vec<i64>)>,
    given: &'a Given,
}

/// A tensor whose memory is neither freed nor written during the guard's lifetime.
struct Guard<'a> {
    /// Its name.
    name: &'static str,
    tensor: &'a Tensor,
    layout: &'a Layout,
    storage: StorageRef<'a>,
}

impl<'a> Held<'a> {
    /// The arguments of a call, and these tensors.
    pub(crate) fn of(given: &'a Given, others: &[(Argument, &'a Tensor)]) -> Held<'a> {
        let mut held = Held {
            guards: Vec::new(),
            arguments: Vec::new(),
            named: Vec::new(),
            given,
        };
        let read = given
            .read
            .iter()
            .filter_map(|(argument, source)| match source {
                // Nothing of candle's.
                Source::Host(_) => None,
                Source::Tensor(tensor) => Some((*argument, tensor)),
            });
        for (argument, tensor) in read.chain(others.iter().copied()) {
            let guard = held.guard(argument.name(), tensor);
            held.arguments.push((argument, guard));
        }
        for (name, tensor) in given.edit.tensors() {
            let guard = held.guard(name, tensor);
            let strides = tensor.stride().iter();
            // No tensor in memory has strides that do not fit.
            let strides = strides.map(|&stride| i64::try_from(stride).unwrap_or(i64::MAX));
            held.named.push((name, guard, strides.collect()));
        }
        held
    }

    /// The index of the guard of this tensor.
    fn guard(&mut self, name: &'static str, tensor: &'a Tensor) -> usize {
        let mut guards = self.guards.iter();
        let known = guards.position(|guard| guard.tensor.id() == tensor.id());
        known.unwrap_or_else(|| {
            let (storage, layout) = tensor.storage_and_layout();
            self.guards.push(Guard {
                name,
                tensor,
                layout,
                storage,
            });
            self.guards.len() - 1
        })
    }
}

/// Builder of a run: addresses, and the guards that order them.
pub(crate) struct Run<'a, P: Place> {
    place: &'a P,
    given: &'a Given,
    addresses: Addresses,
    tensors: Vec<ScoreTensor<'a>>,
    gradients: Vec<(&'static str, u64)>,
    orders: Vec<P::Order<'a>>,
}

impl<'a, P: Place> Run<'a, P> {
    /// With all guarded tensors.
    pub(crate) fn new(place: &'a P, held: &'a Held<'a>) -> Result<Run<'a, P>> {
        let mut run = Run {
            place,
            given: held.given,
            addresses: Addresses::default(),
            tensors: Vec::new(),
            gradients: Vec::new(),
            orders: Vec::new(),
        };
        let guards = held.guards.iter().map(|guard| {
            let here = P::find(&guard.storage);
            let here = here.ok_or_else(|| elsewhere(guard.name, guard.tensor, place.location()))?;
            run.order(here, guard.layout)
        });
        let addresses = guards.collect::<Result<Vec<u64>>>()?;
        for (argument, source) in &held.given.read {
            if let Source::Host(numbers) = source {
                let address = numbers.as_ptr().expose_provenance() as u64;
                run.addresses.set(*argument, address);
            }
        }
        for &(argument, guard) in &held.arguments {
            run.addresses.set(argument, addresses[guard]);
        }
        for (name, guard, strides) in &held.named {
            run.tensors.push(ScoreTensor {
                name,
                address: addresses[*guard],
                shape: held.guards[*guard].layout.dims(),
                strides,
            });
        }
        Ok(run)
    }

    fn order(&mut self, storage: &'a P::Storage, layout: &Layout) -> Result<u64> {
        let (address, order) = self.place.read(storage, layout.start_offset())?;
        self.orders.push(order);
        Ok(address)
    }

    /// With an argument that is read.
    pub(crate) fn read(
        &mut self,
        argument: Argument,
        (storage, layout): Stored<'a, P>,
    ) -> Result<()> {
        let address = self.order(storage, layout)?;
        self.addresses.set(argument, address);
        Ok(())
    }

    /// With an argument that is written, from this element on.
    pub(crate) fn write(
        &mut self,
        argument: Argument,
        storage: &'a mut P::Storage,
        first: usize,
    ) -> Result<()> {
        let (address, order) = self.place.write(storage, first)?;
        self.addresses.set(argument, address);
        self.orders.push(order);
        Ok(())
    }

    /// With the gradient of a tensor that the score names.
    pub(crate) fn write_gradient(
        &mut self,
        name: &'static str,
        storage: &'a mut P::Storage,
    ) -> Result<()> {
        let (address, order) = self.place.write(storage, 0)?;
        self.gradients.push((name, address));
        self.orders.push(order);
        Ok(())
    }

    /// Runs it.
    pub(crate) fn run(self, call: &Call) -> Result<()> {
        let params = self.given.edit.params();
        let values = Values {
            dropout: self.given.rng,
            score_params: &params,
            score_tensors: &self.tensors,
            d_score_tensors: &self.gradients,
        };
        // SAFETY: each address is that of a tensor of candle's, which is borrowed for as long as `self`; that it has the call's layout
        // and type, and lies on the call's device, has been checked where the call was made. What is written is borrowed exclusively.
        // Candle frees memory in the order of its stream, behind the call.
        unsafe { self.place.run(call, &self.addresses, &values) }
    }
}

/// Converts ferroflash's error to candle's.
fn refused(error: ferroflash::Error) -> candle_core::Error {
    Error::from(error).into()
}
