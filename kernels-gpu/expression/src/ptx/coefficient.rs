//! Coefficients of sums: what changes at most once per tile.

use super::op::{Arena, Op, OpId};

/// Where softmax_scale and its inverse lie in the launch's parameter.
#[derive(Clone, Copy, Debug)]
pub struct ScaleAt {
    /// Offset of softmax_scale in bytes.
    pub scale: u32,
    /// Offset of its inverse in bytes. Only what is measured in it is divided by it.
    pub inverse: u32,
}

/// `factor · softmax_scaleᵖᵒʷᵉʳ · value`, which changes at most once per tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coef {
    /// Constants are multiplied in f64 and rounded once.
    pub factor: f64,
    /// Of softmax_scale.
    pub power: i32,
    /// Another factor, of the tile's level.
    pub value: Option<OpId>,
}

/// Powers of softmax_scale that a coefficient counts.
const MAX_POWER: i32 = 2;

impl Coef {
    /// 1.
    pub const ONE: Coef = Coef::of(1.0);

    /// A constant.
    pub const fn of(factor: f64) -> Coef {
        Coef {
            factor,
            power: 0,
            value: None,
        }
    }

    /// softmax_scale to a power.
    pub const fn scale(power: i32) -> Coef {
        Coef {
            factor: 1.0,
            power,
            value: None,
        }
    }

    /// Whether it is a constant, as it is written.
    pub fn is(&self, factor: f64) -> bool {
        let factor = Coef::of(f64::from(factor as f32));
        Coef::of(f64::from(self.factor as f32)) == factor
            && (self.power, self.value) == (factor.power, factor.value)
    }

    /// With another factor that is constant.
    pub fn times_constant(mut self, factor: f64) -> Coef {
        self.factor *= factor;
        self
    }

    /// The product of two.
    pub fn times(self, other: Coef, arena: &mut Arena, at: ScaleAt) -> Coef {
        let value = match (self.value, other.value) {
            (Some(a), Some(b)) => Some(arena.b32("mul.f32", &[a, b])),
            (a, b) => a.or(b),
        };
        let product = Coef {
            factor: self.factor * other.factor,
            power: self.power + other.power,
            value,
        };
        if product.power.abs() > MAX_POWER {
            let value = product.write(arena, at);
            return Coef {
                value: Some(value),
                ..Coef::ONE
            };
        }
        product
    }

    /// The sum of two.
    pub fn plus(self, other: Coef, arena: &mut Arena, at: ScaleAt) -> Coef {
        if (self.power, self.value) == (other.power, other.value) {
            let factor = self.factor + other.factor;
            return Coef { factor, ..self };
        }
        let power = if self.power == other.power {
            self.power
        } else {
            0
        };
        let strip = |coef: Coef| Coef {
            power: coef.power - power,
            ..coef
        };
        let (a, b) = (strip(self).write(arena, at), strip(other).write(arena, at));
        Coef {
            factor: 1.0,
            power,
            value: Some(arena.b32("add.f32", &[a, b])),
        }
    }

    /// Its value as an operation of the tile's level. softmax_scale is positive and finite: it changes neither 0 nor ∞.
    pub fn write(self, arena: &mut Arena, at: ScaleAt) -> OpId {
        let factor = self.factor as f32;
        let only_factor = factor == 0.0 || !factor.is_finite();
        if self.value.is_none() && (self.power == 0 || only_factor) {
            return arena.f32(factor);
        }
        let mut product = None;
        let mut multiply = |arena: &mut Arena, by: OpId| {
            product = Some(match product {
                Some(product) => arena.b32("mul.f32", &[product, by]),
                None => by,
            });
        };
        if let Some(value) = self.value {
            multiply(arena, value);
        }
        let offset = if self.power > 0 { at.scale } else { at.inverse };
        for _ in 0..self.power.abs() {
            let scale = arena.op(Op::Param32(offset));
            multiply(arena, scale);
        }
        if factor != 1.0 {
            let factor = arena.f32(factor);
            multiply(arena, factor);
        }
        match product {
            Some(product) => product,
            None => arena.f32(factor),
        }
    }
}
