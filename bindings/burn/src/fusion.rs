//! Tensors under Burn's fusion, which queues operations: those that compute the inputs run first, and the outputs are returned as tensors that are
//! already computed.
//!
//! The type of a CUDA tensor depends on whether any crate of the program enables Burn's `fusion`; Burn's default features do.

use burn::backend::tensor::FloatTensor;
use burn_fusion::stream::StreamId;
use burn_fusion::{Fusion, FusionBackend, NoOp};
use burn_ir::{InitOperationIr, OperationIr};

use crate::backend::{FlashBackend, Forward, Gradients, OutputGradients, Saved};
use crate::error::Error;
use crate::options::Options;

impl<B: FusionBackend + FlashBackend> FlashBackend for Fusion<B> {
    fn flash_forward(
        q: &FloatTensor<Self>,
        k: &FloatTensor<Self>,
        v: &FloatTensor<Self>,
        options: &Options,
    ) -> Result<Forward<Self>, Error> {
        let [made_q, k, v] = [q, k, v].map(made::<B>);
        let Forward { o, lse } = B::flash_forward(&made_q, &k, &v, options)?;
        Ok(Forward {
            o: queued::<B>(q, o),
            lse: queued::<B>(q, lse),
        })
    }

    fn check_flash_backward(
        q: &FloatTensor<Self>,
        k: &FloatTensor<Self>,
        v: &FloatTensor<Self>,
        options: &Options,
    ) -> Result<(), Error> {
        let [q, k, v] = [q, k, v].map(made::<B>);
        B::check_flash_backward(&q, &k, &v, options)
    }

    fn flash_backward(
        saved: &Saved<Self>,
        of_output: &OutputGradients<Self>,
        options: &Options,
    ) -> Result<Gradients<Self>, Error> {
        let Saved { q, k, v, forward } = saved;
        let made_saved = Saved {
            q: made::<B>(q),
            k: made::<B>(k),
            v: made::<B>(v),
            forward: Forward {
                o: made::<B>(&forward.o),
                lse: made::<B>(&forward.lse),
            },
        };
        let of_output = OutputGradients {
            d_o: made::<B>(&of_output.d_o),
            d_lse: of_output.d_lse.as_ref().map(made::<B>),
        };
        let Gradients { d_q, d_k, d_v } = B::flash_backward(&made_saved, &of_output, options)?;
        Ok(Gradients {
            d_q: queued::<B>(q, d_q),
            d_k: queued::<B>(q, d_k),
            d_v: queued::<B>(q, d_v),
        })
    }
}

/// The tensor of the inner backend, after the queued operations that compute it.
fn made<B: FusionBackend>(tensor: &FloatTensor<Fusion<B>>) -> FloatTensor<B> {
    tensor.client.resolve_tensor_float::<B>(tensor.clone())
}

/// A computed tensor, for operations queued on the device of `beside`.
fn queued<B: FusionBackend>(
    beside: &FloatTensor<Fusion<B>>,
    tensor: FloatTensor<B>,
) -> FloatTensor<Fusion<B>> {
    use burn::backend::TensorMetadata;
    let (shape, dtype) = (tensor.shape(), tensor.dtype());
    let handle = B::float_tensor_handle(tensor);
    let register = || beside.client.register_tensor_handle(handle);
    let init = OperationIr::Init(InitOperationIr::create(shape, dtype, register));
    let outputs = beside
        .client
        .register(StreamId::current(), init, NoOp::<B>::new());
    single(outputs)
}

/// The output of an operation that has one.
fn single<T>(outputs: Vec<T>) -> T {
    let [output] = <[T; 1]>::try_from(outputs).unwrap_or_else(|_| {
        // An `Init` names one tensor, and Burn gives as many outputs as are named.
        unreachable!("an Init operation has one output")
    });
    output
}
