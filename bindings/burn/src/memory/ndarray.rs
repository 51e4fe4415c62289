//! Tensors of Burn's CPU backend NdArray: f32, in place if their strides allow it.
// Burn 0.22 calls the backend deprecated and still ships it.
#![allow(deprecated)]

use burn::backend::ndarray::NdArrayTensor;
use burn::backend::{NdArray, TensorMetadata};
use burn::tensor::DType;
use ferroflash::arguments::Argument;

use super::host::Host;
use crate::error::Error;

impl Host for NdArray {
    const DTYPES: &'static [DType] = &[DType::F32];

    fn at(argument: Argument, tensor: &NdArrayTensor) -> Result<(u64, Vec<isize>), Error> {
        let NdArrayTensor::F32(storage) = tensor else {
            return Err(Error::Dtype {
                argument,
                given: tensor.dtype(),
                allowed: <NdArray as Host>::DTYPES,
            });
        };
        let array = storage.view();
        let address = array.as_ptr().expose_provenance() as u64;
        Ok((address, array.strides().to_vec()))
    }

    fn gathered(tensor: &NdArrayTensor) -> Option<NdArrayTensor> {
        let NdArrayTensor::F32(storage) = tensor else {
            return None;
        };
        let array = storage.view();
        let gathered = || array.as_standard_layout().into_owned().into_shared().into();
        (!array.is_standard_layout()).then(gathered)
    }
}
