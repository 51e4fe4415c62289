//! Evaluation on the CPU, pair by pair.

use super::arithmetic::{Real, binary_bool, binary_int, compare, unary_int};
use super::{
    Dependencies, Expression, ExpressionError, Id, Index, MAX_RANK, Node, Param, Tensor, Type,
    Unary,
};

/// The indices of a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreIndices {
    indices: [i32; Index::ALL.len()],
}

impl ScoreIndices {
    /// The value of an index.
    #[inline]
    pub const fn get(&self, index: Index) -> i32 {
        self.indices[index as usize]
    }

    /// Sets the value of an index.
    #[inline]
    pub fn set(&mut self, index: Index, value: i32) {
        self.indices[index as usize] = value;
    }

    /// The same position with another value of an index.
    #[inline]
    pub const fn with(mut self, index: Index, value: i32) -> ScoreIndices {
        self.indices[index as usize] = value;
        self
    }
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParamValue {
    /// A number.
    F32(f32),
    /// An integer.
    I32(i32),
}

impl ParamValue {
    /// What it is.
    pub const fn ty(self) -> Type {
        match self {
            ParamValue::F32(_) => Type::F32,
            ParamValue::I32(_) => Type::I32,
        }
    }
}

impl From<f32> for ParamValue {
    fn from(value: f32) -> ParamValue {
        ParamValue::F32(value)
    }
}

impl From<i32> for ParamValue {
    fn from(value: i32) -> ParamValue {
        ParamValue::I32(value)
    }
}

/// The tensors that a call gives, each by its index in the expression's list. Indices beyond a tensor's rank are 0.
pub trait Tensors {
    /// The extents of a tensor; those beyond its rank are ignored.
    fn shape(&self, tensor: usize) -> [usize; MAX_RANK];

    /// An element of a tensor of numbers. The indices are inside the tensor.
    fn f32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> f32;

    /// An element of a tensor of integers. The indices are inside the tensor.
    fn i32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> i32;
}

/// For expressions that read no tensors.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTensors;

impl Tensors for NoTensors {
    fn shape(&self, _: usize) -> [usize; MAX_RANK] {
        [0; MAX_RANK]
    }

    fn f32(&self, _: usize, _: [usize; MAX_RANK]) -> f32 {
        0.0
    }

    fn i32(&self, _: usize, _: [usize; MAX_RANK]) -> i32 {
        0
    }
}

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Numbers.
    F32(Vec<f32>),
    /// Integers.
    I32(Vec<i32>),
}

/// A tensor in memory, row-major. A vector of them is [`Tensors`].
#[derive(Clone, Debug, PartialEq)]
pub struct Contiguous {
    shape: [usize; MAX_RANK],
    elements: Elements,
}

impl Contiguous {
    /// A tensor of 1 to 4 dimensions, with as many elements as the product of its extents.
    pub fn new(extents: &[usize], elements: Elements) -> Result<Contiguous, ExpressionError> {
        let n = match &elements {
            Elements::F32(elements) => elements.len(),
            Elements::I32(elements) => elements.len(),
        };
        let product = extents
            .iter()
            .try_fold(1, |n: usize, &extent| n.checked_mul(extent));
        if !(1..=MAX_RANK).contains(&extents.len()) || product != Some(n) {
            let reason = format!("{n} elements do not make a tensor of the extents {extents:?}");
            return Err(ExpressionError::Given { reason });
        }
        let mut shape = [1; MAX_RANK];
        shape[..extents.len()].copy_from_slice(extents);
        Ok(Contiguous { shape, elements })
    }

    /// The elements.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    fn offset(&self, indices: [usize; MAX_RANK]) -> usize {
        let pairs = indices.iter().zip(self.shape);
        pairs.fold(0, |offset, (index, extent)| offset * extent + index)
    }
}

impl Tensors for Vec<Contiguous> {
    fn shape(&self, tensor: usize) -> [usize; MAX_RANK] {
        self.get(tensor)
            .map_or([0; MAX_RANK], |tensor| tensor.shape)
    }

    fn f32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> f32 {
        let tensor = &self[tensor];
        match &tensor.elements {
            Elements::F32(elements) => elements[tensor.offset(indices)],
            Elements::I32(elements) => elements[tensor.offset(indices)] as f32,
        }
    }

    fn i32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> i32 {
        let tensor = &self[tensor];
        match &tensor.elements {
            Elements::F32(elements) => elements[tensor.offset(indices)] as i32,
            Elements::I32(elements) => elements[tensor.offset(indices)],
        }
    }
}

/// The value of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<R> {
    /// A number.
    Num(R),
    /// An integer.
    Int(i32),
    /// A boolean.
    Cond(bool),
}

impl<R: Real> Value<R> {
    /// The number; 0 if it is none.
    pub fn num(self) -> R {
        match self {
            Value::Num(x) => x,
            Value::Int(_) | Value::Cond(_) => R::ZERO,
        }
    }

    /// The integer; 0 if it is none.
    pub fn int(self) -> i32 {
        match self {
            Value::Int(x) => x,
            Value::Num(_) | Value::Cond(_) => 0,
        }
    }

    /// The boolean; false if it is none.
    pub fn cond(self) -> bool {
        match self {
            Value::Cond(x) => x,
            Value::Num(_) | Value::Int(_) => false,
        }
    }
}

/// Evaluates an expression at many places with the same parameters and tensors. A call allocates nothing and computes only nodes that depend on what
/// has changed since the last one: a loop over keys inside one over queries computes nodes that depend only on queries once per query.
pub struct Evaluator<'a, R> {
    nodes: &'a [Node],
    list: &'a [Tensor],
    tensors: &'a dyn Tensors,
    dependencies: Vec<Dependencies>,
    values: Vec<Value<R>>,
    place: ScoreIndices,
}

impl<'a, R: Real> Evaluator<'a, R> {
    /// An evaluator for a call that gives these parameters and tensors. It refuses parameters other than the expression's, and empty tensors.
    pub fn new(
        expression: &'a Expression,
        params: &[ParamValue],
        tensors: &'a dyn Tensors,
    ) -> Result<Evaluator<'a, R>, ExpressionError> {
        check_params(expression.params(), params)?;
        for (slot, tensor) in expression.tensors().iter().enumerate() {
            let shape = tensors.shape(slot);
            if shape[..usize::from(tensor.rank)].contains(&0) {
                let reason = format!("the tensor {} has no elements", tensor.name);
                return Err(ExpressionError::Given { reason });
            }
        }
        let mut evaluator = Evaluator {
            nodes: expression.nodes(),
            list: expression.tensors(),
            tensors,
            dependencies: expression.dependencies(),
            values: vec![Value::Num(R::ZERO); expression.nodes().len()],
            place: ScoreIndices::default(),
        };
        for (id, node) in expression.nodes().iter().enumerate() {
            evaluator.values[id] = match *node {
                Node::Param(slot) => match params[usize::from(slot)] {
                    ParamValue::F32(x) => Value::Num(R::from_f32(x)),
                    ParamValue::I32(x) => Value::Int(x),
                },
                node => evaluator.value(node, R::ZERO),
            };
        }
        Ok(evaluator)
    }

    /// The value at a place, for this score, which a mask ignores.
    pub fn evaluate(&mut self, place: &ScoreIndices, score: R) -> Value<R> {
        let mut changed = Dependencies::SCORE;
        for index in Index::ALL {
            if place.get(index) != self.place.get(index) {
                changed = changed.union(Dependencies::index(index));
            }
        }
        self.place = *place;
        for id in 0..self.nodes.len() {
            if self.dependencies[id].meets(changed) {
                self.values[id] = self.value(self.nodes[id], score);
            }
        }
        self.values.last().copied().unwrap_or(Value::Num(R::ZERO))
    }

    /// The score that replaces a score.
    pub fn score(&mut self, place: &ScoreIndices, score: R) -> R {
        self.evaluate(place, score).num()
    }

    /// Whether a mask shows the score at a place.
    pub fn mask(&mut self, place: &ScoreIndices) -> bool {
        self.evaluate(place, R::ZERO).cond()
    }

    /// The value of each node at the last place.
    pub fn values(&self) -> &[Value<R>] {
        &self.values
    }

    fn get(&self, id: Id) -> Value<R> {
        self.values[id as usize]
    }

    /// The value of a node whose operands have been computed.
    fn value(&self, node: Node, score: R) -> Value<R> {
        match node {
            Node::Score => Value::Num(score),
            Node::Index(index) => Value::Int(self.place.get(index)),
            Node::F32(bits) => Value::Num(R::from_f32(f32::from_bits(bits))),
            Node::I32(x) => Value::Int(x),
            Node::Bool(x) => Value::Cond(x),
            // It depends on nothing that changes.
            Node::Param(_) => Value::Num(R::ZERO),
            Node::Unary(op, a) => match (op, self.get(a)) {
                (Unary::ToF32, Value::Int(a)) => Value::Num(R::from_i32(a)),
                (Unary::ToI32, Value::Num(a)) => Value::Int(a.to_i32()),
                (op, Value::Num(a)) => Value::Num(a.unary(op)),
                (op, Value::Int(a)) => Value::Int(unary_int(op, a)),
                (_, Value::Cond(a)) => Value::Cond(!a),
            },
            Node::Binary(op, a, b) => match (self.get(a), self.get(b)) {
                (Value::Num(a), b) => Value::Num(a.binary(op, b.num())),
                (Value::Int(a), b) => Value::Int(binary_int(op, a, b.int())),
                (Value::Cond(a), b) => Value::Cond(binary_bool(op, a, b.cond())),
            },
            Node::Compare(op, a, b) => Value::Cond(match (self.get(a), self.get(b)) {
                (Value::Num(a), b) => compare(op, a, b.num()),
                (Value::Int(a), b) => compare(op, a, b.int()),
                (Value::Cond(a), b) => compare(op, a, b.cond()),
            }),
            Node::Select(c, a, b) => self.get(if self.get(c).cond() { a } else { b }),
            Node::Read(slot, ids) => self.read(usize::from(slot), ids),
        }
    }

    /// An element; an index outside the tensor is clamped to the nearest one inside.
    fn read(&self, slot: usize, ids: [Id; MAX_RANK]) -> Value<R> {
        let tensor = &self.list[slot];
        let shape = self.tensors.shape(slot);
        let mut indices = [0; MAX_RANK];
        for dim in 0..usize::from(tensor.rank) {
            let index = usize::try_from(self.get(ids[dim]).int()).unwrap_or(0);
            indices[dim] = index.min(shape[dim].saturating_sub(1));
        }
        match tensor.element.ty() {
            Type::I32 => Value::Int(self.tensors.i32(slot, indices)),
            Type::F32 | Type::Bool => Value::Num(R::from_f32(self.tensors.f32(slot, indices))),
        }
    }
}

/// Whether the values are those of the parameters.
fn check_params(params: &[Param], given: &[ParamValue]) -> Result<(), ExpressionError> {
    if params.len() != given.len() {
        let reason = format!(
            "the expression has {} parameters and {} are given",
            params.len(),
            given.len()
        );
        return Err(ExpressionError::Given { reason });
    }
    for (param, value) in params.iter().zip(given) {
        if param.ty != value.ty() {
            let reason = format!(
                "the parameter {} is of type {} and the value given of type {}",
                param.name,
                param.ty,
                value.ty()
            );
            return Err(ExpressionError::Given { reason });
        }
    }
    Ok(())
}

impl Expression {
    /// The value at one place. [`Evaluator`] is for many.
    pub fn evaluate<R: Real>(
        &self,
        params: &[ParamValue],
        tensors: &dyn Tensors,
        place: &ScoreIndices,
        score: R,
    ) -> Result<Value<R>, ExpressionError> {
        Ok(Evaluator::new(self, params, tensors)?.evaluate(place, score))
    }
}

#[cfg(test)]
mod tests;
