//! Numbers: what holds for all of them, infinities, NaN and both zeros among them.

use crate::intern::Interner;
use crate::{Binary, Id, Unary};

impl Interner {
    /// What is simpler than a function of two numbers, of which at most one is constant.
    pub(super) fn simpler_num(
        &mut self,
        op: Binary,
        (a, x): (Id, Option<f32>),
        (b, y): (Id, Option<f32>),
    ) -> Option<Id> {
        let (variable, constant) = match (x, y) {
            (Some(x), None) => (b, Some(x)),
            (_, y) => (a, y),
        };
        let negated = |interner: &Interner, id| interner.argument(Unary::Neg, id);
        match op {
            Binary::Add => match constant {
                Some(c) if c == 0.0 && c.is_sign_negative() => Some(variable),
                Some(c) if c.is_nan() => Some(self.num(c)),
                _ => match (negated(self, a), negated(self, b)) {
                    (_, Some(b)) => Some(self.binary(Binary::Sub, a, b)),
                    (Some(a), None) => Some(self.binary(Binary::Sub, b, a)),
                    (None, None) => None,
                },
            },
            Binary::Sub => match (y, negated(self, b)) {
                (Some(y), _) => {
                    let y = self.num(-y);
                    Some(self.binary(Binary::Add, a, y))
                }
                (None, Some(b)) => Some(self.binary(Binary::Add, a, b)),
                (None, None) if x.is_some_and(f32::is_nan) => Some(a),
                (None, None) => None,
            },
            Binary::Mul => match constant? {
                1.0 => Some(variable),
                -1.0 => Some(self.unary(Unary::Neg, variable)),
                c if c.is_nan() => Some(self.num(c)),
                _ => None,
            },
            Binary::Div => match (x, y) {
                (Some(c), _) | (_, Some(c)) if c.is_nan() => Some(self.num(c)),
                (_, Some(y)) => {
                    let y = self.num(reciprocal(y)?);
                    Some(self.binary(Binary::Mul, a, y))
                }
                _ => None,
            },
            Binary::Min | Binary::Max if a == b => Some(a),
            Binary::Min | Binary::Max => constant?.is_nan().then_some(variable),
            Binary::Rem | Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
                None
            }
        }
    }
}

/// The reciprocal of a power of two: dividing by the one is multiplying with the other.
fn reciprocal(x: f32) -> Option<f32> {
    // Zeros and infinities have no fraction either; their reciprocals are not normal.
    let has_fraction = x.to_bits() << 9 != 0;
    Some(x.recip()).filter(|x| !has_fraction && x.is_normal())
}
