//! Parameters of the kernel that clears gradients of keys that no query sees.

use super::{BlockLists, Shape, TensorView, Window, parameters};

parameters! {
    /// Parameters of the kernel that clears gradients of keys that no query sees.
    pub struct ClearParams {
        /// Gradient of the keys.
        pub d_k: TensorView = Tensor(DK),
        /// Gradient of the values.
        pub d_v: TensorView = Tensor(DV),
        /// Sizes.
        pub shape: Shape,
        /// Window.
        pub window: Window,
        /// As in [`super::ForwardParams`].
        pub blocks: BlockLists = Within,
        /// Rows of the tiles that have lists.
        pub tile_rows: u32,
        /// Always 0.
        pub reserved: u32,
    }
}

const _: () = assert!(size_of::<ClearParams>() == 2 * 32 + 32 + 16 + 40 + 8);
