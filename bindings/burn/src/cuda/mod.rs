//! Tensors of Burn's CUDA devices, in place, on ferroflash's kernels: f16 and bf16.
//!
//! CubeCL, which runs Burn's CUDA work, gives the address of a tensor's memory, but not its stream. So a call waits twice:
//! for CubeCL's work that makes the inputs, and for ferroflash's, which runs on a stream of its own. MISSING.md says
//! what Burn would have to give for calls that wait for nothing. Both libraries work in the device's primary context, so the
//! addresses of one mean the same to the other.

mod fusion;
mod memory;
mod session;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::{CubeBackend, CubeDevice};
use ferroflash::error::Argument;
use ferroflash::prepared::Layouts;
use ferroflash::validate::Pass;
use ferroflash::{Attention, Inputs, Outputs, Saved as Kept};

use crate::backend::{FlashBackend, Forward, Gradients, OutputGradients, Saved};
use crate::check;
use crate::error::Error;
use crate::options::Options;
use memory::Lent;
use session::Session;

/// Whether a device of CubeCL is a CUDA device.
pub(crate) fn is_cuda(device: &CubeDevice) -> bool {
    ordinal(device).is_some()
}

/// The place of a CUDA device in the driver's list.
fn ordinal(device: &CubeDevice) -> Option<u32> {
    match device {
        CubeDevice::Cuda(device) => u32::try_from(device.index).ok(),
        _ => None,
    }
}

/// The problem of q, k and v, and what computes on their device.
fn session(
    inputs: [&FloatTensor<CubeBackend>; 3],
    options: &Options,
) -> Result<(Session, Attention), Error> {
    let problem = check::problem(inputs, options)?;
    let device = inputs[0].device();
    for (argument, input) in [Argument::Q, Argument::K, Argument::V]
        .into_iter()
        .zip(inputs)
    {
        let given = input.device();
        if !is_cuda(&given) {
            return Err(Error::Backend {
                argument,
                given: format!("{given:?}"),
                allowed: &["Cuda"],
            });
        }
        if given != device {
            return Err(Error::MixedDevices {
                argument,
                given: format!("{given:?}"),
                needed: format!("{device:?}"),
            });
        }
    }
    let session = Session::on(ordinal(&device).unwrap_or_default())?;
    let attention = Attention::new(session.device(), problem)?;
    Ok((session, attention))
}

impl FlashBackend for CubeBackend {
    fn flash_forward(
        q: &FloatTensor<CubeBackend>,
        k: &FloatTensor<CubeBackend>,
        v: &FloatTensor<CubeBackend>,
        options: &Options,
    ) -> Result<Forward<CubeBackend>, Error> {
        let (session, attention) = session([q, k, v], options)?;
        let problem = attention.problem();
        let forward = Forward {
            o: empty(q, check::shape_o(problem).into(), q.dtype()),
            lse: empty(q, problem.shape_lse().into(), DType::F32),
        };
        let gpu = session.gpu()?;
        let [q, k, v] = [
            Lent::to_read(Argument::Q, q)?,
            Lent::to_read(Argument::K, k)?,
            Lent::to_read(Argument::V, v)?,
        ];
        let mut o = Lent::to_write(Argument::O, &forward.o)?;
        let mut lse = Lent::to_write(Argument::Lse, &forward.lse)?;
        let layouts = layouts([&q, &k, &v, &o])?;
        let prepared = session.plans().forward(&attention, &layouts)?;
        let inputs = Inputs::new(&q.tensor(gpu)?, &k.tensor(gpu)?, &v.tensor(gpu)?);
        for lent in [&q, &k, &v, &o, &lse] {
            lent.wait()?;
        }
        let mut outputs = Outputs::new(o.tensor_mut(gpu)?, lse.vector_mut(gpu));
        session.run(|queue| Ok(prepared.forward(queue, &inputs, &mut outputs)?))?;
        Ok(forward)
    }

    fn check_flash_backward(
        q: &FloatTensor<CubeBackend>,
        k: &FloatTensor<CubeBackend>,
        v: &FloatTensor<CubeBackend>,
        options: &Options,
    ) -> Result<(), Error> {
        let (_session, attention) = session([q, k, v], options)?;
        let plan = attention.explain(Pass::Backward)?.plan;
        plan.map(|_| ())
            .map_err(|error| Error::Ferroflash(error.into()))
    }

    fn flash_backward(
        saved: &Saved<CubeBackend>,
        of_output: &OutputGradients<CubeBackend>,
        options: &Options,
    ) -> Result<Gradients<CubeBackend>, Error> {
        let Saved { q, k, v, forward } = saved;
        let (session, attention) = session([q, k, v], options)?;
        let problem = attention.problem();
        let gradients = Gradients {
            d_q: empty(q, check::shape_q(problem).into(), q.dtype()),
            d_k: empty(q, check::shape_k(problem).into(), q.dtype()),
            d_v: empty(q, check::shape_v(problem).into(), q.dtype()),
        };
        let gpu = session.gpu()?;
        let [q, k, v, o, d_o] = [
            Lent::to_read(Argument::Q, q)?,
            Lent::to_read(Argument::K, k)?,
            Lent::to_read(Argument::V, v)?,
            Lent::to_read(Argument::O, &forward.o)?,
            Lent::to_read(Argument::DO, &of_output.d_o)?,
        ];
        let lse = Lent::without_gaps(Argument::Lse, &forward.lse)?;
        let d_lse = match &of_output.d_lse {
            Some(d_lse) => Some(Lent::without_gaps(Argument::DLse, d_lse)?),
            None => None,
        };
        let mut d_q = Lent::to_write(Argument::DQ, &gradients.d_q)?;
        let mut d_k = Lent::to_write(Argument::DK, &gradients.d_k)?;
        let mut d_v = Lent::to_write(Argument::DV, &gradients.d_v)?;
        let layouts = layouts([&q, &k, &v, &o, &d_o, &d_q, &d_k, &d_v])?;
        let prepared = session.plans().backward(&attention, &layouts)?;
        let inputs = Inputs::new(&q.tensor(gpu)?, &k.tensor(gpu)?, &v.tensor(gpu)?);
        let kept = Kept::new(&o.tensor(gpu)?, lse.vector(gpu));
        let given = ferroflash::OutputGradients::new(&d_o.tensor(gpu)?);
        let given = match &d_lse {
            Some(d_lse) => given.d_lse(d_lse.vector(gpu)),
            None => given,
        };
        for lent in [&q, &k, &v, &o, &d_o, &lse, &d_q, &d_k, &d_v] {
            lent.wait()?;
        }
        if let Some(d_lse) = &d_lse {
            d_lse.wait()?;
        }
        let mut written = ferroflash::Gradients::new(
            d_q.tensor_mut(gpu)?,
            d_k.tensor_mut(gpu)?,
            d_v.tensor_mut(gpu)?,
        );
        session
            .run(|queue| Ok(prepared.backward(queue, &inputs, &kept, &given, &mut written)?))?;
        Ok(gradients)
    }
}

/// How tensors lie, for a plan.
fn layouts<const N: usize>(tensors: [&Lent; N]) -> Result<Layouts, Error> {
    let mut layouts = Layouts::contiguous();
    for tensor in tensors {
        layouts = layouts.with(tensor.argument(), tensor.layout()?);
    }
    Ok(layouts)
}

/// New memory beside a tensor.
fn empty(
    beside: &FloatTensor<CubeBackend>,
    shape: Shape,
    dtype: DType,
) -> FloatTensor<CubeBackend> {
    let n_bytes = shape.num_elements() * dtype.size();
    let handle = beside.client.empty(n_bytes);
    let (client, device) = (beside.client.clone(), beside.device.clone());
    FloatTensor::<CubeBackend>::new_contiguous(client, device, shape, handle, dtype)
}
