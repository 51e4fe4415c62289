//! Attention and appends on tensors of the host, by all cores of the processor.

mod append;

use std::sync::LazyLock;

use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Storage, WithDType};
use ferroflash::{
    Attention, Device, Element, Gradients, Inputs, OutputGradients, Outputs, Saved, Scalar, Tensor,
    TensorMut, Vector, VectorMut,
};
use float8::F8E4M3;
use half::{bf16, f16};

pub(crate) use self::append::append;
use crate::call::{AllGradients, Call, Results, by_type};
use crate::carried::{Carried, Of};
use crate::error::{Error, elsewhere};
use crate::guarded::{Guarded, GuardedBeside};
use crate::layout::layout;
use crate::scales::GuardedScales;
use crate::vectors::Vectors;

/// A tensor as candle hands it to an operation.
type Stored<'a> = (&'a CpuStorage, &'a Layout);

/// The processor.
static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);

/// o and lse of q, k and v.
pub(crate) fn forward(call: &Call, inputs: [Stored; 3]) -> Result<(CpuStorage, CpuStorage)> {
    let mut lse = vec![0f32; call.problem.shape_lse().iter().product()];
    let o = by_type!(
        call.problem.dtype(),
        forward_of(call, inputs, Some(&mut lse))
    )?;
    Ok((o, CpuStorage::F32(lse)))
}

/// o of q, k and v, for calls without a backward pass.
pub(crate) fn forward_alone(call: &Call, inputs: [Stored; 3]) -> Result<CpuStorage> {
    by_type!(call.problem.dtype(), forward_of(call, inputs, None))
}

/// The gradients of q, k, v and what the call carries.
pub(crate) fn backward(
    call: &Call,
    inputs: [Stored; 3],
    results: &Results,
) -> Result<AllGradients<CpuStorage>> {
    by_type!(call.problem.dtype(), backward_of(call, inputs, results))
}

fn forward_of<T: Element + WithDType>(
    call: &Call,
    inputs: [Stored; 3],
    lse: Option<&mut Vec<f32>>,
) -> Result<CpuStorage> {
    let problem = call.problem;
    let attention = Attention::new(&CPU, problem).map_err(Error::from)?;
    let mut o = elements::<T>(problem.shape_o());
    let scales = call.scales.as_ref().map(GuardedScales::of);
    let inputs = vectors(call).give(views::<T>(call, inputs)?);
    let inputs = match &scales {
        Some(scales) => scales.give(inputs)?,
        None => inputs,
    };
    let read = GuardedBeside::of(&call.beside);
    let inputs = read.give(call.beside.numbers(inputs))?;
    let whole_o = whole(&mut o, problem.shape_o())?;
    let mut outputs = match lse {
        Some(lse) => Outputs::new(whole_o, lse),
        None => Outputs::without_lse(whole_o),
    };
    attention
        .forward(&inputs, &mut outputs)
        .map_err(Error::from)?;
    Ok(T::to_cpu_storage_owned(o))
}

fn backward_of<T: Element + WithDType>(
    call: &Call,
    inputs: [Stored; 3],
    results: &Results,
) -> Result<AllGradients<CpuStorage>> {
    let problem = call.problem;
    let attention = Attention::new(&CPU, problem).map_err(Error::from)?;
    let [shape_q, shape_k] = [problem.shape_q(), problem.shape_k()];
    let shape_v = problem.shape_v();
    let mut d_q = elements::<T>(shape_q);
    let [mut d_k, mut d_v] = [elements::<T>(shape_k), elements::<T>(shape_v)];

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
        whole(&mut d_v, shape_v)?,
    );
    let mut of_carried: Vec<CpuStorage> = call.carried.iter().map(Carried::zeros).collect();
    for (carried, gradient) in call.carried.iter().zip(&mut of_carried) {
        gradients = carried.give(gradients, gradient);
    }
    let inputs = vectors(call).give(views::<T>(call, inputs)?);
    let read = GuardedBeside::of(&call.beside);
    let inputs = read.give(call.beside.numbers(inputs))?;
    attention
        .backward(&inputs, &saved, &of_output, &mut gradients)
        .map_err(Error::from)?;
    Ok(AllGradients {
        of_inputs: [d_q, d_k, d_v].map(T::to_cpu_storage_owned),
        of_carried,
    })
}

/// What both passes read of tensors.
fn views<'a, T: Element + WithDType>(
    call: &Call,
    [q, k, v]: [Stored<'a>; 3],
) -> Result<Inputs<'a>> {
    let (problem, q) = (call.problem, view::<T>(q)?);
    if problem.values_in_keys() {
        return Ok(Inputs::latent(&q, &view::<T>(k)?));
    }
    Ok(match problem.fp8_kv() {
        None => Inputs::new(&q, &view::<T>(k)?, &view::<T>(v)?),
        Some(_) => Inputs::new(&q, &view::<F8E4M3>(k)?, &view::<F8E4M3>(v)?),
    })
}

/// What both passes read of lengths and tables.
fn vectors(call: &Call) -> Vectors<Vector<'_>> {
    call.vectors.each(|ints| Some(Vector::of(ints.host())))
}

/// A tensor where it lies, with its strides.
fn view<'a, T: Scalar + WithDType>((storage, place): Stored<'a>) -> Result<Tensor<'a>> {
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

impl GuardedScales<'_> {
    fn give<'a>(&'a self, inputs: Inputs<'a>) -> Result<Inputs<'a>> {
        let inputs = inputs.k_descale(self.k().slice()?);
        Ok(inputs.v_descale(self.v().slice()?))
    }
}

impl Carried {
    /// Room for its gradient.
    fn zeros(&self) -> CpuStorage {
        let n_elems = self.shape.iter().product();
        match self.tensor.dtype() {
            DType::F16 => CpuStorage::F16(vec![f16::ZERO; n_elems]),
            DType::BF16 => CpuStorage::BF16(vec![bf16::ZERO; n_elems]),
            _ => CpuStorage::F32(vec![0.0; n_elems]),
        }
    }

    /// The gradients with its own, which is written there.
    fn give<'a>(&self, gradients: Gradients<'a>, room: &'a mut CpuStorage) -> Gradients<'a> {
        let elements: VectorMut = match room {
            CpuStorage::F16(elements) => elements.into(),
            CpuStorage::BF16(elements) => elements.into(),
            CpuStorage::F32(elements) => elements.into(),
            // `zeros` makes no other.
            _ => return gradients,
        };
        match self.of {
            Of::Sinks => gradients.d_sinks(elements),
            Of::Tensor(name, _) => gradients.d_score_tensor(name, elements),
        }
    }
}

impl GuardedBeside<'_> {
    fn give<'a>(&'a self, mut inputs: Inputs<'a>) -> Result<Inputs<'a>> {
        if let Some(sinks) = self.sinks() {
            inputs = inputs.sinks(sinks.slice()?);
        }
        for (name, guard) in self.named() {
            let (storage, place) = guard.on_host()?;
            let elements: Vector = match storage {
                CpuStorage::F16(elements) => from(elements, place).into(),
                CpuStorage::BF16(elements) => from(elements, place).into(),
                CpuStorage::I32(elements) => from(elements, place).into(),
                _ => from(storage.as_slice::<f32>()?, place).into(),
            };
            inputs = inputs.score_tensor(name, guard.read_tensor(elements));
        }
        Ok(inputs)
    }
}

impl Guarded<'_> {
    pub(crate) fn on_host(&self) -> Result<Stored<'_>> {
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
