//! The element types of q, k, v and o, and how pairs of them are packed into a register.

use crate::ptx::wgmma::WgmmaElement;
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
}

/// bfloat16.
#[derive(Clone, Copy)]
pub struct Bf16;

/// IEEE binary16.
#[derive(Clone, Copy)]
pub struct F16;

impl WgmmaElement for Bf16 {
    const BF16: bool = true;
}

impl WgmmaElement for F16 {
    const BF16: bool = false;
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
