//! Tensors of Burn's CPU backend Flex: f32, f16 and bf16, in place if their strides allow it.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use ferroflash::arguments::Argument;

use super::host::Host;
use crate::check;
use crate::error::Error;

impl Host for Flex {
    const DTYPES: &'static [DType] = check::DTYPES;

    fn at(_argument: Argument, tensor: &FlexTensor) -> Result<(u64, Vec<isize>), Error> {
        let layout = tensor.layout();
        let first = layout.start_offset() * tensor.dtype().size();
        // An empty tensor may begin behind the end.
        let bytes = tensor.bytes().get(first..).unwrap_or_default();
        let address = bytes.as_ptr().expose_provenance() as u64;
        Ok((address, layout.strides().to_vec()))
    }

    fn gathered(tensor: &FlexTensor) -> Option<FlexTensor> {
        (!tensor.is_contiguous()).then(|| tensor.to_contiguous())
    }
}
