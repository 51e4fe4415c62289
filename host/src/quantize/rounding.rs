//! One number to 8 bits, and the scale of many: as a GPU has them.

use float8::F8E4M3;

/// The greatest number of e4m3.
pub(crate) const E4M3_MAX: f32 = 448.0;

/// The least scale. The product of the scales of q and k then is a normal number of f32.
const LEAST_DESCALE: f32 = 1.0 / (1u64 << 60) as f32;

/// The bits of an f32 that are its mantissa.
const MANTISSA: u32 = (1 << (f32::MANTISSA_DIGITS - 1)) - 1;

/// The scale of numbers up to `amax`; 1 where all are 0 or one is not finite.
pub(crate) fn descale_of(amax: f32, to_power_of_2: bool) -> f32 {
    if amax == 0.0 || !amax.is_finite() {
        return 1.0;
    }
    let descale = (amax / E4M3_MAX).max(LEAST_DESCALE);
    match to_power_of_2 {
        // A power of 2 has no mantissa.
        true => f32::from_bits((descale.to_bits() + MANTISSA) & !MANTISSA),
        false => descale,
    }
}

/// The nearest number of e4m3, ±448 for what is beyond. A NaN loses its sign, as on a GPU.
pub(crate) fn code_of(x: f32) -> F8E4M3 {
    match x.is_nan() {
        true => F8E4M3::NAN,
        false => F8E4M3::from_f32(x),
    }
}
