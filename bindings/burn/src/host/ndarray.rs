//! Tensors of Burn's CPU backend NdArray: f32, in place where they lie without gaps in any order of dimensions.
// Burn 0.22 calls the backend deprecated and still ships it.
#![allow(deprecated)]

use burn::backend::NdArray;
use burn::backend::ndarray::NdArrayTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;
use ferroflash::error::Argument;

use super::{HostBackend, View};
use crate::backend::{FlashBackend, Forward, Gradients, OutputGradients, Saved};
use crate::check;
use crate::error::Error;
use crate::options::Options;

const DTYPES: &[DType] = &[DType::F32];

impl HostBackend<f32> for NdArray {
    fn view(tensor: &FloatTensor<NdArray>) -> View<'_, f32> {
        let NdArrayTensor::F32(storage) = tensor else {
            // Both passes check the type first.
            return View::gapless(Vec::new(), &[]);
        };
        let array = storage.view();
        let (shape, strides) = (array.shape(), array.strides());
        // In the order of memory the first element is the tensor's own where no stride is negative.
        match array.to_slice_memory_order() {
            Some(elements) if strides.iter().all(|&stride| stride >= 0) => {
                View::strided(elements, shape, strides, 0)
            }
            _ => View::gapless(array.iter().copied().collect(), shape),
        }
    }
}

impl FlashBackend for NdArray {
    fn flash_forward(
        q: &FloatTensor<NdArray>,
        k: &FloatTensor<NdArray>,
        v: &FloatTensor<NdArray>,
        options: &Options,
    ) -> Result<Forward<NdArray>, Error> {
        check::dtype(Argument::Q, q, DTYPES)?;
        super::forward::<NdArray, f32>(q, k, v, options)
    }

    fn check_flash_backward(
        q: &FloatTensor<NdArray>,
        k: &FloatTensor<NdArray>,
        v: &FloatTensor<NdArray>,
        options: &Options,
    ) -> Result<(), Error> {
        check::dtype(Argument::Q, q, DTYPES)?;
        check::problem([q, k, v], options).map(|_| ())
    }

    fn flash_backward(
        saved: &Saved<NdArray>,
        of_output: &OutputGradients<NdArray>,
        options: &Options,
    ) -> Result<Gradients<NdArray>, Error> {
        check::dtype(Argument::Q, &saved.q, DTYPES)?;
        super::backward::<NdArray, f32>(saved, of_output, options)
    }
}
