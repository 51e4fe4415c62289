//! Parameters of dropout: see [`crate::attention::dropout`].

use super::parameters;

parameters! {
    /// Which weights are dropped, if the kernel is compiled with [`crate::spec::Constant::Dropout`].
    pub struct DropoutParams {
        /// `u64 [2]`: seed and offset, which a captured graph reads at each launch; 0 if the next two fields are used instead.
        pub state: u64 = Vector(DropoutState),
        /// The seed.
        pub seed: u64,
        /// The offset.
        pub offset: u64,
        /// Byte values from this one on are dropped; in each byte, without its first bit.
        pub low: u32,
        /// In each byte the first bit, if that of `low` is 0.
        pub high: u32,
        /// 1 / the probability of being kept.
        pub inverse_keep: f32,
        /// Padding.
        pub padding: u32,
    }
}

impl DropoutParams {
    /// For a launch that keeps weights whose random byte is below `kept`, 1 .. 256; the call sets seed and offset.
    pub const fn keeping(kept: u32) -> DropoutParams {
        DropoutParams {
            state: 0,
            seed: 0,
            offset: 0,
            low: (kept & 0x7f) * 0x0101_0101,
            high: if kept & 0x80 == 0 { 0x8080_8080 } else { 0 },
            inverse_keep: 256.0 / kept as f32,
            padding: 0,
        }
    }
}

const _: () = assert!(size_of::<DropoutParams>() == 3 * 8 + 4 * 4);
