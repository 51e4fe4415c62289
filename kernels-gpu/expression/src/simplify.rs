//! Simplification: each node, as it enters an [`Interner`], becomes one of the same value that is simpler. [`Evaluator`](super::Evaluator) gives
//! the same bits before and after, in f32 and in f64, but for the payload and the sign of NaN.
//!
//! So functions of constants become constants where they are exact: 0.5 · 4 does, 1 / 3 does not, because it is one number in f32 and another
//! in f64. And x + 0 stays, for it makes 0 of −0, while x + (−0) is x.

mod ints;

mod nums;

mod truths;

use super::arithmetic::{binary_bool, binary_int, compare, unary_int};
use super::intern::Interner;
use super::{Binary, Compare, Expression, ExpressionError, Id, Node, Real, Type, Unary};

impl Expression {
    /// An expression of the same value with nodes that are simpler and no more of them than it takes. It names the same parameters and tensors.
    pub fn simplified(&self) -> Result<Expression, ExpressionError> {
        let mut interner = Interner::new(&self.params, &self.tensors);
        let root = interner.copy(&self.nodes);
        interner.expression(root)
    }
}

impl Interner {
    /// The expression whose value is that of `root`.
    pub fn expression(&self, root: Id) -> Result<Expression, ExpressionError> {
        Expression::from_nodes(&self.reachable(root), &self.params, &self.tensors)
    }

    /// The number of a node with the value of `node`.
    pub(super) fn add_simplified(&mut self, node: Node) -> Id {
        match node {
            Node::F32(bits) if f32::from_bits(bits).is_nan() => self.num(f32::NAN),
            Node::Unary(op, a) => self.unary(op, a),
            Node::Binary(op, a, b) => self.binary(op, a, b),
            Node::Compare(op, a, b) => self.compare(op, a, b),
            Node::Select(c, a, b) => self.select(c, a, b),
            Node::Score
            | Node::Index(_)
            | Node::F32(_)
            | Node::I32(_)
            | Node::Bool(_)
            | Node::Param(_)
            | Node::Read(..) => self.keep(node),
        }
    }

    /// A constant.
    pub fn num(&mut self, x: f32) -> Id {
        // One NaN for all.
        let x = if x.is_nan() { f32::NAN } else { x };
        self.keep(Node::F32(x.to_bits()))
    }

    /// A constant.
    pub fn int(&mut self, x: i32) -> Id {
        self.keep(Node::I32(x))
    }

    /// A constant.
    pub fn truth(&mut self, x: bool) -> Id {
        self.keep(Node::Bool(x))
    }

    /// A node's constant.
    pub fn as_num(&self, id: Id) -> Option<f32> {
        match self.node(id) {
            Node::F32(bits) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    /// A node's constant.
    pub fn as_int(&self, id: Id) -> Option<i32> {
        match self.node(id) {
            Node::I32(x) => Some(x),
            _ => None,
        }
    }

    /// A node's constant.
    pub fn as_truth(&self, id: Id) -> Option<bool> {
        match self.node(id) {
            Node::Bool(x) => Some(x),
            _ => None,
        }
    }

    /// What a node is the given function of.
    fn argument(&self, op: Unary, id: Id) -> Option<Id> {
        match self.node(id) {
            Node::Unary(of, a) if of == op => Some(a),
            _ => None,
        }
    }

    /// A function of one value.
    pub fn unary(&mut self, op: Unary, a: Id) -> Id {
        if let Some(x) = self.as_int(a) {
            if op != Unary::ToF32 {
                return self.int(unary_int(op, x));
            }
            if (x as f32) as f64 == f64::from(x) {
                return self.num(x as f32);
            }
        }
        if let Some(x) = self.as_truth(a) {
            return self.truth(!x);
        }
        if let Some(x) = self.as_num(a) {
            if op == Unary::ToI32 {
                return self.int(x.to_i32());
            }
            if let Some(x) = exact(Real::unary(x, op), Real::unary(f64::from(x), op)) {
                return self.num(x);
            }
        }
        match (op, self.node(a)) {
            // An involution.
            (Unary::Neg | Unary::Not, Node::Unary(inner, x)) if inner == op => x,
            (Unary::Abs, Node::Unary(Unary::Abs, _)) => a,
            (Unary::Abs, Node::Unary(Unary::Neg, x)) => self.unary(Unary::Abs, x),
            (Unary::Not, Node::Compare(Compare::Eq, x, y)) => self.compare(Compare::Ne, x, y),
            (Unary::Not, Node::Compare(Compare::Ne, x, y)) => self.compare(Compare::Eq, x, y),
            // Neither of a < b and b ≤ a is true beside NaN.
            (Unary::Not, Node::Compare(Compare::Lt, x, y)) if self.ty(x) == Type::I32 => {
                self.compare(Compare::Le, y, x)
            }
            (Unary::Not, Node::Compare(Compare::Le, x, y)) if self.ty(x) == Type::I32 => {
                self.compare(Compare::Lt, y, x)
            }
            _ => self.keep(Node::Unary(op, a)),
        }
    }

    /// A function of two values.
    pub fn binary(&mut self, op: Binary, a: Id, b: Id) -> Id {
        let (a, b) = if op.is_commutative() && b < a {
            (b, a)
        } else {
            (a, b)
        };
        let simpler = match self.ty(a) {
            Type::F32 => match (self.as_num(a), self.as_num(b)) {
                (Some(x), Some(y)) => {
                    let oracle = Real::binary(f64::from(x), op, f64::from(y));
                    let x = exact(Real::binary(x, op, y), oracle);
                    x.map(|x| self.num(x))
                }
                (x, y) => self.simpler_num(op, (a, x), (b, y)),
            },
            Type::I32 => match (self.as_int(a), self.as_int(b)) {
                (Some(x), Some(y)) => Some(self.int(binary_int(op, x, y))),
                (x, y) => self.simpler_int(op, (a, x), (b, y)),
            },
            Type::Bool => match (self.as_truth(a), self.as_truth(b)) {
                (Some(x), Some(y)) => Some(self.truth(binary_bool(op, x, y))),
                (x, y) => self.simpler_truth(op, (a, x), (b, y)),
            },
        };
        simpler.unwrap_or_else(|| self.keep(Node::Binary(op, a, b)))
    }

    /// A comparison.
    pub fn compare(&mut self, op: Compare, a: Id, b: Id) -> Id {
        let (a, b) = if op.is_commutative() && b < a {
            (b, a)
        } else {
            (a, b)
        };
        let known = match self.ty(a) {
            Type::F32 => match (self.as_num(a), self.as_num(b)) {
                (Some(x), Some(y)) => Some(compare(op, x, y)),
                (x, y) => {
                    let is_nan = |x: Option<f32>| x.is_some_and(f32::is_nan);
                    let is_beyond = x == Some(f32::INFINITY) || y == Some(f32::NEG_INFINITY);
                    let is_less = op == Compare::Lt;
                    let is_number = self.argument(Unary::ToF32, a).is_some();
                    if a == b && is_number {
                        Some(compare(op, 0, 0))
                    } else if is_nan(x) || is_nan(y) {
                        Some(op == Compare::Ne)
                    } else {
                        // Whether x ≤ x depends on whether x is NaN.
                        (is_less && (a == b || is_beyond)).then_some(false)
                    }
                }
            },
            Type::I32 => match (self.as_int(a), self.as_int(b)) {
                (Some(x), Some(y)) => Some(compare(op, x, y)),
                _ if a == b => Some(compare(op, 0, 0)),
                (x, y) if op == Compare::Lt => {
                    (x == Some(i32::MAX) || y == Some(i32::MIN)).then_some(false)
                }
                (x, y) if op == Compare::Le => {
                    (x == Some(i32::MIN) || y == Some(i32::MAX)).then_some(true)
                }
                _ => None,
            },
            Type::Bool => None,
        };
        match known {
            Some(known) => self.truth(known),
            None => self.keep(Node::Compare(op, a, b)),
        }
    }
}

/// A number that is the same in f32 and in f64.
fn exact(x: f32, oracle: f64) -> Option<f32> {
    let is_exact = f64::from(x).to_bits() == oracle.to_bits() || x.is_nan() && oracle.is_nan();
    is_exact.then_some(x)
}

#[cfg(test)]
mod tests;
