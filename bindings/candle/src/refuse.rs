//! Arguments of candle-flash-attn that ferroflash does not support: refused by name, unless the given value has no effect.

use candle_core::Tensor;

use crate::error::Error;

/// No ranges of keys that some queries see regardless of the mask.
pub(crate) fn mm_prefix(mm_prefix_ranges: Option<&Tensor>) -> Result<(), Error> {
    match mm_prefix_ranges {
        None => Ok(()),
        Some(ranges) => Err(Error::NotOffered {
            argument: "mm_prefix_ranges",
            given: described(ranges),
            allowed: "none: ferroflash's masks have no ranges of their own for each sequence",
        }),
    }
}

/// Numbers of 16 or 32 bits have no scales.
pub(crate) fn descale(descale: &Tensor) -> Error {
    Error::NotOffered {
        argument: "k_descale",
        given: described(descale),
        allowed: "none, but of a cache of F8E4M3",
    }
}

fn described(tensor: &Tensor) -> String {
    format!("a tensor {:?} of {:?}", tensor.dims(), tensor.dtype())
}
