//! Tensors as Hopper's copy engine, the TMA, knows them.

use core::mem::offset_of;

use super::{TmaBackwardParams, TmaForwardParams};

/// A tensor `[batch, seqlen, heads, head_dim]` as the tensor memory accelerator copies it, in boxes of `box_rows` rows of
/// each of `box_heads` heads and 128 bytes of columns in the 128-byte swizzle, one head's rows behind the other's: what the driver's
/// tensor map is made from, and what the emulator reads. At launch on a GPU the driver's 128 opaque bytes take its place:
/// [`TensorMap::from_driver`].
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorMap {
    /// Address of element `[0, 0, 0, 0]`; 16-byte aligned.
    pub base: u64,
    /// Elements along each dimension, the innermost first: head_dim, seqlen, heads, batch.
    pub sizes: [u64; 4],
    /// Bytes from one entry to the next: of rows, heads, batch entries; multiples of 16.
    pub strides: [u64; 3],
    /// Rows of a box, of each of its heads.
    pub box_rows: u64,
    /// Heads of a box.
    pub box_heads: u64,
    /// Bytes of an element: 1 or 2.
    pub element_bytes: u64,
    /// The rest of the driver's 128 bytes; 0.
    pub reserved: [u64; 5],
}

/// Bytes of a row of a [`TensorMap`]'s box.
pub const BOX_BYTES: u32 = 128;

/// Its columns in 16-bit elements.
pub const BOX_COLUMNS: u32 = BOX_BYTES / 2;

/// Of nothing, in elements of 16 bits.
impl Default for TensorMap {
    fn default() -> Self {
        TensorMap {
            base: 0,
            sizes: [0; 4],
            strides: [0; 3],
            box_rows: 0,
            box_heads: 0,
            element_bytes: 2,
            reserved: [0; 5],
        }
    }
}

impl TensorMap {
    /// Columns of a box.
    pub const fn box_columns(&self) -> u32 {
        BOX_BYTES / self.element_bytes as u32
    }

    /// The driver's encoding in place of the description.
    pub fn from_driver(opaque: [u64; 16]) -> TensorMap {
        let [
            base,
            s0,
            s1,
            s2,
            s3,
            r0,
            r1,
            r2,
            box_rows,
            box_heads,
            element_bytes,
            reserved @ ..,
        ] = opaque;
        TensorMap {
            base,
            sizes: [s0, s1, s2, s3],
            strides: [r0, r1, r2],
            box_rows,
            box_heads,
            element_bytes,
            reserved,
        }
    }
}

/// The tensor maps of the flash3 forward kernels, in the order of their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardMap {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output.
    O,
}

/// How many [`ForwardMap`]s there are.
pub const FORWARD_MAPS: u64 = 4;

/// The tensor maps of the flash3 backward kernel, in the order of its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardMap {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Gradient of the output.
    DO,
    /// Gradient of the keys.
    DK,
    /// Gradient of the values.
    DV,
}

/// How many [`BackwardMap`]s there are.
pub const BACKWARD_MAPS: u64 = 6;

impl ForwardMap {
    /// The address of this map, of those from `maps` on.
    #[inline(always)]
    pub const fn at(self, maps: u64) -> u64 {
        maps + self as u64 * size_of::<TensorMap>() as u64
    }
}

impl BackwardMap {
    /// The address of this map, of those from `maps` on.
    #[inline(always)]
    pub const fn at(self, maps: u64) -> u64 {
        maps + self as u64 * size_of::<TensorMap>() as u64
    }
}

const _: () = assert!(size_of::<TensorMap>() == 128);
const _: () = {
    assert!(ForwardMap::Q.at(0) == offset_of!(TmaForwardParams, q) as u64);
    assert!(ForwardMap::K.at(0) == offset_of!(TmaForwardParams, k) as u64);
    assert!(ForwardMap::V.at(0) == offset_of!(TmaForwardParams, v) as u64);
    assert!(ForwardMap::O.at(0) == offset_of!(TmaForwardParams, o) as u64);
    assert!(BackwardMap::Q.at(0) == offset_of!(TmaBackwardParams, q) as u64);
    assert!(BackwardMap::K.at(0) == offset_of!(TmaBackwardParams, k) as u64);
    assert!(BackwardMap::V.at(0) == offset_of!(TmaBackwardParams, v) as u64);
    assert!(BackwardMap::DO.at(0) == offset_of!(TmaBackwardParams, d_o) as u64);
    assert!(BackwardMap::DK.at(0) == offset_of!(TmaBackwardParams, d_k) as u64);
    assert!(BackwardMap::DV.at(0) == offset_of!(TmaBackwardParams, d_v) as u64);
};
