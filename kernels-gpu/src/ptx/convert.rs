//! Conversions between `f32`, packed pairs of 16-bit floating-point numbers, and pairs of 8-bit ones; bytes in another order.

#[cfg(not(target_arch = "nvptx64"))]
fn pack(lo: u16, hi: u16) -> u32 {
    u32::from(lo) | u32::from(hi) << 16
}

/// The instructions give one NaN, whatever its input's payload.
#[cfg(not(target_arch = "nvptx64"))]
const NAN: u16 = 0x7fff;

#[cfg(not(target_arch = "nvptx64"))]
fn bf16_bits(x: f32) -> u16 {
    if x.is_nan() {
        NAN
    } else {
        half::bf16::from_f32(x).to_bits()
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn f16_bits(x: f32) -> u16 {
    if x.is_nan() {
        NAN
    } else {
        half::f16::from_f32(x).to_bits()
    }
}

/// `cvt.rn.bf16x2.f32`: two `f32` rounded to nearest even and packed, `lo` in the lower half.
///
/// PTX 7.0, sm_80.
#[inline(always)]
pub fn cvt_bf16x2(lo: f32, hi: f32) -> u32 {
    bodies! {
        d: u32 = ptx!(
            "cvt.rn.bf16x2.f32 {d}, {hi}, {lo};",
            d = out(reg32) d, hi = in(reg32) hi, lo = in(reg32) lo,
            options(pure, nomem, nostack)
        );
        cpu: pack(bf16_bits(lo), bf16_bits(hi))
    }
}

/// `cvt.rn.f16x2.f32`: two `f32` rounded to nearest even and packed, `lo` in the lower half.
///
/// PTX 7.0, sm_80.
#[inline(always)]
pub fn cvt_f16x2(lo: f32, hi: f32) -> u32 {
    bodies! {
        d: u32 = ptx!(
            "cvt.rn.f16x2.f32 {d}, {hi}, {lo};",
            d = out(reg32) d, hi = in(reg32) hi, lo = in(reg32) lo,
            options(pure, nomem, nostack)
        );
        cpu: pack(f16_bits(lo), f16_bits(hi))
    }
}

/// `cvt.rna.tf32.f32`: rounded to nearest tf32, ties away from zero: the exponent of `f32` and ten bits of mantissa. What the lower 13 bits
/// hold is not said.
///
/// PTX 7.0, sm_80 (PTX ISA, "Data Movement and Conversion Instructions: cvt").
#[inline(always)]
pub fn cvt_tf32(x: f32) -> u32 {
    bodies! {
        d: u32 = ptx!(
            "cvt.rna.tf32.f32 {d}, {x};",
            d = out(reg32) d, x = in(reg32) x,
            options(pure, nomem, nostack)
        );
        cpu: match x.is_nan() {
            true => f32::NAN.to_bits(),
            false => (x.to_bits() + (1 << 12)) & TF32_BITS,
        }
    }
}

/// The bits of a register that tf32 has: sign, eight of exponent, ten of mantissa.
pub const TF32_BITS: u32 = !0 << 13;

/// `cvt.f32.f16`: the lower half of `x` as `f32`; exact.
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn cvt_f32_f16(x: u32) -> f32 {
    bodies! {
        d: f32 = ptx!(
            "{{ .reg .b16 lo, hi;",
            "mov.b32 {{lo, hi}}, {x};",
            "cvt.f32.f16 {d}, lo; }}",
            d = out(reg32) d, x = in(reg32) x, options(pure, nomem, nostack)
        );
        cpu: half::f16::from_bits(x as u16).to_f32()
    }
}

/// Two `bf16` as `f32`, the lower half first; exact. Not one instruction but a shift and a mask.
#[inline(always)]
pub fn unpack_bf16x2(x: u32) -> [f32; 2] {
    [f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000)]
}

/// Two `f16` as `f32`, the lower half first; exact. Not one instruction but [`cvt_f32_f16`] on both halves.
#[inline(always)]
pub fn unpack_f16x2(x: u32) -> [f32; 2] {
    [cvt_f32_f16(x), cvt_f32_f16(x >> 16)]
}

/// `cvt.rn.f16x2.e4m3x2`: the lower half of `x`, two `e4m3`, as two `f16`, the lower byte first; exact.
///
/// PTX 8.1, sm_89.
#[inline(always)]
pub fn cvt_f16x2_e4m3x2(x: u32) -> u32 {
    bodies! {
        d: u32 = ptx!(
            "{{ .reg .b16 lo, hi;",
            "mov.b32 {{lo, hi}}, {x};",
            "cvt.rn.f16x2.e4m3x2 {d}, lo; }}",
            d = out(reg32) d, x = in(reg32) x, options(pure, nomem, nostack)
        );
        cpu: pack(f16_of_e4m3(x as u8), f16_of_e4m3((x >> 8) as u8))
    }
}

/// An `e4m3`, the lowest byte of `x`, as `f32`; exact. Not an instruction, which compute capability 8.0 lacks: the exponent's bias is 7 and not 127, so the same
/// bits are too small by 2¹²⁰, subnormal numbers too.
#[inline(always)]
pub fn f32_of_e4m3(x: u32) -> f32 {
    let magnitude = x & 0x7f;
    let value = f32::from_bits((x & 0x80) << 24 | magnitude << 20) * TWO_TO_120;
    if magnitude == 0x7f { f32::NAN } else { value }
}

/// 2¹²⁰.
const TWO_TO_120: f32 = f32::from_bits((120 + 127) << 23);

/// An `e4m3` has the exponent's bias 7 and three bits of mantissa, an `f16` 15 and ten: the same bits further to the left are too small by 2⁸.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn f16_of_e4m3(x: u8) -> u16 {
    if x & 0x7f == 0x7f {
        return NAN;
    }
    let magnitude = half::f16::from_bits(u16::from(x & 0x7f) << 7).to_f32() * 256.0;
    u16::from(x & 0x80) << 8 | f16_bits(magnitude)
}

/// `cvt.rn.satfinite.e4m3x2.f32` twice: four `f32` rounded to nearest even `e4m3`, the first in the lowest byte. What is too large becomes ±448, NaN a NaN.
///
/// PTX 8.1, sm_89.
#[inline(always)]
pub fn cvt_e4m3x4([a, b, c, d]: [f32; 4]) -> u32 {
    bodies! {
        x: u32 = ptx!(
            "{{ .reg .b16 lo, hi;",
            "cvt.rn.satfinite.e4m3x2.f32 lo, {b}, {a};",
            "cvt.rn.satfinite.e4m3x2.f32 hi, {d}, {c};",
            "mov.b32 {x}, {{lo, hi}}; }}",
            x = out(reg32) x, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(pure, nomem, nostack)
        );
        cpu: u32::from_le_bytes([a, b, c, d].map(e4m3_bits))
    }
}

/// `cvt.rn.satfinite.e5m2x2.f32` twice: as [`cvt_e4m3x4`], in `e5m2`. What is too large becomes ±57344.
///
/// PTX 8.1, sm_89.
#[inline(always)]
pub fn cvt_e5m2x4([a, b, c, d]: [f32; 4]) -> u32 {
    bodies! {
        x: u32 = ptx!(
            "{{ .reg .b16 lo, hi;",
            "cvt.rn.satfinite.e5m2x2.f32 lo, {b}, {a};",
            "cvt.rn.satfinite.e5m2x2.f32 hi, {d}, {c};",
            "mov.b32 {x}, {{lo, hi}}; }}",
            x = out(reg32) x, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(pure, nomem, nostack)
        );
        cpu: u32::from_le_bytes([a, b, c, d].map(e5m2_bits))
    }
}

/// The instructions give one NaN of 8 bits, too.
#[cfg(not(target_arch = "nvptx64"))]
const NAN_BYTE: u8 = 0x7f;

#[cfg(not(target_arch = "nvptx64"))]
fn e4m3_bits(x: f32) -> u8 {
    match x.is_nan() {
        true => NAN_BYTE,
        false => float8::F8E4M3::from_f32(x).to_bits(),
    }
}

#[cfg(not(target_arch = "nvptx64"))]
fn e5m2_bits(x: f32) -> u8 {
    match x.is_nan() {
        true => NAN_BYTE,
        false => float8::F8E5M2::from_f32(x).to_bits(),
    }
}

/// `cvt.rn.f16x2.e5m2x2`: the lower half of `x`, two `e5m2`, as two `f16`, the lower byte first; exact.
///
/// PTX 8.1, sm_89.
#[inline(always)]
pub fn cvt_f16x2_e5m2x2(x: u32) -> u32 {
    bodies! {
        d: u32 = ptx!(
            "{{ .reg .b16 lo, hi;",
            "mov.b32 {{lo, hi}}, {x};",
            "cvt.rn.f16x2.e5m2x2 {d}, lo; }}",
            d = out(reg32) d, x = in(reg32) x, options(pure, nomem, nostack)
        );
        cpu: pack(f16_of_e5m2(x as u8), f16_of_e5m2((x >> 8) as u8))
    }
}

/// The upper half of an `f16`.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn f16_of_e5m2(x: u8) -> u16 {
    match x & 0x7f {
        0x7d..=0x7f => NAN,
        _ => u16::from(x) << 8,
    }
}

/// `prmt.b32 x, y, order`: four bytes, the lowest by the lowest digit of `order`. Digits count the bytes of `x`, then those of `y`, from 0 to 7.
///
/// PTX 2.0, sm_20.
#[inline(always)]
pub fn prmt_pair(x: u32, y: u32, order: u32) -> u32 {
    bodies! {
        d: u32 = ptx!(
            "prmt.b32 {d}, {x}, {y}, {order};",
            d = out(reg32) d, x = in(reg32) x, y = in(reg32) y, order = in(reg32) order,
            options(pure, nomem, nostack)
        );
        cpu: {
            let both = u64::from(y) << 32 | u64::from(x);
            let byte = |idx: u32| (both >> (8 * ((order >> (4 * idx)) & 7))) as u32 & 0xff;
            (0..4).fold(0, |all, idx| all | (byte(idx) << (8 * idx)))
        }
    }
}

/// `prmt.b32 x, 0, ORDER`: bytes of `x`, the lowest in the lowest digit of `ORDER`.
///
/// PTX 2.0, sm_20.
#[inline(always)]
pub fn prmt<const ORDER: u32>(x: u32) -> u32 {
    bodies! {
        d: u32 = ptx!(
            "prmt.b32 {d}, {x}, 0, {order};",
            d = out(reg32) d, x = in(reg32) x, order = const ORDER, options(pure, nomem, nostack)
        );
        cpu: {
            let byte = |idx: u32| (x >> (8 * ((ORDER >> (4 * idx)) & 3))) & 0xff;
            (0..4).fold(0, |all, idx| all | (byte(idx) << (8 * idx)))
        }
    }
}

/// `prmt.b32 x, y, ORDER`, with 8 in every digit of `ORDER`: bytes of 1 where the sign of a byte is 1, else of 0. Digits count the bytes of `x`
/// from 8 on, then those of `y`; the lowest digit says which is the lowest.
///
/// PTX 2.0, sm_20.
#[inline(always)]
pub fn prmt_signs<const ORDER: u32>(x: u32, y: u32) -> u32 {
    const { assert!(ORDER & 0x8888 == 0x8888 && ORDER <= 0xffff) };
    bodies! {
        d: u32 = ptx!(
            "prmt.b32 {d}, {x}, {y}, {order};",
            d = out(reg32) d, x = in(reg32) x, y = in(reg32) y, order = const ORDER,
            options(pure, nomem, nostack)
        );
        cpu: {
            let both = u64::from(y) << 32 | u64::from(x);
            let sign = |idx: u32| (both >> (8 * ((ORDER >> (4 * idx)) & 7) + 7)) as u32 & 1;
            (0..4).fold(0, |all, idx| all | (sign(idx) * 0xff) << (8 * idx))
        }
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;

    #[test]
    fn an_e4m3_is_what_its_bits_say() {
        for bits in 0..=u8::MAX {
            let (value, expected) = (
                f32_of_e4m3(u32::from(bits) | 0xab00),
                float8::F8E4M3::from_bits(bits).to_f32(),
            );
            let same = value.to_bits() == expected.to_bits();
            assert!(same || value.is_nan() && expected.is_nan(), "{bits:#x}");
        }
    }
}
