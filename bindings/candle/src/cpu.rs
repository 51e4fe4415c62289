//! Both passes on tensors of the host, by all cores of the processor.

use std::sync::LazyLock;

use candle_core::{CpuStorage, DeviceLocation, Layout, Result, Storage, WithDType};
use ferroflash::{
    Attention, Device, Dtype, Element, Gradients, Inputs, OutputGradients, Outputs, Saved, Tensor,
    TensorMut,
};
use half::{bf16, f16};

use crate::call::{Call, Lengths, Results};
use crate::error::{Error, elsewhere};
use crate::guarded::Guarded;
use crate::layout::layout;

/// A tensor as candle hands it to an operation.
type Stored<'a> = (&'a CpuStorage, &'a Layout);

/// The processor.
static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);

/// o and lse of q, k and v.
pub(crate) fn forward(call: &Call, inputs: [Stored; 3]) -> Result<(CpuStorage, CpuStorage)> {
    match call.problem.dtype() {
        Dtype::Bf16 => forward_of::<bf16>(call, inputs),
        Dtype::F16 => forward_of::<f16>(call, inputs),
        Dtype::F32 => forward_of::<f32>(call, inputs),
    }
}

/// The gradients of q, k and v.
pub(crate) fn backward(
    call: &Call,
    inputs: [Stored; 3],
    results: &Results,
) -> Result<[CpuStorage; 3]> {
    match call.problem.dtype() {
        Dtype::Bf16 => backward_of::<bf16>(call, inputs, results),
        Dtype::F16 => backward_of::<f16>(call, inputs, results),
        Dtype::F32 => backward_of::<f32>(call, inputs, results),
    }
}

fn forward_of<T: Element + WithDType>(
    call: &Call,
    inputs: [Stored; 3],
) -> Result<(CpuStorage, CpuStorage)> {
    let problem = call.problem;
    let attention = Attention::new(&CPU, problem).map_err(Error::from)?;
    let mut o = elements::<T>(problem.shape_q());
    let mut lse = vec![0f32; problem.shape_lse().iter().product()];
    let inputs = inputs_of::<T>(call, inputs)?;
    let mut outputs = Outputs::new(whole(&mut o, problem.shape_q())?, &mut lse);
    attention
        .forward(&inputs, &mut outputs)
        .map_err(Error::from)?;
    Ok((T::to_cpu_storage_owned(o), CpuStorage::F32(lse)))
}

fn backward_of<T: Element + WithDType>(
    call: &Call,
    inputs: [Stored; 3],
    results: &Results,
) -> Result<[CpuStorage; 3]> {
    let problem = call.problem;
    let attention = Attention::new(&CPU, problem).map_err(Error::from)?;
    let [shape_q, shape_k] = [problem.shape_q(), problem.shape_k()];
    let mut d_q = elements::<T>(shape_q);
    let [mut d_k, mut d_v] = [elements::<T>(shape_k), elements::<T>(shape_k)];

    let o = Guarded::of("o", results.o);
    let lse = Guarded::of("lse", results.lse);
    let d_o = Guarded::of("gradient of o", results.d_o);
    let d_lse = results
        .d_lse
        .map(|d_lse| Guarded::of("gradient of lse", d_lse));
    let saved = Saved::new(&view::<T>(o.on_host()?)?, lse.slice()?);
    let of_output = OutputGradients::new(&view::<T>(d_o.on_host()?)?);
    let of_output = match &d_lse {
        Some(d_lse) => of_output.d_lse(d_lse.slice()?),
        None => of_output,
    };
    let mut gradients = Gradients::new(
        whole(&mut d_q, shape_q)?,
        whole(&mut d_k, shape_k)?,
        whole(&mut d_v, shape_k)?,
    );
    let inputs = inputs_of::<T>(call, inputs)?;
    attention
        .backward(&inputs, &saved, &of_output, &mut gradients)
        .map_err(Error::from)?;
    Ok([d_q, d_k, d_v].map(T::to_cpu_storage_owned))
}

/// What both passes read.
fn inputs_of<'a, T: Element + WithDType>(
    call: &'a Call,
    [q, k, v]: [Stored<'a>; 3],
) -> Result<Inputs<'a>> {
    let inputs = Inputs::new(&view::<T>(q)?, &view::<T>(k)?, &view::<T>(v)?);
    Ok(match &call.lengths {
        Lengths::Host { q, k } => inputs.cu_seqlens_q(q).cu_seqlens_k(k),
        Lengths::None | Lengths::Device { .. } => inputs,
    })
}

/// A tensor where it lies, with its strides.
fn view<'a, T: Element + WithDType>((storage, place): Stored<'a>) -> Result<Tensor<'a>> {
    let elements = from(storage.as_slice::<T>()?, place);
    Ok(Tensor::strided(elements, layout(place)).map_err(Error::from)?)
}

/// A contiguous tensor to write.
fn whole<T: Element>(elements: &mut [T], shape: [usize; 4]) -> Result<TensorMut<'_>> {
    Ok(TensorMut::bshd(elements, shape).map_err(Error::from)?)
}

/// What a layout reaches of its memory; an empty tensor may begin behind the end.
fn from<'a, T>(elements: &'a [T], place: &Layout) -> &'a [T] {
    elements.get(place.start_offset()..).unwrap_or_default()
}

fn elements<T: Element>(shape: [usize; 4]) -> Vec<T> {
    vec![T::default(); shape.iter().product()]
}

impl Guarded<'_> {
    fn on_host(&self) -> Result<Stored<'_>> {
        match self.storage() {
            Storage::Cpu(storage) => Ok((storage, self.layout)),
            _ => Err(elsewhere(self.argument, self.tensor, DeviceLocation::Cpu).into()),
        }
    }

    /// All of a contiguous tensor of f32.
    fn slice(&self) -> Result<&[f32]> {
        let (storage, layout) = self.on_host()?;
        let elements = from(storage.as_slice::<f32>()?, layout);
        Ok(elements.get(..self.tensor.elem_count()).unwrap_or_default())
    }
}
