//! A launch's tensor maps, encoded by the driver from the plan's descriptions.

use std::sync::Mutex;

use ferroflash_driver::extra::tensor_map::{ElementType, Tiled, encode};
use ferroflash_kernels::params::{BOX_COLUMNS, KernelParams, Slot, TensorMap};

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
    /// Puts what the driver makes of it in place of each description among the parameters. Where another thread is at the same
    /// launch, nobody waits: both encode.
    pub(super) fn encode(
        &self,
        params: &mut impl KernelParams,
        dtype: Dtype,
    ) -> Result<(), DriverError> {
        let mut described = [TensorMap::default(); MOST];
        let mut n_maps = 0;
        params.slots(&mut |slot| {
            if let Slot::Map(_, map) = slot {
                described[n_maps] = *map;
                n_maps += 1;
            }
        });
        if n_maps == 0 {
            return Ok(());
        }
        let mut last = self.last.try_lock().ok();
        let known = last.as_ref().and_then(|last| **last);
        let encoded = match known.filter(|known| known.described == described) {
            Some(known) => known.encoded,
            None => {
                let mut encoded = described;
                // What the call does not have, no kernel copies.
                for map in encoded[..n_maps].iter_mut().filter(|map| map.base != 0) {
                    *map = encode_map(map, dtype)?;
                }
                if let Some(last) = &mut last {
                    **last = Some(Encoded { described, encoded });
                }
                encoded
            }
        };
        let mut encoded = encoded.into_iter();
        params.slots(&mut |slot| {
            if let Slot::Map(_, map) = slot
                && let Some(encoded) = encoded.next()
            {
                *map = encoded;
            }
        });
        Ok(())
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
