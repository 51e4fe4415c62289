//! The layer that bindings call: a pass or an operation on addresses, each under the name of its [`Argument`].
//!
//! A framework's tensors are addresses, shapes and strides; the framework's own reference counts keep them alive. The safe calls have a type for
//! each set of arguments ([`Inputs`](crate::Inputs), [`Outputs`](crate::Outputs), …). Here they are a list, so that a binding passes its arguments
//! on in a loop, and a new input is in every binding at once. Names, types and shapes of arguments come from the table by which the safe calls are
//! checked ([`Call::needs`]); strides, and which optional arguments are given, come from [`Layouts`].
//!
//! ```
//! use ferroflash::arguments::Argument;
//! use ferroflash::prepared::Layouts;
//! use ferroflash::raw::{Addresses, Call, Values};
//! use ferroflash::{Attention, Device, Dtype, PlanCache, Problem};
//!
//! let problem = Problem::builder(Dtype::F32).seqlen(2).heads(1).head_dim(4).build()?;
//! let attention = Attention::new(&Device::cpu(), problem)?;
//! let call = Call::forward(&attention, &Layouts::contiguous().without(Argument::Lse), &PlanCache::new(8))?;
//!
//! let (q, k, v, mut o) = ([0f32; 8], [1f32; 8], [2f32; 8], [0f32; 8]);
//! let addresses = Addresses::default()
//!     .with(Argument::Q, q.as_ptr().expose_provenance() as u64)
//!     .with(Argument::K, k.as_ptr().expose_provenance() as u64)
//!     .with(Argument::V, v.as_ptr().expose_provenance() as u64)
//!     .with(Argument::O, o.as_mut_ptr().expose_provenance() as u64);
//! // SAFETY: each address has eight f32, and nothing else uses those of o.
//! unsafe { call.run(&addresses, &Values::default(), None)? };
//! assert_eq!(o, v);
//! # Ok::<(), ferroflash::Error>(())
//! ```
#![allow(unsafe_code)]

use std::slice;
use std::sync::Arc;

use crate::append::Append;
use crate::arguments::{
    Access, Argument, Arguments, ByArgument, Given, Need, Operand, Operands, Operation,
    ScoreGradients, ScoreInputs, need,
};
use crate::attention::Attention;
use crate::backend::cuda::Queue;
use crate::cache::PlanCache;
use crate::device::Device;
use crate::dtype::{ScalarType, of_named_type, sealed::Sealed};
use crate::error::{Error, PlanError, ProblemError, ScoreError};
use crate::fp8::Quantize;
use crate::merge::Merge;
use crate::plan::workspace::ALIGNMENT_BYTES;
use crate::prepared::{Enqueue, Layouts};
use crate::problem::Problem;
use crate::rotary::Direction;
use crate::rotate::Rotate;
use crate::tensor::{
    DeviceSlice, DeviceSliceMut, Location, Memory, MemoryMut, ReadTensor, Tensor, TensorMut,
    Vector, VectorMut,
};
use crate::validate::{Pass, unplaced};
use ferroflash_expression::ParamValue;

/// A pass or an operation on a device: planned, and run on addresses.
///
/// On a GPU a run enqueues and returns; elsewhere it computes.
///
/// The [module](crate::raw) has an example.
#[derive(Clone, Debug)]
pub struct Call {
    work: Work,
    /// The arguments that calls give, as [`Layouts`] say, without addresses.
    arguments: Arguments,
    /// The table's entries for all arguments that calls may give.
    needs: Arc<ByArgument<Option<Need>>>,
    /// On a GPU.
    prepared: Option<Arc<dyn Enqueue>>,
}

/// The operation and its device.
#[derive(Clone, Debug)]
enum Work {
    Attention(Attention, Pass),
    Append(Append),
    Rotate(Rotate, Direction),
    Merge(Merge),
    Quantize(Quantize),
}

/// The addresses of a run's arguments, by name. An argument that is not given has no address; an empty one may have any.
///
/// The [module](crate::raw) has an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses(ByArgument<Option<u64>>);

/// Inputs of a run that are given by value, or by a name that an expression uses.
///
/// The [module](crate::raw) has an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values<'a> {
    /// Seed and offset of dropout, unless they are in memory ([`Argument::DropoutState`]).
    pub dropout: Option<[u64; 2]>,
    /// Parameters that the problem's expressions name.
    pub score_params: &'a [(&'a str, ParamValue)],
    /// Tensors that the problem's expressions name.
    pub score_tensors: &'a [ScoreTensor<'a>],
    /// Outputs for the gradients of such tensors: contiguous, of the tensor's type, in the shape of [`Problem::score_gradient_shape`].
    pub d_score_tensors: &'a [(&'a str, u64)],
}

/// A tensor that an expression reads. The expression says its type.
///
/// The [module](crate::raw) has an example.
#[derive(Clone, Copy, Debug)]
pub struct ScoreTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Address of its first element.
    pub address: u64,
    /// The shape.
    pub shape: &'a [usize],
    /// Strides, in elements.
    pub strides: &'a [i64],
}

impl Addresses {
    /// With the address of this argument.
    #[must_use]
    pub fn with(mut self, argument: Argument, address: u64) -> Addresses {
        self.set(argument, address);
        self
    }

    /// Sets the address of this argument.
    pub fn set(&mut self, argument: Argument, address: u64) {
        self.0[argument] = Some(address);
    }

    /// The address of this argument, if it is given.
    pub fn get(&self, argument: Argument) -> Option<u64> {
        self.0[argument]
    }
}

impl FromIterator<(Argument, u64)> for Addresses {
    fn from_iter<I: IntoIterator<Item = (Argument, u64)>>(addresses: I) -> Addresses {
        let mut all = Addresses::default();
        for (argument, address) in addresses {
            all.set(argument, address);
        }
        all
    }
}

impl Call {
    /// The forward pass, for tensors of these layouts. On a GPU it is prepared, or taken from the cache.
    pub fn forward(
        attention: &Attention,
        layouts: &Layouts,
        kept: &PlanCache,
    ) -> Result<Call, Error> {
        let attention = &attention.giving(layouts.given());
        let work = Work::Attention(attention.clone(), Pass::Forward);
        Call::new(work, layouts, || Ok(kept.forward(attention, layouts)?))
    }

    /// The backward pass, as [`Call::forward`].
    pub fn backward(
        attention: &Attention,
        layouts: &Layouts,
        kept: &PlanCache,
    ) -> Result<Call, Error> {
        let attention = &attention.giving(layouts.given());
        let work = Work::Attention(attention.clone(), Pass::Backward);
        Call::new(work, layouts, || Ok(kept.backward(attention, layouts)?))
    }

    /// An append, as [`Call::forward`].
    pub fn append(append: &Append, layouts: &Layouts, kept: &PlanCache) -> Result<Call, Error> {
        let work = Work::Append(append.clone());
        Call::new(work, layouts, || Ok(kept.append(append, layouts)?))
    }

    /// A rotation, as [`Call::forward`].
    pub fn rotate(
        rotate: &Rotate,
        direction: Direction,
        layouts: &Layouts,
        kept: &PlanCache,
    ) -> Result<Call, Error> {
        let work = Work::Rotate(rotate.clone(), direction);
        Call::new(work, layouts, || {
            Ok(kept.rotate(rotate, direction, layouts)?)
        })
    }

    /// A merge, as [`Call::forward`]; the cache keeps no merges.
    pub fn merge(merge: &Merge, layouts: &Layouts) -> Result<Call, Error> {
        let work = Work::Merge(merge.clone());
        Call::new(work, layouts, || Ok(Arc::new(merge.prepare(layouts)?)))
    }

    /// A rounding to 8 bits, as [`Call::forward`].
    pub fn quantize(
        quantize: &Quantize,
        layouts: &Layouts,
        kept: &PlanCache,
    ) -> Result<Call, Error> {
        let work = Work::Quantize(quantize.clone());
        Call::new(work, layouts, || Ok(kept.quantize(quantize, layouts)?))
    }

    fn new(
        work: Work,
        layouts: &Layouts,
        prepare: impl FnOnce() -> Result<Arc<dyn Enqueue>, Error>,
    ) -> Result<Call, Error> {
        let prepared = match work.device().as_cuda() {
            Some(_) => Some(prepare()?),
            None => None,
        };
        let needs = ByArgument::from_fn(|argument| work.need(argument));
        let arguments = layouts.needed(|argument| needs[argument], |need| work.unplaced(need));
        Ok(Call {
            arguments: arguments?,
            needs: Arc::new(needs),
            work,
            prepared,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.work.device()
    }

    /// The problem of a pass of attention.
    pub fn problem(&self) -> Option<&Problem> {
        self.work.problem()
    }

    /// The arguments that a run takes by address: the required ones, and those that [`Layouts`] say are given. Other optional ones may be given, too.
    pub fn needs(&self) -> impl Iterator<Item = (Argument, &Given)> {
        // Tensors of expressions are given by their names.
        let all = Argument::ALL.into_iter();
        let all = all.filter(|argument| !Argument::SCORE_TENSORS.contains(argument));
        all.filter_map(|argument| Some((argument, self.arguments.get(argument)?)))
    }

    /// Whether a run takes an argument of this name.
    pub fn takes(&self, argument: Argument) -> bool {
        self.needs[argument].is_some()
    }

    /// Size in bytes of the workspace: device memory that a run needs in addition to its arguments, at a multiple of [`ALIGNMENT_BYTES`]. 0 if
    /// nothing is enqueued.
    pub fn workspace_bytes(&self) -> u64 {
        let prepared = self.prepared.as_ref();
        prepared.map_or(0, |prepared| {
            prepared.workspace_bytes().max(ALIGNMENT_BYTES)
        })
    }

    /// On a GPU, enqueues the call on a queue of its device; elsewhere, computes it. It checks all that the safe calls check before it touches any memory.
    ///
    /// # Safety
    /// At the addresses are elements of the types, shapes and strides that [`Call::needs`] gives, in memory of the call's device. They stay there
    /// until the queue has done the work (if a graph captured it: until the graph is dropped). Until then nothing else writes them, and nothing
    /// reads the outputs.
    pub unsafe fn run(
        &self,
        addresses: &Addresses,
        values: &Values,
        queue: Option<&mut Queue>,
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        let mut operands = unsafe { self.operands(addresses, values)? };
        match (&self.prepared, queue) {
            (Some(prepared), Some(queue)) => prepared.enqueue(queue, &mut operands),
            (Some(_), None) => Err(PlanError::NeedsQueue.into()),
            (None, _) => match &self.work {
                Work::Attention(attention, pass) => attention.run(*pass, &mut operands).map(drop),
                Work::Append(append) => append.compute(&mut operands).map(drop),
                Work::Rotate(rotate, direction) => {
                    rotate.compute(*direction, &mut operands).map(drop)
                }
                Work::Merge(merge) => merge.compute(&mut operands).map(drop),
                Work::Quantize(quantize) => quantize.compute(&mut operands).map(drop),
            },
        }
    }

    /// # Safety
    /// As for [`Call::run`].
    unsafe fn operands<'a>(
        &self,
        addresses: &Addresses,
        values: &Values<'a>,
    ) -> Result<Operands<'a>, Error> {
        let location = self.device().location();
        let mut operands = Operands::default();
        for argument in Argument::ALL {
            let Some(address) = addresses.get(argument) else {
                continue;
            };
            let need = self.needs[argument];
            let need = need.ok_or(ProblemError::NotTaken { argument })?;
            let given = match self.arguments.get(argument) {
                Some(given) => *given,
                None => self.work.unplaced(&need)?,
            };
            let n_elems = given.extent_elems()? as u64;
            let at = Span {
                location,
                address,
                n_elems,
                dtype: given.dtype(),
            };
            let refused = |misaligned: Misaligned| misaligned.of(argument);
            // SAFETY: as the caller promises.
            let operand = unsafe {
                match (given, need.access) {
                    (Given::Tensor(tensor), Access::Read) => {
                        Operand::Tensor(Tensor::over(at.read().map_err(refused)?, tensor.layout)?)
                    }
                    (Given::Tensor(tensor), _) => Operand::TensorMut(TensorMut::over(
                        at.write().map_err(refused)?,
                        tensor.layout,
                    )?),
                    (Given::Vector(_), Access::Read) => {
                        Operand::Vector(Vector::over(at.read().map_err(refused)?))
                    }
                    (Given::Vector(_), _) => {
                        Operand::VectorMut(VectorMut::over(at.write().map_err(refused)?))
                    }
                }
            };
            operands.put(argument, operand);
        }
        if let Some(seed_and_offset) = values.dropout {
            operands.put_dropout(seed_and_offset);
        }
        if let Some(problem) = self.problem() {
            // SAFETY: as the caller promises.
            unsafe { by_name(&mut operands, problem, location, values)? };
        }
        Ok(operands)
    }
}

/// Adds the parameters and tensors that the expressions name.
///
/// # Safety
/// As for [`Call::run`].
unsafe fn by_name<'a>(
    operands: &mut Operands<'a>,
    problem: &Problem,
    location: Location,
    values: &Values<'a>,
) -> Result<(), Error> {
    // A name that the problem does not have is refused later, whatever its type.
    let element = |name: &str| {
        let parts = problem.edit_parts();
        let read = parts.map_or(&[][..], |parts| parts.tensors()).iter();
        let found = read
            .map(|read| &read.tensor)
            .find(|tensor| tensor.name == name);
        found.map_or(ScalarType::F32, |tensor| tensor.element.into())
    };
    let mut inputs = ScoreInputs::default();
    for &(name, value) in values.score_params {
        inputs.params.push(name, value);
    }
    for tensor in values.score_tensors {
        let at = Span {
            location,
            address: tensor.address,
            n_elems: reach(tensor.shape, tensor.strides),
            dtype: element(tensor.name),
        };
        // SAFETY: as the caller promises.
        let memory = unsafe { at.read() };
        let memory = memory.map_err(|misaligned| misaligned.of_named(tensor.name))?;
        let read = ReadTensor::new(Vector::over(memory), tensor.shape).strides(tensor.strides);
        inputs.tensors.push(tensor.name, read);
    }
    operands.put_score_inputs(inputs);
    let mut gradients = ScoreGradients::default();
    for &(name, address) in values.d_score_tensors {
        let shape = problem
            .score_gradient_shape(name)
            .map_err(ProblemError::Score)?;
        let what = "the gradient of a tensor that the score reads";
        let n_elems = shape.iter().try_fold(1, |n: usize, &m| n.checked_mul(m));
        let at = Span {
            location,
            address,
            n_elems: n_elems.ok_or(ProblemError::SizeOverflow { what })? as u64,
            dtype: element(name),
        };
        // SAFETY: as the caller promises.
        let memory = unsafe { at.write() };
        let memory = memory.map_err(|misaligned| misaligned.of_named(name))?;
        gradients.tensors.push(name, VectorMut::over(memory));
    }
    operands.put_score_gradients(gradients);
    Ok(())
}

/// Elements from the first to the last. Strides below 0 are refused later.
fn reach(shape: &[usize], strides: &[i64]) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    let steps = shape.iter().zip(strides);
    steps.fold(1, |reach: u64, (&n, &stride)| {
        let stride = u64::try_from(stride).unwrap_or(0);
        reach.saturating_add((n as u64 - 1).saturating_mul(stride))
    })
}

impl Work {
    fn device(&self) -> &Device {
        match self {
            Work::Attention(attention, _) => attention.device(),
            Work::Append(append) => append.device(),
            Work::Rotate(rotate, _) => rotate.device(),
            Work::Merge(merge) => merge.device(),
            Work::Quantize(quantize) => quantize.device(),
        }
    }

    fn need(&self, argument: Argument) -> Option<Need> {
        match self {
            Work::Attention(attention, pass) => need(attention.problem(), *pass, argument),
            Work::Append(append) => append.problem().need(argument),
            Work::Rotate(rotate, _) => rotate.problem().need(argument),
            Work::Merge(merge) => merge.problem().need(argument),
            Work::Quantize(quantize) => quantize.problem().need(argument),
        }
    }

    /// The call of a pass of attention.
    fn problem(&self) -> Option<&Problem> {
        match self {
            Work::Attention(attention, _) => Some(attention.problem()),
            _ => None,
        }
    }

    /// An argument as the table has it, without an address.
    fn unplaced(&self, need: &Need) -> Result<Given, ProblemError> {
        unplaced(need, self.problem(), self.device().location())
    }
}

/// This many elements of a type at an address.
#[derive(Clone, Copy)]
struct Span {
    location: Location,
    address: u64,
    n_elems: u64,
    dtype: ScalarType,
}

/// An address on the host that is misaligned for its type: buffers of other libraries may begin anywhere.
struct Misaligned {
    address: u64,
    alignment: u64,
}

impl Misaligned {
    fn of(self, argument: Argument) -> Error {
        let Misaligned { address, alignment } = self;
        let error = ProblemError::Misaligned {
            argument,
            address,
            alignment,
        };
        error.into()
    }

    /// Of a tensor that an expression reads.
    fn of_named(self, name: &str) -> Error {
        let Misaligned { address, alignment } = self;
        let name = name.to_owned();
        let error = ScoreError::TensorMisaligned {
            name,
            address,
            alignment,
        };
        error.into()
    }
}

impl Span {
    /// # Safety
    /// As for [`Call::run`], for elements that are read.
    unsafe fn read<'a>(self) -> Result<Memory<'a>, Misaligned> {
        let Span {
            address,
            n_elems,
            dtype,
            ..
        } = self;
        Ok(match self.location {
            Location::Cuda(ordinal) => {
                Memory::Device(DeviceSlice::new(address, n_elems, dtype, ordinal, None))
            }
            // SAFETY: as the caller promises.
            Location::Host => Memory::Host(unsafe {
                of_named_type!(dtype, T => Sealed::wrap(elements::<T>(self)?))
            }),
        })
    }

    /// # Safety
    /// As for [`Call::run`], for elements that are written.
    unsafe fn write<'a>(self) -> Result<MemoryMut<'a>, Misaligned> {
        let Span {
            address,
            n_elems,
            dtype,
            ..
        } = self;
        Ok(match self.location {
            Location::Cuda(ordinal) => {
                MemoryMut::Device(DeviceSliceMut::new(address, n_elems, dtype, ordinal, None))
            }
            // SAFETY: as the caller promises.
            Location::Host => MemoryMut::Host(unsafe {
                of_named_type!(dtype, T => Sealed::wrap_mut(elements_mut::<T>(self)?))
            }),
        })
    }

    /// Refuses an address that is no multiple of this type's alignment.
    fn is_aligned_to<T>(self) -> Result<(), Misaligned> {
        let (address, alignment) = (self.address, align_of::<T>() as u64);
        match address.is_multiple_of(alignment) {
            true => Ok(()),
            false => Err(Misaligned { address, alignment }),
        }
    }
}

/// # Safety
/// As for [`Call::run`], on the host, for elements that are read.
unsafe fn elements<'a, T>(at: Span) -> Result<&'a [T], Misaligned> {
    // An empty tensor has no address.
    if at.n_elems == 0 {
        return Ok(&[]);
    }
    at.is_aligned_to::<T>()?;
    let first = std::ptr::with_exposed_provenance::<T>(at.address as usize);
    // SAFETY: as the caller promises; the address has been checked.
    Ok(unsafe { slice::from_raw_parts(first, at.n_elems as usize) })
}

/// # Safety
/// As for [`Call::run`], on the host, for elements that are written.
unsafe fn elements_mut<'a, T>(at: Span) -> Result<&'a mut [T], Misaligned> {
    if at.n_elems == 0 {
        return Ok(&mut []);
    }
    at.is_aligned_to::<T>()?;
    let first = std::ptr::with_exposed_provenance_mut::<T>(at.address as usize);
    // SAFETY: as the caller promises; the address has been checked.
    Ok(unsafe { slice::from_raw_parts_mut(first, at.n_elems as usize) })
}

#[cfg(test)]
mod tests;
