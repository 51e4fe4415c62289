//! Parameters for the scales of keys and values in 8 bits.

use super::parameters;

parameters! {
    /// Scales: the value of an element of k is the element times its scale, likewise for v.
    pub struct Descale {
        /// `f32 [batch, heads_k]`, or `f32 [n_pages, heads_k]`: of keys.
        pub k: u64 = Vector(KDescale),
        /// The same for values.
        pub v: u64 = Vector(VDescale),
        /// 1 if each page has scales, 0 if each sequence has.
        pub by_page: u32,
        /// 0.
        pub reserved: u32,
    }
}

const _: () = assert!(size_of::<Descale>() == 24);
