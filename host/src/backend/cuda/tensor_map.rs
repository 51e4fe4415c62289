//! Tensor maps, encoded by the driver from the plan's descriptions, and kept.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use ferroflash_driver::extra::tensor_map::{ElementType, Tiled, encode};
use ferroflash_kernels::params::{KernelParams, Slot, TensorMap};
use lru::LruCache;

use crate::dtype::Dtype;
use crate::error::DriverError;

/// How many maps a device keeps: those of keys and values of all layers of a model, of some models. A map is 128 bytes.
const N_KEPT: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// The maps that were encoded last. What the driver makes of a description never changes.
pub(super) struct TensorMaps {
    kept: Mutex<LruCache<Described, TensorMap>>,
}

/// The driver's arguments for a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Described {
    address: u64,
    sizes: [u64; 4],
    strides: [u64; 3],
    boxes: [u64; 3],
    dtype: Dtype,
}

impl Default for TensorMaps {
    fn default() -> TensorMaps {
        TensorMaps {
            kept: Mutex::new(LruCache::new(N_KEPT)),
        }
    }
}

impl TensorMaps {
    /// Replaces each description among the parameters by the encoded map. If two threads encode the same map, neither waits for the other.
    pub(super) fn encode(
        &self,
        params: &mut impl KernelParams,
        dtype: Dtype,
    ) -> Result<(), DriverError> {
        let mut kept = self.kept.try_lock().ok();
        let mut outcome = Ok(());
        params.slots(&mut |slot| {
            // What the call does not have, no kernel copies.
            if let Slot::Map(_, map) = slot
                && map.base != 0
                && outcome.is_ok()
            {
                match kept_or_encoded(map, dtype, kept.as_deref_mut()) {
                    Ok(encoded) => *map = encoded,
                    Err(error) => outcome = Err(error),
                }
            }
        });
        outcome
    }
}

fn kept_or_encoded(
    map: &TensorMap,
    dtype: Dtype,
    kept: Option<&mut LruCache<Described, TensorMap>>,
) -> Result<TensorMap, DriverError> {
    let Some(kept) = kept else {
        return encode_map(map, dtype);
    };
    let described = Described {
        address: map.base,
        sizes: map.sizes,
        strides: map.strides,
        boxes: [map.box_rows, map.box_heads, map.element_bytes],
        dtype,
    };
    if let Some(encoded) = kept.get(&described) {
        return Ok(*encoded);
    }
    let encoded = encode_map(map, dtype)?;
    kept.push(described, encoded);
    Ok(encoded)
}

/// The encoded map of a description.
pub(super) fn encode_map(map: &TensorMap, dtype: Dtype) -> Result<TensorMap, DriverError> {
    let tiled = Tiled {
        element: match dtype {
            _ if map.element_bytes == 1 => ElementType::U8,
            Dtype::F16 => ElementType::F16,
            // Other elements have two bytes.
            Dtype::Bf16 | Dtype::F32 => ElementType::Bf16,
        },
        address: map.base,
        sizes: map.sizes,
        strides: map.strides,
        box_sizes: [
            map.box_columns(),
            map.box_rows as u32,
            map.box_heads as u32,
            1,
        ],
    };
    Ok(TensorMap::from_driver(encode(&tiled)?.0))
}
