//! A launch's tensor maps, encoded by the driver from the plan's descriptions.

use std::sync::Mutex;

use ferroflash_driver::extra::tensor_map::{ElementType, Tiled, encode};
use ferroflash_kernels::params::{BOX_COLUMNS, TensorMap, TmaBackwardParams, TmaForwardParams};

use crate::dtype::Dtype;
use crate::error::DriverError;

/// The maps of one launch, encoded when it is first enqueued and again when its tensors lie elsewhere.
#[derive(Debug, Default)]
pub(super) struct TensorMaps {
    last: Mutex<Option<Encoded>>,
}

/// The most maps of a launch.
const MOST: usize = 6;

/// Maps as they are described, and as the driver encodes them; a launch may have fewer.
#[derive(Clone, Copy, Debug)]
struct Encoded {
    described: [TensorMap; MOST],
    encoded: [TensorMap; MOST],
}

impl TensorMaps {
    /// The parameters with encoded maps in place of the descriptions.
    pub(super) fn forward(
        &self,
        params: &TmaForwardParams,
        dtype: Dtype,
    ) -> Result<TmaForwardParams, DriverError> {
        let [q, k, v, o] = self.encoded([params.q, params.k, params.v, params.o], dtype)?;
        Ok(TmaForwardParams {
            q,
            k,
            v,
            o,
            ..*params
        })
    }

    /// The same of a backward pass.
    pub(super) fn backward(
        &self,
        params: &TmaBackwardParams,
        dtype: Dtype,
    ) -> Result<TmaBackwardParams, DriverError> {
        let &TmaBackwardParams {
            q,
            k,
            v,
            d_o,
            d_k,
            d_v,
            pass,
        } = params;
        let [q, k, v, d_o, d_k, d_v] = self.encoded([q, k, v, d_o, d_k, d_v], dtype)?;
        Ok(TmaBackwardParams {
            q,
            k,
            v,
            d_o,
            d_k,
            d_v,
            pass,
        })
    }

    /// The maps, encoded. Where another thread is at the same launch, nobody waits: both encode.
    fn encoded<const N: usize>(
        &self,
        maps: [TensorMap; N],
        dtype: Dtype,
    ) -> Result<[TensorMap; N], DriverError> {
        const { assert!(N <= MOST) };
        let mut described = [TensorMap::default(); MOST];
        described[..N].copy_from_slice(&maps);
        let mut last = self.last.try_lock().ok();
        let known = last.as_ref().and_then(|last| **last);
        let encoded = match known.filter(|known| known.described == described) {
            Some(known) => known.encoded,
            None => {
                let mut encoded = described;
                for map in &mut encoded[..N] {
                    *map = encode_map(map, dtype)?;
                }
                if let Some(last) = &mut last {
                    **last = Some(Encoded { described, encoded });
                }
                encoded
            }
        };
        Ok(std::array::from_fn(|idx| encoded[idx]))
    }
}

/// What the driver makes of a description.
pub(super) fn encode_map(map: &TensorMap, dtype: Dtype) -> Result<TensorMap, DriverError> {
    let tiled = Tiled {
        element: match dtype {
            Dtype::F16 => ElementType::F16,
            // Maps are made of problems whose elements have two bytes.
            Dtype::Bf16 | Dtype::F32 => ElementType::Bf16,
        },
        address: map.base,
        sizes: map.sizes,
        strides: map.strides,
        box_sizes: [BOX_COLUMNS, map.box_rows as u32, map.box_heads as u32, 1],
    };
    Ok(TensorMap::from_driver(encode(&tiled)?.0))
}
