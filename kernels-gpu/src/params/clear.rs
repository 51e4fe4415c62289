//! What the kernel is given that clears gradients of keys that no query sees.

use super::argument::{Argument, KernelParams, Slot};
use super::{BlockLists, Shape, TensorView, Window};

/// Parameters of the kernel that clears gradients of keys that no query sees.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClearParams {
    /// Gradient of the keys.
    pub d_k: TensorView,
    /// Gradient of the values.
    pub d_v: TensorView,
    /// Sizes.
    pub shape: Shape,
    /// Window.
    pub window: Window,
    /// As in [`super::ForwardParams`].
    pub blocks: BlockLists,
    /// Rows of the tiles that have lists.
    pub tile_rows: u32,
    /// Always 0.
    pub reserved: u32,
}

impl KernelParams for ClearParams {
    fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
        f(Slot::Tensor(Argument::DK, &mut self.d_k));
        f(Slot::Tensor(Argument::DV, &mut self.d_v));
        self.blocks.slots(f);
    }
}

const _: () = assert!(size_of::<ClearParams>() == 2 * 32 + 32 + 16 + 40 + 8);
