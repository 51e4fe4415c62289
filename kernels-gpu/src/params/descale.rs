//! Parameters for the scales of queries, keys and values in 8 bits.

use super::parameters;

/// Rows of a sequence that share a scale where scales are of blocks. Tiles of so many keys, or of a divisor of it, lie within one block; so do the 64 queries of a
/// consumer, in tiles of any number of consumers.
pub const SCALE_ROWS: u32 = 128;

/// Where the scales of a tensor lie, f32 `[batch, heads_k, blocks]`, in scales. All are 0 where there is one for all.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScaleStrides {
    /// From one batch entry, or sequence, to the next.
    pub batch: u32,
    /// From one head of keys to the next: the blocks of a sequence.
    pub head: u32,
    /// From one block of [`SCALE_ROWS`] rows to the next: 1, or 0 where all rows of a sequence share a scale.
    pub block: u32,
}

impl ScaleStrides {
    /// The first scale of a sequence and a head of keys.
    #[inline(always)]
    pub const fn first(self, sequence: u32, head: u32) -> u32 {
        sequence * self.batch + head * self.head
    }

    /// Which of its scales a row has. Rows of a tile that the sequence does not have are in its last block.
    #[inline(always)]
    pub const fn block(self, row: u32) -> u32 {
        let (block, last) = (row / SCALE_ROWS, self.head - 1);
        if block < last { block } else { last }
    }
}

parameters! {
    /// Scales of what has 8 bits, of k and v or of all three: the value of an element is the element times its scale.
    pub struct Descales {
        /// Of queries: those that share a head of keys have one scale. 0: all are 1, as where queries have no 8 bits.
        pub q: u64 = Vector(QDescale),
        /// Of keys.
        pub k: u64 = Vector(KDescale),
        /// Of values.
        pub v: u64 = Vector(VDescale),
        /// Where those of queries lie.
        pub strides_q: ScaleStrides,
        /// Where those of keys, and those of values, lie.
        pub strides_k: ScaleStrides,
    }
}

const _: () = assert!(size_of::<Descales>() == 3 * 8 + 2 * 12);
