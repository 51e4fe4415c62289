//! The exponential to base 2, vectorised.

use pulp::Simd;

/// 2ˣ, within 1.5 units in the last place for −126 ≤ x ≤ 127.5; 0 below, 2^127.5 above, NaN for NaN.
///
/// x = n + f with n whole and |f| ≤ ½; 2ᶠ by a polynomial of relative error 2·10⁻⁹ (least maximum, fitted with the
/// constant term held at 1), times 2ⁿ. Comparisons instead of minimum and maximum, which may swallow a NaN.
#[inline(always)]
pub(super) fn exp2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    /// 1.5 · 2²³ + 127: a sum with it is rounded to a whole number, and its low bits are those of n plus the bias of
    /// the exponent.
    const ROUND: f32 = 12_583_039.0;
    const POLYNOMIAL: [f32; 7] = [
        0.000_153_533_62,
        0.001_339_887_5,
        0.009_618_437,
        0.055_503_324,
        0.240_226_48,
        std::f32::consts::LN_2,
        1.0,
    ];

    let (least, most) = (simd.splat_f32s(-126.0), simd.splat_f32s(127.5));
    let vanishes = simd.less_than_f32s(x, least);
    let x = simd.select_f32s(vanishes, least, x);
    let x = simd.select_f32s(simd.greater_than_f32s(x, most), most, x);
    let round = simd.splat_f32s(ROUND);
    let shifted = simd.add_f32s(x, round);
    let f = simd.sub_f32s(x, simd.sub_f32s(shifted, round));
    let mut p = simd.splat_f32s(POLYNOMIAL[0]);
    for &coefficient in &POLYNOMIAL[1..] {
        p = simd.mul_add_e_f32s(p, f, simd.splat_f32s(coefficient));
    }
    let two_to_n =
        simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let result = simd.mul_f32s(p, simd.transmute_f32s_u32s(two_to_n));
    simd.select_f32s(vanishes, simd.splat_f32s(0.0), result)
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::backend::cpu::machine::Machine;

    struct Exp2<'a>(&'a mut [f32]);

    impl WithSimd for Exp2<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (vectors, _) = S::as_mut_simd_f32s(self.0);
            for x in vectors {
                *x = exp2(simd, *x);
            }
        }
    }

    #[test]
    fn exp2_is_within_two_units_in_the_last_place() {
        for machine in Machine::all() {
            let x: Vec<f32> = (0..1 << 21)
                .map(|i| 127.5 - i as f32 * (253.5 / (1 << 21) as f32))
                .collect();
            let mut y = x.clone();
            machine.run(Exp2(&mut y));
            for (x, y) in x.iter().zip(&y) {
                let exact = f64::from(*x).exp2();
                let unit = f64::from(y.next_up() - y);
                assert!(
                    (f64::from(*y) - exact).abs() <= 1.5 * unit,
                    "2^{x} is {exact}, given {y} on {machine:?}"
                );
            }
        }
    }

    #[test]
    fn exp2_at_the_edges() {
        for machine in Machine::all() {
            let inputs = [
                0.0,
                -0.0,
                f32::NEG_INFINITY,
                -127.0,
                -1e30,
                f32::INFINITY,
                1e30,
                f32::NAN,
                f32::from_bits(0xffff_ffff),
                1.0,
                -1.0,
                -126.0,
            ];
            let mut y = inputs.repeat(16);
            machine.run(Exp2(&mut y));
            let top = 127.5f64.exp2() as f32;
            let expected = [
                1.0,
                1.0,
                0.0,
                0.0,
                0.0,
                top,
                top,
                f32::NAN,
                f32::NAN,
                2.0,
                0.5,
                f32::MIN_POSITIVE,
            ];
            for (index, y) in y.iter().enumerate() {
                let expected = expected[index % expected.len()];
                let close =
                    (y - expected).abs() <= 2e-7 * expected || (y.is_nan() && expected.is_nan());
                assert!(
                    close,
                    "2^{} is {expected}, given {y} on {machine:?}",
                    inputs[index % inputs.len()]
                );
            }
        }
    }
}
