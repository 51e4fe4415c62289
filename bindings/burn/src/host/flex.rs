//! Tensors of Burn's CPU backend Flex: f32, f16 and bf16, in place where their strides allow it.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;
use ferroflash::Dtype;
use ferroflash::error::Argument;
use half::{bf16, f16};

use super::{HostBackend, HostElement, View};
use crate::backend::{FlashBackend, Forward, Gradients, OutputGradients, Saved};
use crate::check;
use crate::error::Error;
use crate::options::Options;

const DTYPES: &[DType] = check::DTYPES;

impl<T: HostElement> HostBackend<T> for Flex {
    fn view(tensor: &FloatTensor<Flex>) -> View<'_, T> {
        let layout = tensor.layout();
        let shape: Vec<usize> = tensor.shape().iter().copied().collect();
        View::strided(
            tensor.storage::<T>(),
            &shape,
            layout.strides(),
            layout.start_offset(),
        )
    }
}

impl FlashBackend for Flex {
    fn flash_forward(
        q: &FloatTensor<Flex>,
        k: &FloatTensor<Flex>,
        v: &FloatTensor<Flex>,
        options: &Options,
    ) -> Result<Forward<Flex>, Error> {
        match check::dtype(Argument::Q, q, DTYPES)? {
            Dtype::F32 => super::forward::<Flex, f32>(q, k, v, options),
            Dtype::F16 => super::forward::<Flex, f16>(q, k, v, options),
            Dtype::Bf16 => super::forward::<Flex, bf16>(q, k, v, options),
        }
    }

    fn check_flash_backward(
        q: &FloatTensor<Flex>,
        k: &FloatTensor<Flex>,
        v: &FloatTensor<Flex>,
        options: &Options,
    ) -> Result<(), Error> {
        check::problem([q, k, v], options).map(|_| ())
    }

    fn flash_backward(
        saved: &Saved<Flex>,
        of_output: &OutputGradients<Flex>,
        options: &Options,
    ) -> Result<Gradients<Flex>, Error> {
        match check::dtype(Argument::Q, &saved.q, DTYPES)? {
            Dtype::F32 => super::backward::<Flex, f32>(saved, of_output, options),
            Dtype::F16 => super::backward::<Flex, f16>(saved, of_output, options),
            Dtype::Bf16 => super::backward::<Flex, bf16>(saved, of_output, options),
        }
    }
}
