//! What kernels are given to drop weights: see [`crate::attention::dropout`].

use super::parameters;

parameters! {
    /// Which weights are dropped, where the kernel is compiled with [`crate::spec::Constant::Dropout`].
    pub struct DropoutParams {
        /// `u64 [2]`: seed and offset; 0 where the two that follow are they. So a captured graph finds new ones there.
        pub state: u64 = Vector(DropoutState),
        /// The seed.
        pub seed: u64,
        /// The offset.
        pub offset: u64,
        /// Byte values from this one on are dropped; in each byte, without its first bit.
        pub low: u32,
        /// In each byte the first bit, where that of `low` is 0.
        pub high: u32,
        /// 1 / the share of weights that is kept.
        pub inverse_keep: f32,
        /// No gap at the end.
        pub padding: u32,
    }
}

impl DropoutParams {
    /// Of a launch that keeps weights whose random byte is below `kept`, 1 .. 256: seed and offset are the call's.
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
