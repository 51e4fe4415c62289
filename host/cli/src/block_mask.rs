//! The block mask of a file: tensor `block_mask`, metadata `block_q` and `block_k`.

use std::collections::HashMap;

use ferroflash::{BlockMask, Inputs, Problem};
use safetensors::{Dtype, SafeTensors};

/// Rows or keys of a block where the metadata do not say.
const DEFAULT: usize = BlockMask::MULTIPLE;

/// A map as it stands in the file.
#[derive(Clone, Debug)]
pub struct StoredMap {
    bytes: Vec<u8>,
    /// `[batch or 1, heads_q or 1, blocks of queries, blocks of keys]`.
    shape: [usize; 4],
    block_q: usize,
    block_k: usize,
}

/// The map, where the file has one.
pub fn read(
    tensors: &SafeTensors,
    metadata: &HashMap<String, String>,
) -> Result<Option<StoredMap>, String> {
    let Ok(tensor) = tensors.tensor("block_mask") else {
        return Ok(None);
    };
    if tensor.dtype() != Dtype::U8 {
        let given = tensor.dtype();
        return Err(format!("tensor block_mask is {given:?}; needed: U8"));
    }
    let shape = tensor.shape();
    let shape = <[usize; 4]>::try_from(shape).map_err(|_| {
        format!(
            "tensor block_mask has shape {shape:?}; needed: [batch or 1, heads_q or 1, blocks of queries, blocks of keys]"
        )
    })?;
    let size = |name: &str| match metadata.get(name) {
        None => Ok(DEFAULT),
        Some(text) => text
            .parse()
            .map_err(|_| format!("metadata {name} is {text:?}; it must be a number of rows")),
    };
    Ok(Some(StoredMap {
        bytes: tensor.data().to_vec(),
        shape,
        block_q: size("block_q")?,
        block_k: size("block_k")?,
    }))
}

impl StoredMap {
    /// The block mask whose maps these are: those of each batch entry, or head, where the shape has more than one.
    pub fn mask(&self) -> BlockMask {
        let mask = BlockMask::new(self.block_q, self.block_k);
        let mask = if self.shape[0] == 1 {
            mask
        } else {
            mask.per_batch()
        };
        if self.shape[1] == 1 {
            mask
        } else {
            mask.per_head()
        }
    }

    /// Whether the map has the shape that the problem needs.
    pub fn fits(&self, problem: &Problem) -> Result<(), String> {
        match problem.block_mask_shape() {
            Some(needed) if needed != self.shape => {
                let given = self.shape;
                Err(format!(
                    "tensor block_mask has shape {given:?}; needed: {needed:?}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// The inputs with it.
    pub fn put<'a>(&'a self, inputs: Inputs<'a>) -> Inputs<'a> {
        inputs.block_mask(&self.bytes)
    }
}
