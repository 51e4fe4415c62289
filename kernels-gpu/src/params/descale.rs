//! What kernels are given of the scales of keys and values in 8 bits.

use super::parameters;

parameters! {
    /// Scales: an element of k stands for itself times its scale, one of v likewise.
    pub struct Descale {
        /// `f32 [batch, heads_k]`, or `f32 [n_pages, heads_k]`: of keys.
        pub k: u64 = Vector(KDescale),
        /// The same of values.
        pub v: u64 = Vector(VDescale),
        /// 1 where each page has scales, 0 where each sequence has.
        pub by_page: u32,
        /// 0.
        pub reserved: u32,
    }
}

const _: () = assert!(size_of::<Descale>() == 24);
