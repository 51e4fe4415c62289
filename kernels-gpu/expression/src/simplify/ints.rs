//! Whole numbers: what holds where arithmetic wraps around and division by 0 gives 0.

use crate::intern::Interner;
use crate::{Binary, Id, Node, Unary};

impl Interner {
    /// What is simpler than a function of two whole numbers, of which at most one is constant.
    pub(super) fn simpler_int(
        &mut self,
        op: Binary,
        (a, x): (Id, Option<i32>),
        (b, y): (Id, Option<i32>),
    ) -> Option<Id> {
        let (variable, constant) = match (x, y) {
            (Some(x), None) => (b, Some(x)),
            (_, y) => (a, y),
        };
        match op {
            Binary::Add | Binary::Sub => self.simpler_sum(op, (a, x), (b, y)),
            Binary::Mul => match constant? {
                0 => Some(self.int(0)),
                1 => Some(variable),
                -1 => Some(self.unary(Unary::Neg, variable)),
                c => self.regrouped(op, variable, c),
            },
            Binary::Div => match (x, y) {
                (Some(0), _) | (_, Some(0)) => Some(self.int(0)),
                (_, Some(1)) => Some(a),
                (_, Some(-1)) => Some(self.unary(Unary::Neg, a)),
                _ => None,
            },
            Binary::Rem if a == b => Some(self.int(0)),
            Binary::Rem => match (x, y) {
                (Some(0), _) | (_, Some(1 | -1)) => Some(self.int(0)),
                (_, Some(0)) => Some(a),
                _ => None,
            },
            Binary::Min | Binary::Max | Binary::And | Binary::Or if a == b => Some(a),
            Binary::Min => self.bounded(op, variable, constant?, i32::MAX, i32::MIN),
            Binary::Max => self.bounded(op, variable, constant?, i32::MIN, i32::MAX),
            Binary::And => self.bounded(op, variable, constant?, -1, 0),
            Binary::Or => self.bounded(op, variable, constant?, 0, -1),
            Binary::Xor if a == b => Some(self.int(0)),
            Binary::Xor => match constant? {
                0 => Some(variable),
                -1 => Some(self.unary(Unary::Not, variable)),
                c => self.regrouped(op, variable, c),
            },
            Binary::Shl | Binary::Shr => match (x, y) {
                (Some(0), _) => Some(a),
                (Some(-1), _) if op == Binary::Shr => Some(a),
                (_, Some(y)) if y & 31 == 0 => Some(a),
                (_, Some(y)) if y & 31 != y => {
                    let y = self.int(y & 31);
                    Some(self.binary(op, a, y))
                }
                _ => None,
            },
        }
    }

    /// a + b or a − b. Constants are added, not subtracted.
    fn simpler_sum(
        &mut self,
        op: Binary,
        (a, x): (Id, Option<i32>),
        (b, y): (Id, Option<i32>),
    ) -> Option<Id> {
        let negated = |interner: &Interner, id| interner.argument(Unary::Neg, id);
        if op == Binary::Sub {
            if a == b {
                return Some(self.int(0));
            }
            if let Some(y) = y {
                let y = self.int(y.wrapping_neg());
                return Some(self.binary(Binary::Add, a, y));
            }
            if x == Some(0) {
                return Some(self.unary(Unary::Neg, b));
            }
            return negated(self, b).map(|b| self.binary(Binary::Add, a, b));
        }
        match (x, y) {
            (Some(0), _) => Some(b),
            (_, Some(0)) => Some(a),
            (Some(c), _) if self.is_sum(op, b) => self.regrouped(op, b, c),
            (_, Some(c)) if self.is_sum(op, a) => self.regrouped(op, a, c),
            _ => match (negated(self, a), negated(self, b)) {
                (_, Some(b)) => Some(self.binary(Binary::Sub, a, b)),
                (Some(a), None) => Some(self.binary(Binary::Sub, b, a)),
                (None, None) => None,
            },
        }
    }

    fn is_sum(&self, op: Binary, id: Id) -> bool {
        matches!(self.node(id), Node::Binary(of, ..) if of == op)
    }

    /// (x ∘ c) ∘ d as x ∘ (c ∘ d), of an associative function: `id` is x ∘ c.
    fn regrouped(&mut self, op: Binary, id: Id, d: i32) -> Option<Id> {
        let Node::Binary(of, a, b) = self.node(id) else {
            return None;
        };
        let (x, c) = match (self.as_int(a), self.as_int(b)) {
            (Some(c), _) => (b, c),
            (_, Some(c)) => (a, c),
            (None, None) => return None,
        };
        if of != op {
            return None;
        }
        let d = self.int(d);
        let c = self.int(c);
        let constant = self.binary(op, c, d);
        Some(self.binary(op, x, constant))
    }

    /// A function of `variable` and a constant, which is `variable` for `neutral` and `absorbing` for that.
    fn bounded(
        &mut self,
        op: Binary,
        variable: Id,
        constant: i32,
        neutral: i32,
        absorbing: i32,
    ) -> Option<Id> {
        if constant == neutral {
            Some(variable)
        } else if constant == absorbing {
            Some(self.int(absorbing))
        } else {
            self.regrouped(op, variable, constant)
        }
    }
}
