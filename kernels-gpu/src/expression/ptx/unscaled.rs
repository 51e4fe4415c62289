//! Scores divided by softmax_scale: what an expression is made of takes the division, where that costs less.

use super::WriteError;
use super::coefficient::Coef;
use super::linear::Sum;
use super::lower::Lower;
use crate::expression::{Binary, Id, Node};

impl Lower<'_> {
    /// The last node's value divided by softmax_scale, which selections and sums pass on to what they are made of.
    pub fn unscaled(&mut self) -> Result<Sum, WriteError> {
        let nodes = self.expression.nodes();
        let mut wanted = vec![false; nodes.len()];
        if let Some(last) = wanted.last_mut() {
            *last = true;
        }
        for (at, node) in nodes.iter().enumerate().rev() {
            if wanted[at] {
                for operand in passed_on(*node).into_iter().flatten() {
                    match wanted.get_mut(operand as usize) {
                        Some(wanted) => *wanted = true,
                        None => return Err(self.malformed()),
                    }
                }
            }
        }
        let mut unscaled: Vec<Option<Sum>> = vec![None; nodes.len()];
        for (at, node) in nodes.iter().enumerate() {
            if wanted[at] {
                let sum = self.unscaled_node(at as Id, *node, &unscaled)?;
                unscaled[at] = Some(sum);
            }
        }
        match unscaled.pop() {
            Some(Some(sum)) => Ok(sum),
            _ => Err(WriteError::NoNumber),
        }
    }

    fn unscaled_node(
        &mut self,
        at: Id,
        node: Node,
        done: &[Option<Sum>],
    ) -> Result<Sum, WriteError> {
        let get = |id: Id| match done.get(id as usize) {
            Some(Some(sum)) => Ok(sum.clone()),
            _ => Err(WriteError::Malformed { node: at }),
        };
        Ok(match node {
            Node::Binary(Binary::Add, a, b) => self.algebra().add(&get(a)?, &get(b)?),
            Node::Binary(Binary::Sub, a, b) => {
                let (a, b) = (get(a)?, get(b)?);
                self.sub(&a, &b)
            }
            // softmax_scale is positive.
            Node::Binary(binary @ (Binary::Min | Binary::Max), a, b) => {
                let (a, b) = (get(a)?, get(b)?);
                self.extreme(binary, &a, &b)
            }
            Node::Select(keep, a, b) => {
                let (a, b) = (get(a)?, get(b)?);
                let keep = self.truth(keep)?;
                self.select(keep, &a, &b)
            }
            _ => {
                let sum = self.f32(at)?;
                self.algebra().scaled(&sum, Coef::scale(-1))
            }
        })
    }
}

/// The operands that are divided by softmax_scale where the node is to be.
fn passed_on(node: Node) -> [Option<Id>; 2] {
    match node {
        Node::Binary(Binary::Add | Binary::Sub | Binary::Min | Binary::Max, a, b)
        | Node::Select(_, a, b) => [Some(a), Some(b)],
        _ => [None, None],
    }
}
