//! Functions of one number as PTX.

use super::coefficient::Coef;
use super::linear::{Algebra, Sum};
use super::op::OpId;
use crate::Precision;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// log₂ e minus its f32.
const LOG2_E_REST: f32 = 1.925_963e-8;

/// tanh x = x + x³ · polynomial of x², where |x| < 0.6: interpolated at Chebyshev's nodes, relative error below 2⁻²⁶.
const TANH: [f32; 5] = [
    -0.333_333_3,
    0.133_329_15,
    -0.053_873_95,
    0.021_110_96,
    -0.006_269_12,
];

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// 2ˣ.
    Exp2,
    /// The natural logarithm.
    Ln,
    /// The hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// The square root.
    Sqrt,
}

impl Algebra<'_> {
    /// The function's value.
    pub fn function(&mut self, function: Function, precision: Precision, x: &Sum) -> Sum {
        match function {
            Function::Exp2 => self.exp2(x, precision),
            Function::Ln => self.ln(x, precision),
            Function::Tanh => self.tanh(x, precision),
            Function::Sigmoid => self.sigmoid(x, precision),
            Function::Sqrt => self.sqrt(x, precision),
        }
    }

    /// 2ˣ.
    fn exp2(&mut self, x: &Sum, precision: Precision) -> Sum {
        let x = self.write(x);
        let text = match precision {
            Precision::Fast => "ex2.approx.ftz.f32",
            Precision::Full => "ex2.approx.f32",
        };
        self.atom(text, &[x])
    }

    /// √x.
    fn sqrt(&mut self, x: &Sum, precision: Precision) -> Sum {
        let x = self.write(x);
        let text = match precision {
            Precision::Fast => "sqrt.approx.ftz.f32",
            Precision::Full => "sqrt.rn.f32",
        };
        self.atom(text, &[x])
    }

    /// ln x.
    fn ln(&mut self, x: &Sum, precision: Precision) -> Sum {
        let x = self.write(x);
        match precision {
            Precision::Fast => {
                let log2 = self.atom("lg2.approx.ftz.f32", &[x]);
                self.scaled(&log2, Coef::of(std::f64::consts::LN_2))
            }
            Precision::Full => {
                let ln = self.ln_full(x);
                Sum::of(ln, self.arena)
            }
        }
    }

    /// tanh x.
    fn tanh(&mut self, x: &Sum, precision: Precision) -> Sum {
        let x = self.write(x);
        match precision {
            Precision::Fast => self.atom("tanh.approx.f32", &[x]),
            Precision::Full => {
                let tanh = self.tanh_full(x);
                Sum::of(tanh, self.arena)
            }
        }
    }

    /// 1 / (1 + e⁻ˣ); fast as ½ · tanh(x / 2) + ½.
    fn sigmoid(&mut self, x: &Sum, precision: Precision) -> Sum {
        match precision {
            Precision::Fast => {
                let half = self.scaled(x, Coef::of(0.5));
                let tanh = self.tanh(&half, Precision::Fast);
                let mut sum = self.scaled(&tanh, Coef::of(0.5));
                let half = Sum::constant(Coef::of(0.5));
                sum = self.add(&sum, &half);
                sum
            }
            Precision::Full => {
                let x = self.write(x);
                let sigmoid = self.sigmoid_full(x);
                Sum::of(sigmoid, self.arena)
            }
        }
    }

    fn atom(&mut self, text: &'static str, args: &[OpId]) -> Sum {
        let op = self.arena.b32(text, args);
        Sum::of(op, self.arena)
    }

    fn fma_constants(&mut self, a: OpId, by: f32, plus: f32) -> OpId {
        let (by, plus) = (self.arena.f32(by), self.arena.f32(plus));
        self.arena.b32("fma.rn.f32", &[a, by, plus])
    }

    /// sum · a + plus.
    fn horner(&mut self, sum: OpId, a: OpId, plus: f32) -> OpId {
        let plus = self.arena.f32(plus);
        self.arena.b32("fma.rn.f32", &[sum, a, plus])
    }

    /// eʸ where |y| is at most 87: the part of y · log₂ e that f32 drops is put back to first order.
    fn exp_full(&mut self, y: OpId) -> OpId {
        let log2_e = self.arena.f32(LOG2_E);
        let high = self.arena.b32("mul.rn.f32", &[y, log2_e]);
        let negative = self.arena.b32("neg.f32", &[high]);
        let low = self.arena.b32("fma.rn.f32", &[y, log2_e, negative]);
        let rest = self.arena.f32(LOG2_E_REST);
        let low = self.arena.b32("fma.rn.f32", &[y, rest, low]);
        let ln_2 = self.arena.f32(std::f32::consts::LN_2);
        let low = self.arena.b32("mul.f32", &[low, ln_2]);
        let power = self.arena.b32("ex2.approx.ftz.f32", &[high]);
        self.arena.b32("fma.rn.f32", &[power, low, power])
    }

    fn sigmoid_full(&mut self, x: OpId) -> OpId {
        let (least, most) = (self.arena.f32(-87.0), self.arena.f32(87.0));
        let y = self.arena.b32("neg.f32", &[x]);
        let y = self.arena.b32("max.NaN.f32", &[y, least]);
        let y = self.arena.b32("min.NaN.f32", &[y, most]);
        let power = self.exp_full(y);
        let one = self.arena.f32(1.0);
        let sum = self.arena.b32("add.f32", &[power, one]);
        self.arena.b32("rcp.approx.ftz.f32", &[sum])
    }

    fn tanh_full(&mut self, x: OpId) -> OpId {
        let size = self.arena.b32("abs.f32", &[x]);
        let square = self.arena.b32("mul.f32", &[x, x]);
        let mut polynomial = self.fma_constants(square, TANH[4], TANH[3]);
        for &coef in TANH[..3].iter().rev() {
            polynomial = self.horner(polynomial, square, coef);
        }
        let cube = self.arena.b32("mul.f32", &[x, square]);
        let near = self.arena.b32("fma.rn.f32", &[polynomial, cube, x]);
        // 1 − 2 / (e²ˣ + 1), with the sign of x. Where e²ˣ is infinite that is 1.
        let twice = self.arena.f32(2.0 * LOG2_E);
        let power = self.arena.b32("mul.f32", &[size, twice]);
        let power = self.arena.b32("ex2.approx.ftz.f32", &[power]);
        let one = self.arena.f32(1.0);
        let sum = self.arena.b32("add.f32", &[power, one]);
        let part = self.arena.b32("rcp.approx.ftz.f32", &[sum]);
        let far = self.fma_constants(part, -2.0, 1.0);
        let sign = self.arena.i32(i32::MIN);
        let sign = self.arena.b32("and.b32", &[x, sign]);
        let far = self.arena.b32("or.b32", &[far, sign]);
        let limit = self.arena.f32(0.6);
        let is_near = self.arena.pred("setp.lt.f32", &[size, limit]);
        self.arena.select(near, far, is_near)
    }

    /// x = 2ⁿ · m with m in [⅔, 4⁄3]: n · ln 2 plus a polynomial of m − 1. For 0, ∞ and what is negative, lg2.approx has the value.
    fn ln_full(&mut self, x: OpId) -> OpId {
        const POLYNOMIAL: [f32; 9] = [
            -0.130_310_06,
            0.140_869_14,
            -0.121_483_51,
            0.139_814_85,
            -0.166_846_13,
            0.200_120_35,
            -0.249_996_2,
            0.333_331_97,
            -0.5,
        ];
        let tiny = self.arena.f32(f32::MIN_POSITIVE);
        let grown = self.arena.f32(8_388_608.0);
        let grown = self.arena.b32("mul.f32", &[x, grown]);
        let is_tiny = self.arena.pred("setp.lt.f32", &[x, tiny]);
        let scaled = self.arena.select(grown, x, is_tiny);
        let (shift, zero) = (self.arena.f32(-23.0), self.arena.f32(0.0));
        let shift = self.arena.select(shift, zero, is_tiny);
        let two_thirds = self.arena.i32(0x3F2A_AAAB);
        let bits = self.arena.i32(0xFF80_0000_u32 as i32);
        let exponent = self.arena.b32("sub.s32", &[scaled, two_thirds]);
        let exponent = self.arena.b32("and.b32", &[exponent, bits]);
        let mantissa = self.arena.b32("sub.s32", &[scaled, exponent]);
        let exponent = self.arena.b32("cvt.rn.f32.s32", &[exponent]);
        let unit = self.arena.f32(f32::EPSILON);
        let exponent = self.arena.b32("fma.rn.f32", &[exponent, unit, shift]);
        let minus_one = self.arena.f32(-1.0);
        let f = self.arena.b32("add.f32", &[mantissa, minus_one]);
        let square = self.arena.b32("mul.f32", &[f, f]);
        let mut even = self.arena.f32(POLYNOMIAL[0]);
        let mut odd = self.arena.f32(POLYNOMIAL[1]);
        for pair in POLYNOMIAL[2..6].chunks_exact(2) {
            even = self.horner(even, square, pair[0]);
            odd = self.horner(odd, square, pair[1]);
        }
        let mut sum = self.horner(even, square, POLYNOMIAL[6]);
        sum = self.arena.b32("fma.rn.f32", &[odd, f, sum]);
        sum = self.horner(sum, f, POLYNOMIAL[7]);
        sum = self.horner(sum, f, POLYNOMIAL[8]);
        sum = self.arena.b32("fma.rn.f32", &[sum, square, f]);
        let ln_2 = self.arena.f32(std::f32::consts::LN_2);
        sum = self.arena.b32("fma.rn.f32", &[exponent, ln_2, sum]);
        let special = self.arena.b32("lg2.approx.ftz.f32", &[x]);
        let (zero, infinity) = (self.arena.f32(0.0), self.arena.f32(f32::INFINITY));
        let positive = self.arena.pred("setp.gt.f32", &[x, zero]);
        let finite = self.arena.pred("setp.lt.f32", &[x, infinity]);
        let ordinary = self.arena.and(positive, finite);
        self.arena.select(sum, special, ordinary)
    }
}
