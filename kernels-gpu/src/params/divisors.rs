//! The numbers by which kernels for few queries divide, see [`crate::attention::divisor`].

use crate::attention::divisor::Divisor;

/// What a launch divides by. A division takes some 90 cycles on a GPU, and a block made a dozen of them, one behind the other, before its
/// first copy.
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
