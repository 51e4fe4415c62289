//! What edited scores are measured in.
//!
//! Kernels go on with `exp2(unit · log₂ e · (y − m))` where an edited score is `unit · y`, so an expression is written divided by its
//! unit. Raw scores are measured in softmax_scale, and so are expressions without a cap. `cap · tanh(s / cap) + …` is measured in the cap:
//! tanh alone is written, without a product.

use super::Edit;
use super::unscaled::passed_on;
use crate::{Binary, Expression, Id, Node, Type, Unary};

/// What edited scores are measured in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// softmax_scale.
    SoftmaxScale,
    /// The size of a cap.
    Cap(Cap),
}

/// What tanh is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cap {
    /// A constant, of a size from 2⁻⁶⁰ to 2⁶⁰.
    Constant(f32),
    /// A value of the launch, by its place in [`Edit::params`]. The expression is even in it.
    Param(u8),
}

/// The least unit: exp is 1 of all scores that are smaller than this.
const LEAST: f32 = 1.0 / MOST;
/// The greatest unit, and cap: it changes no score that f32 can distinguish from its neighbours. The unit times log₂ e is finite.
const MOST: f32 = (1u64 << 60) as f32;

impl Edit {
    /// Whether its scores are measured in the size of a cap.
    pub fn is_capped(&self) -> bool {
        matches!(self.unit(), Unit::Cap(_))
    }

    /// What its scores are measured in.
    pub fn unit(&self) -> Unit {
        let Some(score) = &self.score else {
            return Unit::SoftmaxScale;
        };
        let masks = |param| {
            let mask = self.mask.as_ref();
            mask.is_some_and(|mask| mask.params().contains(param))
        };
        let caps = terms(score).into_iter().filter_map(|term| {
            let (cap, _) = capped(score, term)?;
            Some(cap)
        });
        let is_unit = |cap: &Cap| match *cap {
            Cap::Constant(cap) => (LEAST..=MOST).contains(&cap.abs()),
            Cap::Param(nth) => {
                is_even(score, nth) && !score.params().get(usize::from(nth)).is_none_or(masks)
            }
        };
        let mut caps = caps.filter(is_unit);
        caps.next().map_or(Unit::SoftmaxScale, Unit::Cap)
    }
}

impl Unit {
    /// The unit of a launch, which is positive and finite, by the bits of its [`Edit::params`]. A cap among them becomes its size, which
    /// leaves `cap · tanh(s / cap)` as it is, and NaN where it is infinite, as that is then.
    pub fn of_launch(self, softmax_scale: f32, params: &mut [u32]) -> f32 {
        let cap = match self {
            Unit::SoftmaxScale => return softmax_scale,
            Unit::Cap(Cap::Constant(cap)) => return cap.abs(),
            Unit::Cap(Cap::Param(nth)) => params.get_mut(usize::from(nth)),
        };
        let Some(bits) = cap else {
            return softmax_scale;
        };
        let size = f32::from_bits(*bits).abs();
        if !size.is_finite() {
            *bits = f32::NAN.to_bits();
            return softmax_scale;
        }
        let size = size.min(MOST);
        *bits = size.to_bits();
        size.max(LEAST)
    }
}

/// Of `cap · tanh(…)`: the cap, and tanh.
pub fn capped(expression: &Expression, node: Node) -> Option<(Cap, Id)> {
    let Node::Binary(Binary::Mul, a, b) = node else {
        return None;
    };
    let node = |id: Id| expression.nodes().get(id as usize);
    let is_tanh = |id| matches!(node(id), Some(Node::Unary(Unary::Tanh(_), _)));
    let cap = |id| match *node(id)? {
        Node::F32(bits) => Some(Cap::Constant(f32::from_bits(bits))),
        Node::Param(nth) => {
            let param = expression.params().get(usize::from(nth))?;
            (param.ty == Type::F32).then_some(Cap::Param(nth))
        }
        _ => None,
    };
    [(a, b), (b, a)]
        .into_iter()
        .find_map(|(tanh, factor)| Some((cap(factor).filter(|_| is_tanh(tanh))?, tanh)))
}

/// What the expression is a sum or a choice of.
fn terms(expression: &Expression) -> Vec<Node> {
    let nodes = expression.nodes();
    let mut wanted = vec![false; nodes.len()];
    if let Some(last) = wanted.last_mut() {
        *last = true;
    }
    let mut terms = Vec::new();
    for (at, node) in nodes.iter().enumerate().rev() {
        if !wanted[at] {
            continue;
        }
        terms.push(*node);
        for operand in passed_on(*node).into_iter().flatten() {
            if let Some(wanted) = wanted.get_mut(operand as usize) {
                *wanted = true;
            }
        }
    }
    terms
}

/// Whether the parameter is only there as the cap of `cap · tanh(… / cap)`.
fn is_even(expression: &Expression, param: u8) -> bool {
    let nodes = expression.nodes();
    let node = |id: Id| nodes.get(id as usize).copied();
    let is_param = |id: Id| node(id) == Some(Node::Param(param));
    let quotient = |node| match node {
        Some(Node::Binary(Binary::Div, a, b)) => is_param(b) && !is_param(a),
        _ => false,
    };
    let tanh = |node_of: Option<Node>| match node_of {
        Some(Node::Unary(Unary::Tanh(_), x)) => quotient(node(x)),
        _ => false,
    };
    let product = |node_of: Node| match capped(expression, node_of) {
        Some((Cap::Param(nth), id)) => nth == param && tanh(node(id)),
        _ => false,
    };
    nodes.iter().all(|&of| {
        let mut all = true;
        of.operands(expression.tensors(), |id| {
            all &= match node(id) {
                Some(Node::Param(nth)) if nth == param => quotient(Some(of)) || product(of),
                operand if quotient(operand) => tanh(Some(of)),
                operand if tanh(operand) => product(of),
                _ => true,
            };
        });
        all
    })
}
