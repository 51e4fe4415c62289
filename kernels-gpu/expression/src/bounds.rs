//! Bounds of an expression's nodes over all places of a box, such as a tile of scores: by the rules that the device also has
//! ([`crate::device::interval`]), and by those of functions that only the host bounds. So a mask that is decided on a tile is decided there on every backend.

mod functions;

use super::{Binary, Expression, Id, Index, MAX_RANK, Node, ParamValue, Type, Unary};
use crate::device::interval::nums::Range;
pub use crate::device::interval::{Bounds, Truth};

/// What a mask does on a box of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskOver {
    /// All scores are visible.
    AllTrue,
    /// No score is visible.
    AllFalse,
    /// Some may be visible and others not.
    Unknown,
}

/// Bounds of the elements of a tensor, by its index in the list and the ranges of the indices, which may exceed the tensor. `None`: unknown.
pub type TensorBounds<'a> = &'a dyn Fn(usize, [(i32, i32); MAX_RANK]) -> Option<Bounds>;

/// A box of places, and bounds of a call's inputs. Each range has its minimum first.
#[derive(Clone, Copy)]
pub struct Ranges<'a> {
    indices: [(i32, i32); Index::ALL.len()],
    score: Bounds,
    params: &'a [Bounds],
    tensors: TensorBounds<'a>,
}

impl From<ParamValue> for Bounds {
    fn from(value: ParamValue) -> Bounds {
        match value {
            ParamValue::F32(x) => Bounds::num(x),
            ParamValue::I32(x) => Bounds::int(x),
        }
    }
}

impl<'a> Ranges<'a> {
    /// All places; the call's inputs are unknown, and indices are not negative.
    pub fn all() -> Ranges<'a> {
        Ranges {
            indices: [(0, i32::MAX); Index::ALL.len()],
            score: Bounds::all(Type::F32),
            params: &[],
            tensors: &|_, _| None,
        }
    }

    /// Only places where an index is at least `lo` and at most `hi`.
    pub fn with_index(mut self, index: Index, lo: i32, hi: i32) -> Ranges<'a> {
        self.indices[index as usize] = (lo, hi);
        self
    }

    /// Bounds of the score.
    pub fn with_score(self, score: Bounds) -> Ranges<'a> {
        Ranges { score, ..self }
    }

    /// Bounds of the parameters, each by its index in the list.
    pub fn with_params(self, params: &'a [Bounds]) -> Ranges<'a> {
        Ranges { params, ..self }
    }

    /// Bounds of the tensors.
    pub fn with_tensors(self, tensors: TensorBounds<'a>) -> Ranges<'a> {
        Ranges { tensors, ..self }
    }

    /// Bounds of a node of type `ty`, given those of its operands.
    fn bounds(&self, node: Node, ty: Type, known: &[Bounds]) -> Bounds {
        let of = |id: Id| known[id as usize];
        match node {
            Node::Score => self.score,
            Node::Index(index) => {
                let (lo, hi) = self.indices[index as usize];
                Bounds::Int { lo, hi }
            }
            Node::F32(bits) => Bounds::num(f32::from_bits(bits)),
            Node::I32(x) => Bounds::int(x),
            Node::Bool(x) => Bounds::Cond(Truth::of(x)),
            Node::Param(slot) => self.given(ty, self.params.get(usize::from(slot)).copied()),
            Node::Read(slot, ids) => {
                let ranges = ids.map(|id| of(id).range());
                self.given(ty, (self.tensors)(usize::from(slot), ranges))
            }
            Node::Unary(op, a) => unary(op, of(a)),
            Node::Binary(op, a, b) => binary(op, of(a), of(b)),
            Node::Compare(op, a, b) => of(a).compare(op, of(b)),
            Node::Select(c, a, b) => of(c).select(of(a), of(b)),
        }
    }

    /// Bounds of an input of the call, if it has this type.
    fn given(&self, ty: Type, known: Option<Bounds>) -> Bounds {
        let all = Bounds::all(ty);
        known
            .filter(|known| std::mem::discriminant(known) == std::mem::discriminant(&all))
            .unwrap_or(all)
    }
}

/// Bounds of a function of a value.
fn unary(op: Unary, a: Bounds) -> Bounds {
    match (op, a) {
        (
            Unary::Exp2(_) | Unary::Ln(_) | Unary::Tanh(_) | Unary::Sigmoid(_) | Unary::Sqrt(_),
            Bounds::Num { lo, hi, nan },
        ) => functions::unary(op, Range { lo, hi, nan }),
        (op, a) => a.unary(op),
    }
}

/// Bounds of a function of two values.
fn binary(op: Binary, a: Bounds, b: Bounds) -> Bounds {
    match (op, a) {
        (Binary::Div, Bounds::Num { lo, hi, nan }) => {
            functions::quotient(Range { lo, hi, nan }, Range::of(b))
        }
        (op, a) => a.binary(op, b),
    }
}

impl Expression {
    /// Bounds of the value at all places of a box.
    pub fn bounds(&self, ranges: &Ranges) -> Bounds {
        let mut all = Vec::new();
        self.all_bounds(ranges, &mut all);
        all.last().copied().unwrap_or(Bounds::all(Type::F32))
    }

    /// Bounds of each node at all places of a box, which replace the contents of `all`. For many boxes: the memory is reused.
    pub fn all_bounds(&self, ranges: &Ranges, all: &mut Vec<Bounds>) {
        all.clear();
        for node in &self.nodes {
            let ty = match *node {
                Node::Param(slot) => self.params[usize::from(slot)].ty,
                Node::Read(slot, _) => self.tensors[usize::from(slot)].element.ty(),
                // Of the others the type is not asked for.
                _ => Type::F32,
            };
            let bounds = ranges.bounds(*node, ty, all);
            all.push(bounds.flushed());
        }
    }

    /// What a mask does on a box of places. The score is unknown.
    pub fn mask_over(&self, ranges: &Ranges) -> MaskOver {
        match self.bounds(ranges).truth() {
            Truth::True => MaskOver::AllTrue,
            Truth::False => MaskOver::AllFalse,
            Truth::Unknown => MaskOver::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
