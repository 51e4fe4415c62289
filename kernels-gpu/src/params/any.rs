//! The parameters of any kernel.

use core::ptr::slice_from_raw_parts;

use super::{
    AppendParams, BackwardParams, BlockListParams, ClearParams, CombineParams, DequantizeParams,
    Flash1ForwardParams, ForwardParams, KernelParams, MaskMapParams, MergeParams, QuantizeParams,
    SinkGradientParams, Slot, StandardParams, TensorGradientParams, TileListParams,
    TmaBackwardParams, TmaForwardParams,
};

macro_rules! any {
    ($($(#[$doc:meta])* $kernel:ident($params:ident),)*) => {
        /// The parameters of any kernel.
        #[allow(clippy::large_enum_variant, reason = "a plan has a few, and copies them")]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Params {
            $($(#[$doc])* $kernel($params),)*
        }

        impl Params {
            /// The address and the size of the struct, which a launch copies. Bytes between fields are uninitialised.
            pub fn bytes(&self) -> *const [u8] {
                match self {
                    $(Params::$kernel(params) => {
                        slice_from_raw_parts((&raw const *params).cast(), size_of::<$params>())
                    })*
                }
            }
        }

        impl KernelParams for Params {
            fn slots(&mut self, f: &mut dyn FnMut(Slot<'_>)) {
                match self {
                    $(Params::$kernel(params) => params.slots(f),)*
                }
            }
        }
    };
}

impl Params {
    /// The common parameters of the backward kernels of flash1, flash2 and flash3.
    pub fn backward(&self) -> Option<&BackwardParams> {
        match self {
            Params::Backward(params) => Some(params),
            Params::TmaBackward(params) => Some(&params.pass),
            _ => None,
        }
    }
}

any! {
    /// Of a forward kernel.
    Forward(ForwardParams),
    /// Of a flash1 forward kernel.
    Flash1Forward(Flash1ForwardParams),
    /// Of a flash3 forward kernel.
    TmaForward(TmaForwardParams),
    /// Of a backward kernel.
    Backward(BackwardParams),
    /// Of the flash3 backward kernel that copies by TMA.
    TmaBackward(TmaBackwardParams),
    /// Of a `standard` kernel.
    Standard(StandardParams),
    /// Of the kernel that clears gradients of keys that no query sees.
    Clear(ClearParams),
    /// Of the kernel that lists the tiles of sequences.
    TileList(TileListParams),
    /// Of the kernel that lists what a block mask leaves of tiles.
    BlockList(BlockListParams),
    /// Of the kernel that maps what a mask expression hides.
    MaskMap(MaskMapParams),
    /// Of the kernel that merges the results of splits.
    Combine(CombineParams),
    /// Of the kernel that merges attention over two parts of the keys.
    Merge(MergeParams),
    /// Of the kernel that appends rows to a cache, and turns rows.
    Append(AppendParams),
    /// Of the kernel that gives the gradients of sinks.
    SinkGradient(SinkGradientParams),
    /// Of the kernel that gives the gradient of a tensor which a score reads.
    TensorGradient(TensorGradientParams),
    /// Of the kernels that round a tensor to 8 bits.
    Quantize(QuantizeParams),
    /// Of the kernel that takes q, k and v out of 8 bits.
    Dequantize(DequantizeParams),
}
