//! The arithmetic of results over parts of the keys: what a part weighs, and the L of all parts.
//!
//! A part is known by its O and its L, the logarithm of its sum of exponentials. With m the largest L of the parts, a part weighs
//! exp(L − m), and all of them together have L = m + log Σ exp(L − m) (Flash-Decoding, Dao et al. 2023).

use core::f32::consts::{LN_2, LOG2_E};

use crate::ptx::math::{ex2_approx, fma, lg2_approx, rcp_approx};

/// exp(L − m). What saw no key weighs nothing, also where no part saw any.
#[inline(always)]
pub(super) fn weight(lse: f32, most: f32) -> f32 {
    if lse == f32::NEG_INFINITY {
        0.0
    } else {
        ex2_approx((lse - most) * LOG2_E)
    }
}

/// 1 / Σ of the weights; 0 where nothing has weight.
#[inline(always)]
pub(super) fn inverse(sum: f32) -> f32 {
    if sum > 0.0 { rcp_approx(sum) } else { 0.0 }
}

/// m + log Σ of the weights; −∞ where nothing has weight.
#[inline(always)]
pub(super) fn lse_of_all(sum: f32, most: f32) -> f32 {
    if sum > 0.0 {
        fma(lg2_approx(sum), LN_2, most)
    } else {
        f32::NEG_INFINITY
    }
}
