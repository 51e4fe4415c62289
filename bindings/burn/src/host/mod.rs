//! Both passes on tensors of Burn's CPU backends, by ferroflash's CPU backend.
//!
//! A backend says how its tensor is read ([`HostBackend::view`]); the rest is the same for all. Outputs are new vectors,
//! which Burn takes over without a copy.

#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "ndarray")]
mod ndarray;
mod view;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::TensorData;
use ferroflash::error::Argument;
use ferroflash::{Attention, Device, Inputs, Outputs, Saved as Kept, Tensor, TensorMut};

pub(crate) use view::View;

use crate::backend::{Forward, Gradients, OutputGradients, Saved};
use crate::check;
use crate::error::Error;
use crate::options::Options;

/// A type of elements that both Burn and ferroflash know.
pub(crate) trait HostElement:
    ferroflash::Element + burn::tensor::Element + bytemuck::Pod
{
}

impl HostElement for f32 {}
#[cfg(feature = "flex")]
impl HostElement for half::f16 {}
#[cfg(feature = "flex")]
impl HostElement for half::bf16 {}

/// A backend whose tensors of `T` lie in the host's memory.
pub(crate) trait HostBackend<T: HostElement>: Backend {
    /// The elements of a tensor whose type is that of `T`.
    fn view(tensor: &FloatTensor<Self>) -> View<'_, T>;
}

/// [`FlashBackend::flash_forward`](crate::FlashBackend::flash_forward) for elements of type `T`.
pub(crate) fn forward<B, T>(
    q: &FloatTensor<B>,
    k: &FloatTensor<B>,
    v: &FloatTensor<B>,
    options: &Options,
) -> Result<Forward<B>, Error>
where
    B: HostBackend<T>,
    T: HostElement,
{
    let problem = check::problem([q, k, v], options)?;
    let [of_q, of_k, of_v] = [B::view(q), B::view(k), B::view(v)];
    let inputs = inputs(&of_q, &of_k, &of_v)?;
    let shape = check::shape_o(&problem);
    let mut o = zeros::<T>(shape)?;
    let [batch, heads, seqlen, _] = shape;
    let mut lse = zeros::<f32>([batch, heads, seqlen, 1])?;
    let attention = Attention::new(&Device::cpu(), problem)?;
    let mut outputs = Outputs::new(TensorMut::bhsd(&mut o, shape)?, &mut lse);
    attention.forward(&inputs, &mut outputs)?;
    let device = q.device();
    Ok(Forward {
        o: B::float_from_data(TensorData::new(o, shape), &device),
        lse: B::float_from_data(TensorData::new(lse, [batch, heads, seqlen]), &device),
    })
}

/// [`FlashBackend::flash_backward`](crate::FlashBackend::flash_backward) for elements of type `T`.
pub(crate) fn backward<B, T>(
    saved: &Saved<B>,
    of_output: &OutputGradients<B>,
    options: &Options,
) -> Result<Gradients<B>, Error>
where
    B: HostBackend<T> + HostBackend<f32>,
    T: HostElement,
{
    let Saved { q, k, v, forward } = saved;
    let problem = check::problem([q, k, v], options)?;
    for (argument, tensor) in [(Argument::O, &forward.o), (Argument::DO, &of_output.d_o)] {
        check::same_dtype(argument, tensor, q.dtype())?;
    }
    let lse = rows::<B>(Argument::Lse, &forward.lse)?;
    let d_lse = match &of_output.d_lse {
        Some(d_lse) => Some(rows::<B>(Argument::DLse, d_lse)?),
        None => None,
    };
    let [of_q, of_k, of_v, of_o, of_d_o]: [View<T>; 5] =
        [q, k, v, &forward.o, &of_output.d_o].map(B::view);
    let inputs = inputs(&of_q, &of_k, &of_v)?;
    let kept = Kept::new(&of_o.tensor(Argument::O)?, &*lse);
    let d_o = of_d_o.tensor(Argument::DO)?;
    let given = ferroflash::OutputGradients::new(&d_o);
    let given = match &d_lse {
        Some(d_lse) => given.d_lse(&**d_lse),
        None => given,
    };
    let (shape_q, shape_k) = (check::shape_q(&problem), check::shape_k(&problem));
    let shape_v = check::shape_v(&problem);
    let (mut d_q, mut d_k, mut d_v) = (
        zeros::<T>(shape_q)?,
        zeros::<T>(shape_k)?,
        zeros::<T>(shape_v)?,
    );
    let mut gradients = ferroflash::Gradients::new(
        TensorMut::bhsd(&mut d_q, shape_q)?,
        TensorMut::bhsd(&mut d_k, shape_k)?,
        TensorMut::bhsd(&mut d_v, shape_v)?,
    );
    Attention::new(&Device::cpu(), problem)?.backward(&inputs, &kept, &given, &mut gradients)?;
    let device = q.device();
    let tensor =
        |data, shape: [usize; 4]| B::float_from_data(TensorData::new(data, shape), &device);
    Ok(Gradients {
        d_q: tensor(d_q, shape_q),
        d_k: tensor(d_k, shape_k),
        d_v: tensor(d_v, shape_v),
    })
}

/// q, k and v as ferroflash takes them.
fn inputs<'a, T: HostElement>(
    q: &'a View<T>,
    k: &'a View<T>,
    v: &'a View<T>,
) -> Result<Inputs<'a>, Error> {
    let q: Tensor = q.tensor(Argument::Q)?;
    let k = k.tensor(Argument::K)?;
    let v = v.tensor(Argument::V)?;
    Ok(Inputs::new(&q, &k, &v))
}

/// Statistics of rows, f32, as one slice.
fn rows<B: HostBackend<f32>>(
    argument: Argument,
    tensor: &FloatTensor<B>,
) -> Result<std::borrow::Cow<'_, [f32]>, Error> {
    check::dtype(argument, tensor, &[burn::tensor::DType::F32])?;
    Ok(B::view(tensor).into_gapless())
}

/// As many zeros as a tensor of this shape has elements.
fn zeros<T: HostElement>(shape: [usize; 4]) -> Result<Vec<T>, Error> {
    let n_elems = ferroflash::Layout::bhsd(shape)?.n_elems()?;
    Ok(vec![<T as bytemuck::Zeroable>::zeroed(); n_elems])
}
