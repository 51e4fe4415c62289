//! What candle-flash-attn takes and ferroflash does not: refused by name, unless the value given changes nothing.

use candle_core::Tensor;

use crate::error::Error;

/// No slopes are neutral without looking at their values, which lie on a device.
pub(crate) fn alibi(alibi_slopes: Option<&Tensor>) -> Result<(), Error> {
    match alibi_slopes {
        None => Ok(()),
        Some(slopes) => Err(Error::NotOffered {
            argument: "alibi_slopes",
            given: described(slopes),
            allowed: "none: ferroflash has no ALiBi",
        }),
    }
}

/// 0 means no soft cap, as in candle-flash-attn.
pub(crate) fn softcap(softcap: Option<f32>) -> Result<(), Error> {
    match softcap {
        None | Some(0.0) => Ok(()),
        Some(softcap) => Err(Error::NotOffered {
            argument: "softcap",
            given: softcap.to_string(),
            allowed: "0, or none: ferroflash has no soft cap",
        }),
    }
}

/// Keys and values in pages.
pub(crate) fn paged(block_table: &Tensor, page_block_size: usize) -> Error {
    Error::NotOffered {
        argument: "block_table",
        given: format!(
            "{}, page_block_size {page_block_size}",
            described(block_table)
        ),
        allowed: "none: ferroflash reads no paged keys and values",
    }
}

fn described(tensor: &Tensor) -> String {
    format!("a tensor {:?} of {:?}", tensor.dims(), tensor.dtype())
}
