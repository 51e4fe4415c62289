//! A tensor of candle's graph, held while a pass reads its memory.

use candle_core::{Layout, Storage, StorageRef, Tensor};

/// A tensor whose memory nobody takes away or writes for as long as this.
pub(crate) struct Guarded<'a> {
    /// As which argument it is read.
    pub(crate) argument: &'static str,
    /// The tensor.
    pub(crate) tensor: &'a Tensor,
    /// Shape, strides, first element.
    pub(crate) layout: &'a Layout,
    storage: StorageRef<'a>,
}

impl<'a> Guarded<'a> {
    pub(crate) fn of(argument: &'static str, tensor: &'a Tensor) -> Guarded<'a> {
        let (storage, layout) = tensor.storage_and_layout();
        Guarded {
            argument,
            tensor,
            layout,
            storage,
        }
    }

    /// Its memory, on whichever device.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }
}
