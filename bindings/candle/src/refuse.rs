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
