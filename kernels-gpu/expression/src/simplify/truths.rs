//! Truth values, and what is chosen by them.

use crate::intern::Interner;
use crate::{Binary, Compare, Id, Node, Type, Unary};

impl Interner {
    /// What is simpler than a function of two truth values, of which at most one is constant.
    pub(super) fn simpler_truth(
        &mut self,
        op: Binary,
        (a, x): (Id, Option<bool>),
        (b, y): (Id, Option<bool>),
    ) -> Option<Id> {
        let (variable, constant) = match (x, y) {
            (Some(x), None) => (b, Some(x)),
            (_, y) => (a, y),
        };
        let is_contrary =
            self.argument(Unary::Not, a) == Some(b) || self.argument(Unary::Not, b) == Some(a);
        match (op, constant) {
            (Binary::And, Some(true)) | (Binary::Or | Binary::Xor, Some(false)) => Some(variable),
            (Binary::And, Some(false)) => Some(self.truth(false)),
            (Binary::Or, Some(true)) => Some(self.truth(true)),
            (Binary::Xor, Some(true)) => Some(self.unary(Unary::Not, variable)),
            (Binary::And | Binary::Or, None) if a == b => Some(a),
            (Binary::Xor, None) if a == b => Some(self.truth(false)),
            (Binary::And, None) if is_contrary => Some(self.truth(false)),
            (Binary::Or | Binary::Xor, None) if is_contrary => Some(self.truth(true)),
            _ => None,
        }
    }

    /// A choice. One between truth values becomes an expression of `and` and `or`.
    pub fn select(&mut self, c: Id, a: Id, b: Id) -> Id {
        if let Some(c) = self.as_truth(c) {
            return if c { a } else { b };
        }
        if let Some(c) = self.argument(Unary::Not, c) {
            return self.select(c, b, a);
        }
        if let Node::Compare(Compare::Ne, x, y) = self.node(c) {
            let c = self.compare(Compare::Eq, x, y);
            return self.select(c, b, a);
        }
        // What the same condition chooses in an arm is known there.
        let a = match self.node(a) {
            Node::Select(inner, x, _) if inner == c => x,
            _ => a,
        };
        let b = match self.node(b) {
            Node::Select(inner, _, y) if inner == c => y,
            _ => b,
        };
        if a == b {
            return a;
        }
        if self.ty(a) != Type::Bool {
            return self.keep(Node::Select(c, a, b));
        }
        let first = self.binary(Binary::And, c, a);
        let not = self.unary(Unary::Not, c);
        let second = self.binary(Binary::And, not, b);
        match (self.as_truth(a), self.as_truth(b)) {
            (Some(true), _) => self.binary(Binary::Or, c, b),
            (_, Some(true)) => self.binary(Binary::Or, not, a),
            _ => self.binary(Binary::Or, first, second),
        }
    }
}
