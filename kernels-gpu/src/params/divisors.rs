//! The divisors of decode kernels, see [`crate::attention::divisor`].

use crate::attention::divisor::Divisor;

/// The divisors of a launch. A division takes some 90 cycles on a GPU, and a block would make a dozen of them, one after the other, before its first copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divisors {
    /// KV heads.
    pub heads_k: Divisor,
    /// Tiles of a sequence and a KV head.
    pub tiles: Divisor,
    /// Query heads of a KV head.
    pub group_size: Divisor,
    /// Rows of a page.
    pub page_size: Divisor,
    /// Parts of the work, see [`super::SplitKv`].
    pub parts: Divisor,
}

const _: () = assert!(size_of::<Divisors>() == 5 * 8);
