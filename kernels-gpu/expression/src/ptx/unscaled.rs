//! Scores divided by their unit: what an expression is made of takes the division, where that costs less.

use super::WriteError;
use super::coefficient::Coef;
use super::linear::Sum;
use super::lower::Lower;
use super::op::Op;
use super::unit::{Cap, Unit, capped};
use crate::{Binary, Id, Node};

impl Lower<'_> {
    /// The last node's value divided by the unit, which is positive. Selections and sums pass that on to what they are made of.
    pub fn unscaled(&mut self, unit: Unit) -> Result<Sum, WriteError> {
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
                let sum = self.unscaled_node(unit, at as Id, *node, &unscaled)?;
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
        unit: Unit,
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
            Node::Binary(binary @ (Binary::Min | Binary::Max), a, b) => {
                let (a, b) = (get(a)?, get(b)?);
                self.extreme(binary, &a, &b)
            }
            Node::Select(keep, a, b) => {
                let (a, b) = (get(a)?, get(b)?);
                let keep = self.truth(keep)?;
                self.select(keep, &a, &b)
            }
            _ => self.divided(unit, at, node)?,
        })
    }

    /// A node's value divided by the unit.
    fn divided(&mut self, unit: Unit, at: Id, node: Node) -> Result<Sum, WriteError> {
        let sum = self.f32(at)?;
        let Unit::Cap(unit) = unit else {
            return Ok(self.algebra().scaled(&sum, Coef::scale(-1)));
        };
        if let Some((cap, tanh)) = capped(self.expression, node)
            && cap == unit
        {
            let tanh = self.f32(tanh)?;
            let sign = match cap {
                Cap::Constant(cap) => f64::from(cap.signum()),
                // The launch has its size.
                Cap::Param(_) => 1.0,
            };
            return Ok(self.algebra().scaled(&tanh, Coef::of(sign)));
        }
        let inverse = Op::Param32(self.launch.places.inverse_unit);
        let inverse = Coef {
            value: Some(self.arena.op(inverse)),
            ..Coef::ONE
        };
        Ok(self.algebra().scaled(&sum, inverse))
    }
}

/// The operands that are divided by the unit where the node is to be.
pub fn passed_on(node: Node) -> [Option<Id>; 2] {
    match node {
        Node::Binary(Binary::Add | Binary::Sub | Binary::Min | Binary::Max, a, b)
        | Node::Select(_, a, b) => [Some(a), Some(b)],
        _ => [None, None],
    }
}
