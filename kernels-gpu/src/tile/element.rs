//! The element types of q, k, v and o, and how pairs of them are packed into a register.

use crate::ptx::wgmma::{Types, WgmmaElement};
use crate::ptx::{convert, mma};

/// A 16-bit floating-point type that tensor cores multiply.
pub trait Element: WgmmaElement + Copy + 'static {
    /// `acc += a · b` of a 16 × 8 × 16 product; fragments as in [`super::fragment`].
    ///
    /// # Safety
    /// Warp-collective: all 32 lanes reach it together.
    unsafe fn mma(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);

    /// Two values rounded to nearest even, the first in the low half.
    fn pack(low: f32, high: f32) -> u32;

    /// The two values of a register.
    fn unpack(pair: u32) -> [f32; 2];

    /// Two probabilities in a register, for one thread to hand over to another: at least as exact as by [`Self::pack`]. NaN, infinity
    /// and 2 or more may come out as any number.
    #[inline(always)]
    fn pack_probabilities(low: f32, high: f32) -> u32 {
        Self::pack(low, high)
    }

    /// The two values of [`Self::pack_probabilities`].
    #[inline(always)]
    fn unpack_probabilities(pair: u32) -> [f32; 2] {
        Self::unpack(pair)
    }
}

/// bfloat16.
#[derive(Clone, Copy)]
pub struct Bf16;

/// IEEE binary16.
#[derive(Clone, Copy)]
pub struct F16;

/// IEEE binary32, which tensor cores multiply as tf32: see [`super::tf32`].
#[derive(Clone, Copy)]
pub struct F32;

/// Four bits of exponent and three of mantissa, without infinity (OCP 8-bit Floating Point Specification).
#[derive(Clone, Copy)]
pub struct E4m3;

impl WgmmaElement for Bf16 {
    #[inline(always)]
    fn types() -> Types {
        Types::Bf16
    }
}

impl WgmmaElement for F16 {
    #[inline(always)]
    fn types() -> Types {
        Types::F16
    }
}

impl WgmmaElement for E4m3 {
    #[inline(always)]
    fn types() -> Types {
        Types::E4m3
    }
}

impl Element for Bf16 {
    #[inline(always)]
    unsafe fn mma(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: the caller's contract is the instruction's.
        unsafe { mma::mma_m16n8k16_bf16(acc, a, b) }
    }

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        convert::cvt_bf16x2(low, high)
    }

    #[inline(always)]
    fn unpack(pair: u32) -> [f32; 2] {
        convert::unpack_bf16x2(pair)
    }

    /// Without the sign and the exponent's first bit, which are 0 below 2: that leaves nine bits for the mantissa instead of seven.
    #[inline(always)]
    fn pack_probabilities(low: f32, high: f32) -> u32 {
        let [low, high] = [low, high].map(|x| (x.to_bits() << 2).wrapping_add(1 << 15));
        low >> 16 | high & 0xffff_0000
    }

    #[inline(always)]
    fn unpack_probabilities(pair: u32) -> [f32; 2] {
        [pair << 16, pair & 0xffff_0000].map(|bits| f32::from_bits(bits >> 2))
    }
}

impl Element for F16 {
    #[inline(always)]
    unsafe fn mma(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        // SAFETY: the caller's contract is the instruction's.
        unsafe { mma::mma_m16n8k16_f16(acc, a, b) }
    }

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        convert::cvt_f16x2(low, high)
    }

    #[inline(always)]
    fn unpack(pair: u32) -> [f32; 2] {
        convert::unpack_f16x2(pair)
    }
}

/// On the CPU, where a kernel takes long to compile: either of the 16-bit types, whichever [`either::choose`] says. So each kernel is
/// compiled for both at once.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) mod either {
    use std::cell::Cell;

    use super::{Bf16, Element, F16, Types, WgmmaElement};
    use crate::variants::Dtype;

    thread_local! {
        /// The element type of the kernel that runs on this OS thread.
        static IS_BF16: Cell<bool> = const { Cell::new(true) };
    }

    /// Sets the element type of the kernel that is about to run on this OS thread.
    pub fn choose(dtype: Dtype) {
        IS_BF16.set(dtype == Dtype::Bf16);
    }

    /// bfloat16 or IEEE binary16.
    #[derive(Clone, Copy)]
    pub struct Either;

    impl WgmmaElement for Either {
        fn types() -> Types {
            match IS_BF16.get() {
                true => Types::Bf16,
                false => Types::F16,
            }
        }
    }

    impl Element for Either {
        unsafe fn mma(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
            // SAFETY: the caller's contract is that of both.
            unsafe {
                match IS_BF16.get() {
                    true => Bf16::mma(acc, a, b),
                    false => F16::mma(acc, a, b),
                }
            }
        }

        fn pack(low: f32, high: f32) -> u32 {
            match IS_BF16.get() {
                true => Bf16::pack(low, high),
                false => F16::pack(low, high),
            }
        }

        fn unpack(pair: u32) -> [f32; 2] {
            match IS_BF16.get() {
                true => Bf16::unpack(pair),
                false => F16::unpack(pair),
            }
        }

        fn pack_probabilities(low: f32, high: f32) -> u32 {
            match IS_BF16.get() {
                true => Bf16::pack_probabilities(low, high),
                false => F16::pack_probabilities(low, high),
            }
        }

        fn unpack_probabilities(pair: u32) -> [f32; 2] {
            match IS_BF16.get() {
                true => Bf16::unpack_probabilities(pair),
                false => F16::unpack_probabilities(pair),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_bf16_have_two_bits_more() {
        let handed_over = |x: f32| Bf16::unpack_probabilities(Bf16::pack_probabilities(x, 1.0 - x));
        // Every exponent down to the least normal one, and many mantissas.
        for bits in (0x0080_0000..=1.0_f32.to_bits()).step_by(4099) {
            let x = f32::from_bits(bits);
            let [low, high] = handed_over(x);
            assert!((low - x).abs() <= x / 1024.0, "{x} became {low}");
            assert!((high - (1.0 - x)).abs() <= (1.0 - x) / 1024.0);
        }
        assert_eq!(handed_over(0.0), [0.0, 1.0]);
        assert_eq!(handed_over(1.0), [1.0, 0.0]);
    }
}
