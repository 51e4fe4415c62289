//! Both passes on tensors of Burn, in any memory.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;
use ferroflash::arguments::Argument;
use ferroflash::raw::Call;
use ferroflash::{Attention, Pass};

use crate::backend::{FlashBackend, Forward, Gradients, OutputGradients, Saved};
use crate::check;
use crate::error::Error;
use crate::memory::{Memory, Place, Run};
use crate::options::Options;

impl<B: Memory> FlashBackend for B {
    fn flash_forward(
        q: &FloatTensor<B>,
        k: &FloatTensor<B>,
        v: &FloatTensor<B>,
        options: &Options,
    ) -> Result<Forward<B>, Error> {
        let (attention, place) = attention::<B>([q, k, v], options)?;
        let problem = attention.problem();
        let shape_o = check::bhsd(problem.shape_o());
        let mut o = B::room(q, shape_o.into(), q.dtype());
        let mut lse = B::room(q, problem.shape_lse().into(), DType::F32);
        let mut run = Run::<B>::new([q, k, v])?;
        run.write(Argument::O, &mut o, shape_o)?;
        run.write_rows(Argument::Lse, &mut lse)?;
        run.run(Call::forward, &attention, &place)?;
        Ok(Forward {
            o: B::tensor(q, o),
            lse: B::tensor(q, lse),
        })
    }

    fn check_flash_backward(
        q: &FloatTensor<B>,
        k: &FloatTensor<B>,
        v: &FloatTensor<B>,
        options: &Options,
    ) -> Result<(), Error> {
        let (attention, _place) = attention::<B>([q, k, v], options)?;
        let plan = attention.explain(Pass::Backward)?.plan;
        plan.map(|_| ())
            .map_err(|error| Error::Ferroflash(error.into()))
    }

    fn flash_backward(
        saved: &Saved<B>,
        of_output: &OutputGradients<B>,
        options: &Options,
    ) -> Result<Gradients<B>, Error> {
        let Saved { q, k, v, forward } = saved;
        let (attention, place) = attention::<B>([q, k, v], options)?;
        let problem = attention.problem();
        let shapes = [problem.shape_q(), problem.shape_k(), problem.shape_v()].map(check::bhsd);
        let [mut d_q, mut d_k, mut d_v] = shapes.map(|shape| B::room(q, shape.into(), q.dtype()));
        let n_rows = problem.shape_lse().iter().product();
        let mut run = Run::<B>::new([q, k, v])?;
        run.read(Argument::O, &forward.o)?;
        run.read(Argument::DO, &of_output.d_o)?;
        run.read_rows(Argument::Lse, &forward.lse, n_rows)?;
        if let Some(d_lse) = &of_output.d_lse {
            run.read_rows(Argument::DLse, d_lse, n_rows)?;
        }
        let [of_q, of_k, of_v] = shapes;
        run.write(Argument::DQ, &mut d_q, of_q)?;
        run.write(Argument::DK, &mut d_k, of_k)?;
        run.write(Argument::DV, &mut d_v, of_v)?;
        run.run(Call::backward, &attention, &place)?;
        Ok(Gradients {
            d_q: B::tensor(q, d_q),
            d_k: B::tensor(q, d_k),
            d_v: B::tensor(q, d_v),
        })
    }
}

/// The problem of q, k and v, on their device.
fn attention<B: Memory>(
    inputs: [&FloatTensor<B>; 3],
    options: &Options,
) -> Result<(Attention, Arc<Place>), Error> {
    check::dtype(Argument::Q, inputs[0], B::DTYPES)?;
    let problem = check::problem(inputs, options)?;
    let place = B::place(inputs)?;
    Ok((Attention::new(&place.device, problem)?, place))
}
