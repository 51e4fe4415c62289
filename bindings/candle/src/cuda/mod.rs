//! Attention and appends on tensors of a CUDA device: enqueued on candle's stream, in memory of candle's allocator, without a copy and
//! without waiting.

mod append;
mod context;
mod gradients;
mod raw;
mod reading;

use std::sync::LazyLock;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr};
use candle_core::{CudaDevice, CudaStorage, Layout, Result};
use ferroflash::arguments::Argument;
use ferroflash::prepared::Layouts;
use ferroflash::{
    Attention, Element, Gradients, OutputGradients, Outputs, PlanCache, Saved, Tensor as View,
    TensorMut as ViewMut,
};
use half::{bf16, f16};

pub(crate) use self::append::append;
use self::context::CallContext;
use self::gradients::CarriedGradients;
use self::raw::{Reading, Writing};
use self::reading::{GuardedVectors, ReadBeside, ReadInputs, ReadScales};
use crate::call::{AllGradients, Call, Results, by_type};
use crate::error::Error;
use crate::guarded::{Guarded, GuardedBeside};
use crate::layout::layout;
use crate::scales::GuardedScales;

/// A tensor as candle hands it to an operation.
pub(crate) type Stored<'a> = (&'a CudaStorage, &'a Layout);

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
    let candle = inputs[0].0.device();
    let mut lse = raw::elements::<f32>(candle, &call.problem.shape_lse())?;
    let o = by_type!(
        call.problem.dtype(),
        forward_of(call, inputs, Some(&mut lse))
    )?;
    Ok((o, wrapped(lse, candle)))
}

/// Enqueues o of q, k and v, for calls without a backward pass.
pub(crate) fn forward_alone(call: &Call, inputs: [Stored; 3]) -> Result<CudaStorage> {
    by_type!(call.problem.dtype(), forward_of(call, inputs, None))
}

/// Enqueues the gradients of q, k, v and what the call carries.
pub(crate) fn backward(
    call: &Call,
    inputs: [Stored; 3],
    results: &Results,
) -> Result<AllGradients<CudaStorage>> {
    by_type!(call.problem.dtype(), backward_of(call, inputs, results))
}

fn forward_of<T: Number>(
    call: &Call,
    stored: [Stored; 3],
    lse: Option<&mut CudaSlice<f32>>,
) -> Result<CudaStorage> {
    let problem = call.problem;
    let candle = stored[0].0.device();
    let context = CallContext::of(candle)?;
    let attention = Attention::new(context.device(), problem).map_err(Error::from)?;
    let layouts = match lse {
        Some(_) => layouts(call, stored),
        None => layouts(call, stored).without(Argument::Lse),
    };
    let prepared = PLANS.forward(&attention, &layouts).map_err(Error::from)?;

    let mut o = raw::elements::<T>(candle, &problem.shape_o())?;
    let mut workspace = raw::workspace(candle, prepared.plan())?;
    {
        let vectors = GuardedVectors::of(&call.vectors);
        let vectors = vectors.read(&context)?;
        let inputs = ReadInputs::of::<T>(problem, stored, &context)?;
        let inputs = vectors.vectors().give(inputs.views()?);
        let scales = call.scales.as_ref().map(GuardedScales::of);
        let scales = match &scales {
            Some(scales) => Some(ReadScales::of(scales, &context)?),
            None => None,
        };
        let inputs = match &scales {
            Some(scales) => scales.give(inputs),
            None => inputs,
        };
        let beside = GuardedBeside::of(&call.beside);
        let beside = ReadBeside::of(&beside, &context)?;
        let inputs = beside.give(call.beside.numbers(inputs));
        let mut o = Writing::of(&mut o, &context);
        let o = whole(&mut o, problem.shape_o())?;
        // Of no rows there is one element all the same.
        let n_rows = problem.shape_lse().iter().product();
        let mut lse = lse.map(|lse| Writing::of(lse, &context).shortened(n_rows));
        let mut outputs = match &mut lse {
            Some(lse) => Outputs::new(o, lse.slice()),
            None => Outputs::without_lse(o),
        };
        let mut queue = raw::Lent::new(&mut workspace, &context)?;
        prepared
            .forward(queue.queue(), &inputs, &mut outputs)
            .map_err(Error::from)?;
    }
    Ok(wrapped(o, candle))
}

fn backward_of<T: Number>(
    call: &Call,
    stored: [Stored; 3],
    results: &Results,
) -> Result<AllGradients<CudaStorage>> {
    let problem = call.problem;
    let candle = stored[0].0.device();
    let context = CallContext::of(candle)?;
    let attention = Attention::new(context.device(), problem).map_err(Error::from)?;
    let prepared = PLANS
        .backward(&attention, &gradients::asked(call, layouts(call, stored)))
        .map_err(Error::from)?;

    let [shape_q, shape_k] = [problem.shape_q(), problem.shape_k()];
    let [shape_v, shape_o] = [problem.shape_v(), problem.shape_o()];
    let mut d_q = raw::elements::<T>(candle, &shape_q)?;
    let mut d_k = raw::elements::<T>(candle, &shape_k)?;
    let mut d_v = raw::elements::<T>(candle, &shape_v)?;
    let mut carried = CarriedGradients::of(call, candle)?;
    let mut workspace = raw::workspace(candle, prepared.plan())?;
    {
        let vectors = GuardedVectors::of(&call.vectors);
        let vectors = vectors.read(&context)?;
        let inputs = ReadInputs::of::<T>(problem, stored, &context)?;
        let inputs = vectors.vectors().give(inputs.views()?);
        let beside = GuardedBeside::of(&call.beside);
        let beside = ReadBeside::of(&beside, &context)?;
        let inputs = beside.give(call.beside.numbers(inputs));

        let o = Guarded::of("o", results.o);
        let lse = Guarded::of("lse", results.lse);
        let d_o = Guarded::of("gradient of o", results.d_o);
        let d_lse = results
            .d_lse
            .map(|d_lse| Guarded::of("gradient of lse", d_lse));
        let (o, lse) = (o.read::<T>(&context)?, lse.read::<f32>(&context)?);
        let d_o = d_o.read::<T>(&context)?;
        let d_lse = match &d_lse {
            Some(d_lse) => Some(d_lse.read::<f32>(&context)?),
            None => None,
        };
        let saved = Saved::new(&view(&o, shape_o)?, lse.slice());
        let of_output = OutputGradients::new(&view(&d_o, shape_o)?);
        let of_output = match &d_lse {
            Some(d_lse) => of_output.d_lse(d_lse.slice()),
            None => of_output,
        };
        let [mut d_q, mut d_k, mut d_v] =
            [&mut d_q, &mut d_k, &mut d_v].map(|gradient| Writing::of(gradient, &context));
        let gradients = Gradients::new(
            whole(&mut d_q, shape_q)?,
            whole(&mut d_k, shape_k)?,
            whole(&mut d_v, shape_v)?,
        );
        let mut carried = carried.writing(&context);
        let mut gradients = carried.give(gradients);
        let mut queue = raw::Lent::new(&mut workspace, &context)?;
        prepared
            .backward(queue.queue(), &inputs, &saved, &of_output, &mut gradients)
            .map_err(Error::from)?;
    }
    Ok(AllGradients {
        of_inputs: [d_q, d_k, d_v].map(|gradient| wrapped(gradient, candle)),
        of_carried: carried.wrapped(candle),
    })
}

/// The strides of q, k and v; all else is contiguous.
fn layouts(call: &Call, [(_, q), (_, k), (_, v)]: [Stored; 3]) -> Layouts {
    let layouts = Layouts::contiguous()
        .with(Argument::Q, layout(q))
        .with(Argument::K, layout(k));
    let layouts = match call.problem.values_in_keys() {
        true => layouts,
        false => layouts.with(Argument::V, layout(v)),
    };
    match call.vectors.seqused_k {
        Some(_) => layouts.giving(Argument::SeqUsedK),
        None => layouts,
    }
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
