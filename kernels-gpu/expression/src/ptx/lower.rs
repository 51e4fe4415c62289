//! From an expression's nodes to operations.

use super::bound;
use super::coefficient::{Coef, ScaleAt};
use super::functions::Function;
use super::integer::{self, Affine};
use super::linear::{Algebra, Atom, Sum};
use super::op::{Arena, Given, Level, Op, OpId};
use super::tensor::Read;
use super::unit::Unit;
use super::{ParamOffsets, RowTerms, ScoreRows, WriteError};
use crate::{Binary, Compare, Expression, Id, Index, Node, Param, Tensor, Type, Unary};

/// The value of a node.
#[derive(Clone, Debug)]
enum Value {
    F32(Sum),
    I32(Affine),
    Bool(OpId),
}

/// What all expressions of an edit share.
pub struct Launch<'a> {
    /// Which index is the thread's own.
    pub rows: ScoreRows,
    /// Where the launch's values lie.
    pub places: ParamOffsets,
    /// The values of the launch, in the order of their places.
    pub params: &'a [Param],
    /// The tensors of the launch, in the order of their places.
    pub tensors: &'a [Tensor],
}

impl Launch<'_> {
    fn scale(&self) -> ScaleAt {
        ScaleAt {
            scale: self.places.scale,
            inverse: self.places.inverse_unit,
        }
    }
}

/// The nodes of one expression that have values so far.
pub struct Lower<'a> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) expression: &'a Expression,
    pub(super) arena: &'a mut Arena,
    values: Vec<Value>,
}

/// The number that an expression is.
pub fn number(
    launch: &Launch<'_>,
    expression: &Expression,
    arena: &mut Arena,
) -> Result<OpId, WriteError> {
    let mut lower = Lower::new(launch, expression, arena)?;
    match lower.values.pop() {
        Some(Value::F32(sum)) => Ok(lower.algebra().write(&sum)),
        _ => Err(WriteError::NoNumber),
    }
}

/// The score that an expression is, divided by its unit; and, where `terms` says so, the part of it that is the same for all of a row's columns
/// in a block, apart.
pub fn score(
    launch: &Launch<'_>,
    expression: &Expression,
    unit: Unit,
    terms: RowTerms,
    arena: &mut Arena,
) -> Result<(OpId, Option<OpId>), WriteError> {
    let mut lower = Lower::new(launch, expression, arena)?;
    let sum = lower.unscaled(unit)?;
    Ok(match terms {
        RowTerms::InScores => (lower.algebra().write(&sum), None),
        RowTerms::Apart => lower.algebra().write_beside_rows(&sum),
    })
}

/// The truth value that an expression is.
pub fn condition(
    launch: &Launch<'_>,
    expression: &Expression,
    arena: &mut Arena,
) -> Result<OpId, WriteError> {
    let mut lower = Lower::new(launch, expression, arena)?;
    match lower.values.pop() {
        Some(Value::Bool(op)) => Ok(op),
        _ => Err(WriteError::NoCondition),
    }
}

impl<'a> Lower<'a> {
    /// With the values of all nodes.
    fn new(
        launch: &'a Launch<'a>,
        expression: &'a Expression,
        arena: &'a mut Arena,
    ) -> Result<Lower<'a>, WriteError> {
        let mut lower = Lower {
            launch,
            expression,
            arena,
            values: Vec::with_capacity(expression.nodes().len()),
        };
        lower.all()?;
        Ok(lower)
    }

    pub(super) fn algebra(&mut self) -> Algebra<'_> {
        Algebra {
            at: self.launch.scale(),
            arena: self.arena,
        }
    }

    fn all(&mut self) -> Result<(), WriteError> {
        for &node in self.expression.nodes() {
            let value = self.node(node)?;
            self.values.push(value);
        }
        Ok(())
    }

    pub(super) fn malformed(&self) -> WriteError {
        WriteError::Malformed {
            node: self.values.len() as Id,
        }
    }

    fn get(&self, id: Id) -> Result<&Value, WriteError> {
        self.values.get(id as usize).ok_or(self.malformed())
    }

    pub(super) fn f32(&self, id: Id) -> Result<Sum, WriteError> {
        match self.get(id)? {
            Value::F32(sum) => Ok(sum.clone()),
            _ => Err(self.malformed()),
        }
    }

    fn i32(&self, id: Id) -> Result<Affine, WriteError> {
        match self.get(id)? {
            Value::I32(sum) => Ok(sum.clone()),
            _ => Err(self.malformed()),
        }
    }

    pub(super) fn truth(&self, id: Id) -> Result<OpId, WriteError> {
        match self.get(id)? {
            Value::Bool(op) => Ok(*op),
            _ => Err(self.malformed()),
        }
    }

    fn node(&mut self, node: Node) -> Result<Value, WriteError> {
        Ok(match node {
            Node::Score => {
                let x = self.arena.given(Given::X);
                Value::F32(Sum::term(Coef::scale(1), Atom::Op(x)))
            }
            Node::Index(index) => {
                let op = self.index(index);
                Value::I32(Affine::of(op, self.arena))
            }
            Node::F32(bits) => Value::F32(Sum::constant(Coef::of(f64::from(f32::from_bits(bits))))),
            Node::I32(x) => Value::I32(Affine::constant(x)),
            Node::Bool(x) => Value::Bool(self.arena.bool(x)),
            Node::Param(nth) => self.param(nth)?,
            Node::Unary(unary, x) => self.unary(unary, x)?,
            Node::Binary(binary, a, b) => self.binary(binary, a, b)?,
            Node::Compare(compare, a, b) => self.compare(compare, a, b)?,
            Node::Select(keep, a, b) => {
                let keep = self.truth(keep)?;
                match self.get(a)? {
                    Value::F32(_) => {
                        let (a, b) = (self.f32(a)?, self.f32(b)?);
                        Value::F32(self.select(keep, &a, &b))
                    }
                    Value::I32(_) => {
                        let (a, b) = (self.i32(a)?, self.i32(b)?);
                        let (a, b) = (a.write(self.arena), b.write(self.arena));
                        let op = self.arena.select(a, b, keep);
                        Value::I32(Affine::of(op, self.arena))
                    }
                    Value::Bool(_) => {
                        let (a, b) = (self.truth(a)?, self.truth(b)?);
                        let a = self.arena.and(keep, a);
                        let not = self.arena.not(keep);
                        let b = self.arena.and(not, b);
                        Value::Bool(self.arena.or(a, b))
                    }
                }
            }
            Node::Read(nth, indices) => self.read(nth, &indices)?,
        })
    }

    fn index(&mut self, index: Index) -> OpId {
        let given = match (index, self.launch.rows) {
            (Index::Batch, _) => Given::Batch,
            (Index::Head, _) => Given::Head,
            (Index::KvHead, _) => Given::KvHead,
            (Index::SeqlenQ, _) => Given::SeqlenQ,
            (Index::SeqlenK, _) => Given::SeqlenK,
            (Index::Query, ScoreRows::Queries) | (Index::Key, ScoreRows::Keys) => Given::Own,
            (Index::Query, ScoreRows::Keys) | (Index::Key, ScoreRows::Queries) => Given::Running,
        };
        self.arena.given(given)
    }

    fn param(&mut self, nth: u8) -> Result<Value, WriteError> {
        let param = self.expression.params().get(usize::from(nth));
        let param = param.ok_or(self.malformed())?;
        let place = self.launch.params.iter().position(|known| known == param);
        let place = place.ok_or(self.malformed())?;
        let op = Op::Param32(self.launch.places.params + 4 * place as u32);
        let op = self.arena.op(op);
        Ok(match param.ty {
            Type::F32 => Value::F32(Sum::of(op, self.arena)),
            Type::I32 => Value::I32(Affine::of(op, self.arena)),
            Type::Bool => return Err(self.malformed()),
        })
    }

    fn read(&mut self, nth: u8, indices: &[Id]) -> Result<Value, WriteError> {
        let tensor = self.expression.tensors().get(usize::from(nth));
        let tensor = tensor.ok_or(self.malformed())?;
        let place = self.launch.tensors.iter().position(|known| known == tensor);
        let place = place.ok_or(self.malformed())?;
        let indices = indices.get(..usize::from(tensor.rank));
        let indices = indices.ok_or(self.malformed())?.iter();
        let indices: Result<Vec<Affine>, WriteError> = indices.map(|&id| self.i32(id)).collect();
        let read = Read {
            tensor,
            place: place as u32,
            indices: &indices?,
        };
        let op = read.write(&self.launch.places, self.arena);
        Ok(match tensor.element.ty() {
            Type::I32 => Value::I32(Affine::of(op, self.arena)),
            _ => Value::F32(Sum::of(op, self.arena)),
        })
    }

    fn unary(&mut self, unary: Unary, x: Id) -> Result<Value, WriteError> {
        let function = match unary {
            Unary::Exp2(precision) => (Function::Exp2, precision),
            Unary::Ln(precision) => (Function::Ln, precision),
            Unary::Tanh(precision) => (Function::Tanh, precision),
            Unary::Sigmoid(precision) => (Function::Sigmoid, precision),
            Unary::Sqrt(precision) => (Function::Sqrt, precision),
            Unary::Neg | Unary::Abs | Unary::Not | Unary::ToF32 | Unary::ToI32 => {
                return self.simple(unary, x);
            }
        };
        let x = self.f32(x)?;
        let (function, precision) = function;
        Ok(Value::F32(self.algebra().function(function, precision, &x)))
    }

    fn simple(&mut self, unary: Unary, x: Id) -> Result<Value, WriteError> {
        let value = self.get(x)?.clone();
        Ok(match (unary, value) {
            (Unary::Neg, Value::F32(x)) => Value::F32(self.algebra().scaled(&x, Coef::of(-1.0))),
            (Unary::Neg, Value::I32(x)) => Value::I32(x.times(-1)),
            (Unary::Abs, Value::F32(x)) => {
                let x = self.algebra().write(&x);
                let op = self.arena.b32("abs.f32", &[x]);
                Value::F32(Sum::of(op, self.arena))
            }
            (Unary::Abs, Value::I32(x)) => {
                let x = x.write(self.arena);
                let op = self.arena.b32("abs.s32", &[x]);
                Value::I32(Affine::of(op, self.arena))
            }
            (Unary::Not, Value::Bool(x)) => Value::Bool(self.arena.not(x)),
            // Bit by bit that is −x − 1.
            (Unary::Not, Value::I32(x)) => {
                let x = x.times(-1);
                Value::I32(x.plus(&Affine::constant(-1), self.arena))
            }
            (Unary::ToF32, Value::I32(x)) => Value::F32(self.number_of(x)),
            (Unary::ToI32, Value::F32(x)) => {
                let x = self.algebra().write(&x);
                let op = self.arena.b32("cvt.rzi.s32.f32", &[x]);
                Value::I32(Affine::of(op, self.arena))
            }
            _ => return Err(self.malformed()),
        })
    }

    fn number_of(&mut self, x: Affine) -> Sum {
        if let Some(x) = x.as_constant() {
            return Sum::constant(Coef::of(f64::from(x as f32)));
        }
        if x.is_index(self.arena) {
            return Sum::term(Coef::ONE, Atom::Index(x));
        }
        let x = x.write(self.arena);
        let op = self.arena.b32("cvt.rn.f32.s32", &[x]);
        Sum::of(op, self.arena)
    }

    pub(super) fn sub(&mut self, a: &Sum, b: &Sum) -> Sum {
        let mut algebra = self.algebra();
        let b = algebra.scaled(b, Coef::of(-1.0));
        algebra.add(a, &b)
    }

    pub(super) fn extreme(&mut self, binary: Binary, a: &Sum, b: &Sum) -> Sum {
        let mut algebra = self.algebra();
        let (a, b) = (algebra.write(a), algebra.write(b));
        let text = if binary == Binary::Min {
            "min.f32"
        } else {
            "max.f32"
        };
        let op = self.arena.b32(text, &[a, b]);
        Sum::of(op, self.arena)
    }

    pub(super) fn select(&mut self, keep: OpId, a: &Sum, b: &Sum) -> Sum {
        match self.arena.get(keep) {
            Op::Bool(true) => return a.clone(),
            Op::Bool(false) => return b.clone(),
            _ if a == b => return a.clone(),
            _ => {}
        }
        let mut algebra = self.algebra();
        let (a, b) = (algebra.write(a), algebra.write(b));
        let op = self.arena.select(a, b, keep);
        Sum::of(op, self.arena)
    }

    fn compare(&mut self, compare: Compare, a: Id, b: Id) -> Result<Value, WriteError> {
        if let Value::I32(_) = self.get(a)? {
            let (a, b) = (self.i32(a)?, self.i32(b)?);
            return Ok(Value::Bool(bound::compare(compare, &a, &b, self.arena)));
        }
        let (a, b) = (self.f32(a)?, self.f32(b)?);
        let mut algebra = self.algebra();
        let (a, b) = (algebra.write(&a), algebra.write(&b));
        let text = match compare {
            Compare::Lt => "setp.lt.f32",
            Compare::Le => "setp.le.f32",
            Compare::Eq => "setp.eq.f32",
            Compare::Ne => "setp.neu.f32",
        };
        Ok(Value::Bool(self.arena.pred(text, &[a, b])))
    }

    fn binary(&mut self, binary: Binary, a: Id, b: Id) -> Result<Value, WriteError> {
        match self.get(a)? {
            Value::F32(_) => {
                let (a, b) = (self.f32(a)?, self.f32(b)?);
                let sum = match binary {
                    Binary::Add => self.algebra().add(&a, &b),
                    Binary::Sub => self.sub(&a, &b),
                    Binary::Mul => self.algebra().mul(&a, &b),
                    Binary::Div => self.algebra().div(&a, &b),
                    Binary::Min | Binary::Max => self.extreme(binary, &a, &b),
                    _ => return Err(self.malformed()),
                };
                Ok(Value::F32(sum))
            }
            Value::I32(_) => {
                let (a, b) = (self.i32(a)?, self.i32(b)?);
                Ok(Value::I32(integer::binary(binary, &a, &b, self.arena)))
            }
            Value::Bool(_) => {
                let (a, b) = (self.truth(a)?, self.truth(b)?);
                let op = match binary {
                    Binary::And => self.arena.and(a, b),
                    Binary::Or => self.arena.or(a, b),
                    Binary::Xor => self.arena.xor(a, b),
                    _ => return Err(self.malformed()),
                };
                Ok(Value::Bool(op))
            }
        }
    }
}

/// Whether the program has to hand the value over from one level to another.
pub fn is_kept(id: OpId, arena: &Arena) -> bool {
    let free = matches!(arena.get(id), Op::Param32(_) | Op::Param64(_) | Op::Bool(_));
    !free && !arena.is_immediate(id) && arena.level(id) != Level::Score
}
