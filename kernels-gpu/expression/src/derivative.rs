//! The derivative of a score's expression by the score, or by an element of a tensor that it reads, node by node (forward mode).
//!
//! Comparisons and integers have none: their results are constants here. At a kink the derivative is that of one side: |x| has 0 at 0, and
//! the lesser or greater of two equal values has that of the one which does not depend on the score, or, if both do, of the node's first.

use std::f32::consts::{LN_2, LOG2_E};

use super::intern::Interner;
use super::{Binary, Compare, Expression, ExpressionError, Id, Node, Type, Unary};

impl Expression {
    /// The derivative by the score. It names the same parameters and tensors. A mask has none.
    pub fn derivative_by_score(&self) -> Result<Expression, ExpressionError> {
        self.derivative(|node| node == Node::Score)
    }

    /// The derivative by the element of a tensor that is read, with the tensor's index in [`Expression::tensors`]: as if all its reads were of one
    /// element, which [`Expression::read_dims`] ensures.
    pub fn derivative_by_tensor(&self, place: u8) -> Result<Expression, ExpressionError> {
        self.derivative(|node| matches!(node, Node::Read(read, _) if read == place))
    }

    /// The derivative by the nodes that are the variable.
    fn derivative(
        &self,
        is_variable: impl Fn(Node) -> bool,
    ) -> Result<Expression, ExpressionError> {
        if self.is_mask() {
            let (given, wanted) = (Type::Bool, Type::F32);
            return Err(ExpressionError::Value { given, wanted });
        }
        let mut interner = Interner::new(&self.params, &self.tensors);
        let ids = interner.copy_all(&self.nodes);
        let mut slopes: Vec<Slope> = Vec::with_capacity(ids.len());
        for (node, &id) in self.nodes.iter().zip(&ids) {
            let operand = |id: Id| (ids[id as usize], slopes[id as usize]);
            let slope = match is_variable(*node) {
                true => Some(interner.num(1.0)),
                false => interner.slope(*node, id, operand),
            };
            // What is 0 everywhere adds nothing.
            slopes.push(slope.filter(|&slope| interner.as_num(slope) != Some(0.0)));
        }
        let root = slopes.last().copied().flatten();
        let root = root.unwrap_or_else(|| interner.num(0.0));
        interner.expression(root)
    }
}

/// A derivative; none is 0.
type Slope = Option<Id>;

impl Interner {
    /// The derivative of a node that is not the variable, with the number `y`.
    fn slope(&mut self, node: Node, y: Id, operand: impl Fn(Id) -> (Id, Slope)) -> Slope {
        match node {
            Node::Unary(op, x) => {
                let (x, dx) = operand(x);
                self.unary_slope(op, x, dx?, y)
            }
            Node::Binary(op, a, b) => {
                let (a, b) = (operand(a), operand(b));
                match (a.1, b.1) {
                    (None, None) => None,
                    _ => self.binary_slope(op, a, b, y),
                }
            }
            Node::Select(c, a, b) => {
                let (c, a, b) = (operand(c).0, operand(a).1, operand(b).1);
                self.choice(c, a, b)
            }
            Node::Score
            | Node::Index(_)
            | Node::F32(_)
            | Node::I32(_)
            | Node::Bool(_)
            | Node::Param(_)
            | Node::Compare(..)
            | Node::Read(..) => None,
        }
    }

    fn product(&mut self, a: Id, b: Id) -> Id {
        self.binary(Binary::Mul, a, b)
    }

    /// A slope times a factor. If it was divided by that, as the slope of `cap · tanh(s / cap)` is, neither is left.
    fn times(&mut self, slope: Id, factor: Id) -> Id {
        let numerator = |interner: &Interner, id| match interner.node(id) {
            Node::Binary(Binary::Div, a, divisor) if divisor == factor => Some(a),
            _ => None,
        };
        if let Some(a) = numerator(self, slope) {
            return a;
        }
        if let Node::Binary(Binary::Mul, a, b) = self.node(slope) {
            for (quotient, other) in [(a, b), (b, a)] {
                if let Some(a) = numerator(self, quotient) {
                    return self.product(other, a);
                }
            }
        }
        self.product(slope, factor)
    }

    /// One slope or the other.
    fn choice(&mut self, c: Id, a: Slope, b: Slope) -> Slope {
        if a.is_none() && b.is_none() {
            return None;
        }
        let zero = self.num(0.0);
        Some(self.select(c, a.unwrap_or(zero), b.unwrap_or(zero)))
    }

    fn unary_slope(&mut self, op: Unary, x: Id, dx: Id, y: Id) -> Slope {
        let slope = match op {
            Unary::Neg => return Some(self.unary(Unary::Neg, dx)),
            Unary::Abs => {
                let zero = self.num(0.0);
                let is_positive = self.compare(Compare::Lt, zero, x);
                let is_negative = self.compare(Compare::Lt, x, zero);
                let negative = self.unary(Unary::Neg, dx);
                let rest = self.select(is_negative, negative, zero);
                return Some(self.select(is_positive, dx, rest));
            }
            // eˣ is 2 to the power of x · log₂ e: its own derivative, without two roundings of constants whose product is 1.
            Unary::Exp2(_) => match self.natural_exponent(x, dx) {
                Some(dx) => return Some(self.product(y, dx)),
                None => {
                    let ln2 = self.num(LN_2);
                    self.product(y, ln2)
                }
            },
            Unary::Ln(_) => return Some(self.binary(Binary::Div, dx, x)),
            Unary::Tanh(_) => {
                let one = self.num(1.0);
                let square = self.product(y, y);
                self.binary(Binary::Sub, one, square)
            }
            Unary::Sigmoid(_) => {
                let one = self.num(1.0);
                let rest = self.binary(Binary::Sub, one, y);
                self.product(y, rest)
            }
            Unary::Sqrt(_) => {
                let half = self.num(0.5);
                self.binary(Binary::Div, half, y)
            }
            Unary::Not | Unary::ToF32 | Unary::ToI32 => return None,
        };
        Some(self.product(slope, dx))
    }

    /// If x is z · log₂ e, and so its derivative dx that of z times as much: the derivative of z.
    fn natural_exponent(&mut self, x: Id, dx: Id) -> Option<Id> {
        let factor = |interner: &Interner, id| match interner.node(id) {
            Node::Binary(Binary::Mul, a, b) if interner.as_num(a) == Some(LOG2_E) => Some(b),
            Node::Binary(Binary::Mul, a, b) if interner.as_num(b) == Some(LOG2_E) => Some(a),
            _ => None,
        };
        factor(self, x)?;
        if self.as_num(dx) == Some(LOG2_E) {
            return Some(self.num(1.0));
        }
        factor(self, dx)
    }

    /// The derivative of a function of two values, of which at least one has one.
    fn binary_slope(
        &mut self,
        op: Binary,
        (a, da): (Id, Slope),
        (b, db): (Id, Slope),
        y: Id,
    ) -> Slope {
        let terms = match op {
            Binary::Add | Binary::Sub => (da, db),
            Binary::Mul => (
                da.map(|da| self.times(da, b)),
                db.map(|db| self.times(db, a)),
            ),
            // (da − y · db) / b.
            Binary::Div => {
                let db = db.map(|db| self.product(y, db));
                let numerator = self.sum(Binary::Sub, da, db)?;
                return Some(self.binary(Binary::Div, numerator, b));
            }
            Binary::Min | Binary::Max => {
                // In a tie the one that depends on the score is not chosen; beside NaN it is.
                let order = |x, y| if op == Binary::Min { (x, y) } else { (y, x) };
                let (is, (x, y), other, first, second) = match (da, db) {
                    (None, _) => (Compare::Lt, order(b, a), a, db, da),
                    (_, None) => (Compare::Lt, order(a, b), b, da, db),
                    _ => (Compare::Le, order(a, b), b, da, db),
                };
                let is_before = self.compare(is, x, y);
                let is_alone = self.compare(Compare::Ne, other, other);
                let is_chosen = self.binary(Binary::Or, is_before, is_alone);
                return self.choice(is_chosen, first, second);
            }
            Binary::Rem | Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
                return None;
            }
        };
        let op = if op == Binary::Sub { op } else { Binary::Add };
        self.sum(op, terms.0, terms.1)
    }

    /// a + b or a − b.
    fn sum(&mut self, op: Binary, a: Slope, b: Slope) -> Slope {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.binary(op, a, b)),
            (None, Some(b)) if op == Binary::Sub => Some(self.unary(Unary::Neg, b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests;
