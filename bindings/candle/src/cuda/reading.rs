//! What a call reads, held while its memory is read.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use candle_core::{CudaStorage, DType, Result, Storage};
use ferroflash::dtype::ScalarType;
use ferroflash::{Inputs, Problem, Scalar, Tensor as View, Vector};
use float8::F8E4M3;
use half::{bf16, f16};

use super::context::CallContext;
use super::raw::Reading;
use super::{Number, Stored};
use crate::error::{Error, elsewhere};
use crate::guarded::{Guarded, GuardedBeside};
use crate::layout::layout;
use crate::scales::GuardedScales;
use crate::vectors::{Ints, Vectors};

/// q, k and v while they are read.
pub(super) struct ReadInputs<'a> {
    problem: Problem,
    read: [(Reading<'a>, ferroflash::Layout); 3],
}

impl<'a> ReadInputs<'a> {
    pub(super) fn of<T: Number>(
        problem: Problem,
        [q, k, v]: [Stored<'a>; 3],
        context: &'a CallContext,
    ) -> Result<ReadInputs<'a>> {
        let q = stored::<T>(q, context)?;
        let [k, v] = match problem.fp8_kv() {
            None => [stored::<T>(k, context)?, stored::<T>(v, context)?],
            Some(_) => [stored::<F8E4M3>(k, context)?, stored::<F8E4M3>(v, context)?],
        };
        Ok(ReadInputs {
            problem,
            read: [q, k, v],
        })
    }

    pub(super) fn views(&self) -> Result<Inputs<'_>> {
        let [q, k, v] = self.read.each_ref().map(strided);
        Ok(match self.problem.values_in_keys() {
            true => Inputs::latent(&q?, &k?),
            false => Inputs::new(&q?, &k?, &v?),
        })
    }
}

fn stored<'a, T: Scalar + CudaDType>(
    (storage, at): Stored<'a>,
    context: &'a CallContext,
) -> Result<(Reading<'a>, ferroflash::Layout)> {
    let elements = storage.as_cuda_slice::<T>()?;
    let reading = Reading::of(elements, at.start_offset(), T::TYPE, context);
    Ok((reading, layout(at)))
}

/// Scales of keys and values in 8 bits, while they are read.
pub(super) struct ReadScales<'a> {
    k: Reading<'a>,
    v: Reading<'a>,
}

impl<'a> ReadScales<'a> {
    pub(super) fn of(
        scales: &'a GuardedScales<'a>,
        context: &'a CallContext,
    ) -> Result<ReadScales<'a>> {
        Ok(ReadScales {
            k: scales.k().read::<f32>(context)?,
            v: scales.v().read::<f32>(context)?,
        })
    }

    pub(super) fn give<'b>(&'b self, inputs: Inputs<'b>) -> Inputs<'b> {
        let inputs = inputs.k_descale(self.k.slice());
        inputs.v_descale(self.v.slice())
    }
}

/// Sinks, and tensors that expressions read, while they are read.
pub(super) struct ReadBeside<'a> {
    tensors: Vec<(&'static str, &'a Guarded<'a>, Reading<'a>)>,
    sinks: Option<Reading<'a>>,
}

impl<'a> ReadBeside<'a> {
    pub(super) fn of(
        beside: &'a GuardedBeside<'a>,
        context: &'a CallContext,
    ) -> Result<ReadBeside<'a>> {
        let tensors = beside
            .named()
            .map(|(name, guard)| Ok((name, guard, guard.elements(context)?)));
        let sinks = beside.sinks();
        Ok(ReadBeside {
            tensors: tensors.collect::<Result<_>>()?,
            sinks: sinks.map(|sinks| sinks.read::<f32>(context)).transpose()?,
        })
    }

    pub(super) fn give<'b>(&'b self, inputs: Inputs<'b>) -> Inputs<'b> {
        let inputs = match &self.sinks {
            Some(sinks) => inputs.sinks(sinks.slice()),
            None => inputs,
        };
        self.tensors
            .iter()
            .fold(inputs, |inputs, (name, guard, reading)| {
                let elements = Vector::device(reading.slice());
                inputs.score_tensor(name, guard.read_tensor(elements))
            })
    }
}

/// A tensor to read, where it lies.
pub(super) fn strided<'a>(
    (reading, layout): &'a (Reading<'_>, ferroflash::Layout),
) -> Result<View<'a>> {
    Ok(View::device(reading.slice(), *layout).map_err(Error::from)?)
}

/// Lengths and tables, held while their memory is read.
pub(super) struct GuardedVectors<'a> {
    /// Of each memory once: one tensor may be the ends of queries and of keys.
    guards: Vec<Guarded<'a>>,
    /// Which of the guards.
    indices: Vectors<usize>,
}

/// Lengths and tables, while they are read.
pub(super) struct ReadVectors<'a>(Vectors<Reading<'a>>);

impl<'a> GuardedVectors<'a> {
    pub(super) fn of(vectors: &'a Vectors<Ints>) -> GuardedVectors<'a> {
        let mut guards = Vec::<Guarded>::new();
        let indices = vectors.each(|ints| match ints {
            // Of the host's own tensors alone.
            Ints::Host(_) => None,
            Ints::Device(tensor) => {
                let same = |guard: &Guarded| guard.tensor.id() == tensor.id();
                let known = guards.iter().position(same);
                Some(known.unwrap_or_else(|| {
                    guards.push(Guarded::of("lengths", tensor));
                    guards.len() - 1
                }))
            }
        });
        GuardedVectors { guards, indices }
    }

    pub(super) fn read(&'a self, context: &'a CallContext) -> Result<ReadVectors<'a>> {
        let read = |&index: &usize| self.guards[index].lengths(context);
        Ok(ReadVectors(self.indices.map(read)?))
    }
}

impl ReadVectors<'_> {
    pub(super) fn vectors(&self) -> Vectors<Vector<'_>> {
        self.0.each(|reading| Some(Vector::device(reading.slice())))
    }
}

impl<'a> Guarded<'a> {
    /// The tensor, which lies where another one does.
    pub(crate) fn on_device(&self, other: &CudaStorage) -> Result<Stored<'_>> {
        match self.storage() {
            Storage::Cuda(storage) => Ok((storage, self.layout)),
            _ => Err(elsewhere(self.argument, self.tensor, other.device().location()).into()),
        }
    }

    fn on_gpu(&self, context: &CallContext) -> Result<&CudaStorage> {
        match self.storage() {
            Storage::Cuda(storage) => Ok(storage),
            _ => Err(elsewhere(self.argument, self.tensor, context.location()).into()),
        }
    }

    /// A tensor with its strides.
    pub(super) fn strided<T: Number>(
        &'a self,
        context: &'a CallContext,
    ) -> Result<(Reading<'a>, ferroflash::Layout)> {
        let elements = self.on_gpu(context)?.as_cuda_slice::<T>()?;
        let reading = Reading::of(elements, self.layout.start_offset(), T::TYPE, context);
        Ok((reading, layout(self.layout)))
    }

    /// All of a contiguous tensor.
    pub(super) fn read<T: Number>(&'a self, context: &'a CallContext) -> Result<Reading<'a>> {
        let elements = self.on_gpu(context)?.as_cuda_slice::<T>()?;
        Ok(self.reading(elements, T::TYPE, context))
    }

    /// The elements from the first one on of a tensor that an expression reads.
    fn elements(&'a self, context: &'a CallContext) -> Result<Reading<'a>> {
        let (storage, first) = (self.on_gpu(context)?, self.layout.start_offset());
        Ok(match self.tensor.dtype() {
            DType::F16 => Reading::of(storage.as_cuda_slice::<f16>()?, first, f16::TYPE, context),
            DType::BF16 => {
                Reading::of(storage.as_cuda_slice::<bf16>()?, first, bf16::TYPE, context)
            }
            DType::I32 => Reading::of(storage.as_cuda_slice::<i32>()?, first, i32::TYPE, context),
            _ => Reading::of(storage.as_cuda_slice::<f32>()?, first, f32::TYPE, context),
        })
    }

    /// All of a vector of lengths. ferroflash takes them for i32: those of u32 that are lengths have the same bits.
    pub(super) fn lengths(&'a self, context: &'a CallContext) -> Result<Reading<'a>> {
        let storage = self.on_gpu(context)?;
        Ok(match self.tensor.dtype() {
            DType::I32 => self.reading(storage.as_cuda_slice::<i32>()?, ScalarType::I32, context),
            _ => self.reading(storage.as_cuda_slice::<u32>()?, ScalarType::I32, context),
        })
    }

    fn reading<T>(
        &'a self,
        elements: &'a CudaSlice<T>,
        dtype: ScalarType,
        context: &'a CallContext,
    ) -> Reading<'a> {
        let first = self.layout.start_offset();
        Reading::of(elements, first, dtype, context).shortened(self.tensor.elem_count())
    }
}
