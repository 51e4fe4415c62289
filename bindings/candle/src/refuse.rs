//! What candle-flash-attn takes and ferroflash does not: refused by name, unless the value given changes nothing.

use candle_core::Tensor;

use crate::error::Error;

/// Of ranges of keys that some queries see whatever the mask says, none.
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

/// Of numbers in 16 or 32 bits there are no scales.
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
