//! Both passes on tensors of a CUDA device: enqueued on candle's stream, in memory of candle's allocator, without a copy and
//! without waiting.

mod place;
mod raw;

use std::sync::LazyLock;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr};
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Storage};
use ferroflash::arguments::Argument;
use ferroflash::dtype::ScalarType;
use ferroflash::prepared::Layouts;
use ferroflash::{
    Attention, Dtype, Element, Gradients, Inputs, OutputGradients, Outputs, PlanCache, Saved,
    Tensor as View, TensorMut as ViewMut, Vector,
};
use half::{bf16, f16};

use self::place::Place;
use self::raw::{Reading, Writing};
use crate::call::{Call, Lengths, Results};
use crate::error::{Error, elsewhere};
use crate::guarded::Guarded;
use crate::layout::layout;

/// A tensor as candle hands it to an operation.
type Stored<'a> = (&'a CudaStorage, &'a Layout);

/// A type of tensors that both candle and ferroflash know.
trait Number: Element + CudaDType + DeviceRepr {}

impl Number for bf16 {}
impl Number for f16 {}
impl Number for f32 {}

/// How many prepared calls are kept: a model has a few shapes for each of its kinds of layers.
const N_PLANS: usize = 256;

/// Calls prepared before, of all devices.
static PLANS: LazyLock<PlanCache> = LazyLock::new(|| PlanCache::new(N_PLANS));

/// Enqueues o and lse of q, k and v.
pub(crate) fn forward(call: &Call, inputs: [Stored; 3]) -> Result<(CudaStorage, CudaStorage)> {
    match call.problem.dtype() {
        Dtype::Bf16 => forward_of::<bf16>(call, inputs),
        Dtype::F16 => forward_of::<f16>(call, inputs),
        Dtype::F32 => forward_of::<f32>(call, inputs),
    }
}

/// Enqueues the gradients of q, k and v.
pub(crate) fn backward(
    call: &Call,
    inputs: [Stored; 3],
    results: &Results,
) -> Result<[CudaStorage; 3]> {
    match call.problem.dtype() {
        Dtype::Bf16 => backward_of::<bf16>(call, inputs, results),
        Dtype::F16 => backward_of::<f16>(call, inputs, results),
        Dtype::F32 => backward_of::<f32>(call, inputs, results),
    }
}

fn forward_of<T: Number>(call: &Call, stored: [Stored; 3]) -> Result<(CudaStorage, CudaStorage)> {
    let problem = call.problem;
    let candle = stored[0].0.device();
    let place = Place::of(candle)?;
    let attention = Attention::new(place.device(), problem).map_err(Error::from)?;
    let prepared = PLANS
        .forward(&attention, &layouts(stored))
        .map_err(Error::from)?;

    let mut o = raw::elements::<T>(candle, &problem.shape_q())?;
    let mut lse = raw::elements::<f32>(candle, &problem.shape_lse())?;
    let mut workspace = raw::workspace(candle, prepared.plan())?;
    {
        let lengths = ReadLengths::of(call)?;
        let lengths = lengths.read(&place)?;
        let inputs = ReadInputs::of::<T>(stored, &place)?;
        let inputs = lengths.give(inputs.views()?);
        let mut o = Writing::of(&mut o, &place);
        // Of no rows there is one element all the same.
        let n_rows = problem.shape_lse().iter().product();
        let mut lse = Writing::of(&mut lse, &place).shortened(n_rows);
        let mut outputs = Outputs::new(whole(&mut o, problem.shape_q())?, lse.slice());
        let mut queue = raw::Lent::new(&mut workspace, &place)?;
        prepared
            .forward(queue.queue(), &inputs, &mut outputs)
            .map_err(Error::from)?;
    }
    Ok((wrapped(o, candle), wrapped(lse, candle)))
}

fn backward_of<T: Number>(
    call: &Call,
    stored: [Stored; 3],
    results: &Results,
) -> Result<[CudaStorage; 3]> {
    let problem = call.problem;
    let candle = stored[0].0.device();
    let place = Place::of(candle)?;
    let attention = Attention::new(place.device(), problem).map_err(Error::from)?;
    let prepared = PLANS
        .backward(&attention, &layouts(stored))
        .map_err(Error::from)?;

    let [shape_q, shape_k] = [problem.shape_q(), problem.shape_k()];
    let mut d_q = raw::elements::<T>(candle, &shape_q)?;
    let mut d_k = raw::elements::<T>(candle, &shape_k)?;
    let mut d_v = raw::elements::<T>(candle, &shape_k)?;
    let mut workspace = raw::workspace(candle, prepared.plan())?;
    {
        let lengths = ReadLengths::of(call)?;
        let lengths = lengths.read(&place)?;
        let inputs = ReadInputs::of::<T>(stored, &place)?;
        let inputs = lengths.give(inputs.views()?);

        let o = Guarded::of("o", results.o);
        let lse = Guarded::of("lse", results.lse);
        let d_o = Guarded::of("gradient of o", results.d_o);
        let d_lse = results
            .d_lse
            .map(|d_lse| Guarded::of("gradient of lse", d_lse));
        let (o, lse) = (o.read::<T>(&place)?, lse.read::<f32>(&place)?);
        let d_o = d_o.read::<T>(&place)?;
        let d_lse = match &d_lse {
            Some(d_lse) => Some(d_lse.read::<f32>(&place)?),
            None => None,
        };
        let saved = Saved::new(&view(&o, shape_q)?, lse.slice());
        let of_output = OutputGradients::new(&view(&d_o, shape_q)?);
        let of_output = match &d_lse {
            Some(d_lse) => of_output.d_lse(d_lse.slice()),
            None => of_output,
        };
        let [mut d_q, mut d_k, mut d_v] =
            [&mut d_q, &mut d_k, &mut d_v].map(|gradient| Writing::of(gradient, &place));
        let mut gradients = Gradients::new(
            whole(&mut d_q, shape_q)?,
            whole(&mut d_k, shape_k)?,
            whole(&mut d_v, shape_k)?,
        );
        let mut queue = raw::Lent::new(&mut workspace, &place)?;
        prepared
            .backward(queue.queue(), &inputs, &saved, &of_output, &mut gradients)
            .map_err(Error::from)?;
    }
    Ok([d_q, d_k, d_v].map(|gradient| wrapped(gradient, candle)))
}

/// The strides of q, k and v; all else is contiguous.
fn layouts([(_, q), (_, k), (_, v)]: [Stored; 3]) -> Layouts {
    Layouts::contiguous()
        .with(Argument::Q, layout(q))
        .with(Argument::K, layout(k))
        .with(Argument::V, layout(v))
}

/// A contiguous tensor to read.
fn view<'a>(reading: &'a Reading<'_>, shape: [usize; 4]) -> Result<View<'a>> {
    let layout = ferroflash::Layout::bshd(shape).map_err(Error::from)?;
    Ok(View::device(reading.slice(), layout).map_err(Error::from)?)
}

/// A contiguous tensor to write.
fn whole<'a>(writing: &'a mut Writing<'_>, shape: [usize; 4]) -> Result<ViewMut<'a>> {
    let layout = ferroflash::Layout::bshd(shape).map_err(Error::from)?;
    Ok(ViewMut::device(writing.slice(), layout).map_err(Error::from)?)
}

fn wrapped<T: CudaDType>(elements: CudaSlice<T>, candle: &CudaDevice) -> CudaStorage {
    CudaStorage::wrap_cuda_slice(elements, candle.clone())
}

/// q, k and v while they are read.
struct ReadInputs<'a> {
    read: [(Reading<'a>, ferroflash::Layout); 3],
}

impl<'a> ReadInputs<'a> {
    fn of<T: Number>(stored: [Stored<'a>; 3], place: &'a Place) -> Result<ReadInputs<'a>> {
        let read = |(storage, at): Stored<'a>| {
            let elements = storage.as_cuda_slice::<T>()?;
            let reading = Reading::of(elements, at.start_offset(), T::TYPE, place);
            Ok::<_, candle_core::Error>((reading, layout(at)))
        };
        let [q, k, v] = stored;
        Ok(ReadInputs {
            read: [read(q)?, read(k)?, read(v)?],
        })
    }

    fn views(&self) -> Result<Inputs<'_>> {
        let [q, k, v] = self.read.each_ref().map(strided);
        Ok(Inputs::new(&q?, &k?, &v?))
    }
}

/// A tensor to read, where it lies.
fn strided<'a>((reading, layout): &'a (Reading<'_>, ferroflash::Layout)) -> Result<View<'a>> {
    Ok(View::device(reading.slice(), *layout).map_err(Error::from)?)
}

/// The vectors of cumulative lengths, held while their memory is read.
enum ReadLengths<'a> {
    None,
    /// One tensor, of queries and keys alike: its memory is locked once.
    Same(Guarded<'a>),
    Two(Guarded<'a>, Guarded<'a>),
}

impl<'a> ReadLengths<'a> {
    fn of(call: &'a Call) -> Result<ReadLengths<'a>> {
        Ok(match &call.lengths {
            Lengths::Device { q, k } if q.id() == k.id() => {
                ReadLengths::Same(Guarded::of("seqlens_q", q))
            }
            Lengths::Device { q, k } => {
                ReadLengths::Two(Guarded::of("seqlens_q", q), Guarded::of("seqlens_k", k))
            }
            Lengths::None | Lengths::Host { .. } => ReadLengths::None,
        })
    }

    fn read(&'a self, place: &'a Place) -> Result<CumulativeLengths<'a>> {
        Ok(CumulativeLengths(match self {
            ReadLengths::None => None,
            ReadLengths::Same(both) => Some([both.lengths(place)?, both.lengths(place)?]),
            ReadLengths::Two(q, k) => Some([q.lengths(place)?, k.lengths(place)?]),
        }))
    }
}

/// Cumulative lengths of queries and of keys, where they lie.
struct CumulativeLengths<'a>(Option<[Reading<'a>; 2]>);

impl CumulativeLengths<'_> {
    fn give<'b>(&'b self, inputs: Inputs<'b>) -> Inputs<'b> {
        match &self.0 {
            None => inputs,
            Some([q, k]) => inputs
                .cu_seqlens_q(Vector::device(q.slice()))
                .cu_seqlens_k(Vector::device(k.slice())),
        }
    }
}

impl<'a> Guarded<'a> {
    fn on_gpu(&self, place: &Place) -> Result<&CudaStorage> {
        match self.storage() {
            Storage::Cuda(storage) => Ok(storage),
            _ => Err(elsewhere(self.argument, self.tensor, place.location()).into()),
        }
    }

    /// All of a contiguous tensor.
    fn read<T: Number>(&'a self, place: &'a Place) -> Result<Reading<'a>> {
        let elements = self.on_gpu(place)?.as_cuda_slice::<T>()?;
        Ok(self.reading(elements, T::TYPE, place))
    }

    /// All of a vector of lengths. ferroflash takes them for i32: those of u32 that are lengths have the same bits.
    fn lengths(&'a self, place: &'a Place) -> Result<Reading<'a>> {
        let storage = self.on_gpu(place)?;
        Ok(match self.tensor.dtype() {
            DType::I32 => self.reading(storage.as_cuda_slice::<i32>()?, ScalarType::I32, place),
            _ => self.reading(storage.as_cuda_slice::<u32>()?, ScalarType::I32, place),
        })
    }

    fn reading<T>(
        &'a self,
        elements: &'a CudaSlice<T>,
        dtype: ScalarType,
        place: &'a Place,
    ) -> Reading<'a> {
        let first = self.layout.start_offset();
        Reading::of(elements, first, dtype, place).shortened(self.tensor.elem_count())
    }
}
