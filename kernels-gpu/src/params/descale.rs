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

parameters! {
    /// Scales of q, k and v where all have 8 bits: the value of an element is the element times its scale. The scales of a tensor are f32
    /// `[batch, heads_k]`, or one where both strides are 0.
    pub struct Descales {
        /// Of queries: those that share a head of keys have one scale. 0: all are 1.
        pub q: u64 = Vector(QDescale),
        /// Of keys.
        pub k: u64 = Vector(KDescale),
        /// Of values.
        pub v: u64 = Vector(VDescale),
        /// From one batch entry to the next, in scales.
        pub batch_stride: u32,
        /// From one head of keys to the next.
        pub head_stride: u32,
    }
}

const _: () = assert!(size_of::<Descale>() == 24 && size_of::<Descales>() == 32);
