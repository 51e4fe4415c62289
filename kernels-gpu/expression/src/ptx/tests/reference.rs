//! What nodes mean, in f64 with a bound of the error that f32 and other orders of sums may make.
//!
//! A value that hangs on such an error (a comparison of nearly equal numbers, a sum that wraps around and is compared) is
//! unknown: nothing is said of what depends on it.

use super::tree::{params, tensors};
use crate::{
    Binary, Compare, ElementType, Expression, Id, Index, Node, Param, Tensor, Type, Unary,
};

/// Error of an operation, relative to the terms that go into it.
const EPSILON: f64 = 1.0 / (1 << 21) as f64;

/// A value of a node.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A number.
    F32(Number),
    /// A whole number, and whether a sum wrapped around.
    I32(Option<(i32, bool)>),
    /// A truth value.
    Bool(Option<bool>),
}

/// A number, its greatest error, and the sum of the sizes of what was added up to it.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    pub value: f64,
    pub error: f64,
    size: f64,
}

/// Where a score lies, and what the call gives.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub x: f32,
    pub scale: f32,
    pub indices: [i32; 7],
    pub params: &'a [u32],
    pub tensors: &'a [Data],
}

/// A tensor's elements, by their bits.
#[derive(Clone, Debug)]
pub struct Data {
    pub len: Vec<i32>,
    pub stride: Vec<i64>,
    pub bits: Vec<u32>,
}

impl Data {
    /// The element at indices that are moved inside.
    pub fn read(&self, indices: &[i32]) -> u32 {
        let mut at = 0;
        for (dim, &index) in indices.iter().enumerate() {
            at += i64::from(index.clamp(0, self.len[dim] - 1)) * self.stride[dim];
        }
        self.bits[at as usize]
    }
}

const UNKNOWN: Number = Number {
    value: 0.0,
    error: f64::INFINITY,
    size: 0.0,
};

impl Number {
    fn exact(value: f64) -> Number {
        Number::new(value, 0.0, value.abs())
    }

    /// With the rounding of one operation.
    fn new(value: f64, error: f64, size: f64) -> Number {
        if value.is_nan() || error.is_nan() || error == f64::INFINITY {
            return UNKNOWN;
        }
        if value.is_infinite() {
            return Number {
                value,
                error: 0.0,
                size: 0.0,
            };
        }
        if size > 1e36 {
            return UNKNOWN;
        }
        Number {
            value,
            error: error + EPSILON * size + 1e-36,
            size,
        }
    }

    /// A function whose slope is known.
    fn function(value: f64, error: f64) -> Number {
        Number::new(value, error, value.abs())
    }

    pub fn known(&self) -> bool {
        self.error < f64::INFINITY
    }
}

/// The values of all nodes.
pub fn evaluate(expression: &Expression, place: &Site<'_>) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for &node in expression.nodes() {
        let value = evaluate_node(expression, node, &values, place);
        values.push(value);
    }
    values
}

fn evaluate_node(expression: &Expression, node: Node, values: &[Value], place: &Site<'_>) -> Value {
    let get = |id: Id| values[id as usize];
    let f32 = |id: Id| match get(id) {
        Value::F32(number) => number,
        other => panic!("{other:?} is no number"),
    };
    let truth = |id: Id| match get(id) {
        Value::Bool(x) => x,
        other => panic!("{other:?} is no truth value"),
    };
    match node {
        Node::Score => Value::F32(Number::exact(f64::from(place.x) * f64::from(place.scale))),
        Node::Index(index) => Value::I32(Some((place.indices[index_place(index)], false))),
        Node::F32(bits) => Value::F32(Number::exact(f64::from(f32::from_bits(bits)))),
        Node::I32(x) => Value::I32(Some((x, false))),
        Node::Bool(x) => Value::Bool(Some(x)),
        Node::Param(nth) => of_bits(
            place.params[usize::from(nth)],
            expression.params()[usize::from(nth)].ty,
        ),
        Node::Unary(unary, x) => unary_value(unary, get(x)),
        Node::Binary(binary, a, b) => match (get(a), get(b)) {
            (Value::F32(a), Value::F32(b)) => Value::F32(numbers(binary, a, b)),
            (Value::I32(a), Value::I32(b)) => Value::I32(wholes(binary, a, b)),
            (Value::Bool(a), Value::Bool(b)) => Value::Bool(truths(binary, a, b)),
            other => panic!("{other:?} do not fit"),
        },
        Node::Compare(compare, a, b) => Value::Bool(match (get(a), get(b)) {
            (Value::F32(a), Value::F32(b)) => compare_numbers(compare, a, b),
            (Value::I32(Some((a, false))), Value::I32(Some((b, false)))) => {
                Some(ordering(compare, a, b))
            }
            _ => None,
        }),
        Node::Select(keep, a, b) => match truth(keep) {
            Some(true) => get(a),
            Some(false) => get(b),
            None => match get(a) {
                Value::F32(_) => {
                    let (a, b) = (f32(a), f32(b));
                    if a.value == b.value && a.error == b.error {
                        Value::F32(a)
                    } else {
                        Value::F32(UNKNOWN)
                    }
                }
                Value::I32(_) => Value::I32(None),
                Value::Bool(_) => Value::Bool(None),
            },
        },
        Node::Read(nth, indices) => {
            let tensor = &expression.tensors()[usize::from(nth)];
            let indices: Option<Vec<i32>> = indices[..usize::from(tensor.rank)]
                .iter()
                .map(|&id| match get(id) {
                    Value::I32(Some((x, false))) => Some(x),
                    _ => None,
                })
                .collect();
            match (indices, tensor.element.ty()) {
                (Some(indices), ty) => of_bits(place.tensors[usize::from(nth)].read(&indices), ty),
                (None, Type::I32) => Value::I32(None),
                (None, _) => Value::F32(UNKNOWN),
            }
        }
    }
}

fn of_bits(bits: u32, ty: Type) -> Value {
    match ty {
        Type::I32 => Value::I32(Some((bits as i32, false))),
        _ => Value::F32(Number::exact(f64::from(f32::from_bits(bits)))),
    }
}

pub fn index_place(index: Index) -> usize {
    match index {
        Index::Batch => 0,
        Index::Head => 1,
        Index::KvHead => 2,
        Index::Query => 3,
        Index::Key => 4,
        Index::SeqlenQ => 5,
        Index::SeqlenK => 6,
    }
}

fn unary_value(unary: Unary, x: Value) -> Value {
    match (unary, x) {
        (Unary::ToF32, Value::I32(Some((x, false)))) => {
            let exact = f64::from(x);
            // The block's first index is converted, and a column's distance added.
            Value::F32(Number::new(exact, 0.0, exact.abs() + 1024.0))
        }
        (Unary::ToF32, Value::I32(_)) => Value::F32(UNKNOWN),
        (Unary::ToI32, Value::F32(x)) => {
            let (low, high) = ((x.value - x.error) as f32, (x.value + x.error) as f32);
            let same = low as i32 == high as i32 && x.known();
            Value::I32(same.then_some((low as i32, false)))
        }
        (_, Value::F32(x)) => Value::F32(function(unary, x)),
        (Unary::Not, Value::Bool(x)) => Value::Bool(x.map(|x| !x)),
        (_, Value::I32(x)) => Value::I32(x.map(|(x, wrapped)| match unary {
            Unary::Neg => (x.wrapping_neg(), wrapped || x == i32::MIN),
            Unary::Abs => (x.wrapping_abs(), false),
            Unary::Not => (!x, wrapped),
            other => panic!("{other:?} of a whole number"),
        })),
        other => panic!("{other:?} do not fit"),
    }
}

fn function(unary: Unary, x: Number) -> Number {
    let (value, error) = (x.value, x.error);
    match unary {
        Unary::Neg => Number { value: -value, ..x },
        Unary::Abs => Number {
            value: value.abs(),
            ..x
        },
        _ if !x.known() => UNKNOWN,
        Unary::Exp2(_) => {
            let result = value.exp2();
            Number::function(result, result * (error.exp2() - 1.0))
        }
        Unary::Ln(_) if value > error => {
            let result = value.ln();
            Number::new(result, error / (value - error), result.abs())
        }
        Unary::Tanh(_) => Number::function(value.tanh(), error),
        Unary::Sigmoid(_) => {
            let result = 1.0 / (1.0 + (-value).exp());
            Number::new(result, error, 1.0)
        }
        Unary::Sqrt(_) if value > 2.0 * error => {
            Number::function(value.sqrt(), error / value.sqrt())
        }
        _ => UNKNOWN,
    }
}

fn numbers(binary: Binary, a: Number, b: Number) -> Number {
    if !a.known() || !b.known() {
        return UNKNOWN;
    }
    let size = a.size + b.size;
    match binary {
        Binary::Add => Number::new(a.value + b.value, a.error + b.error, size),
        Binary::Sub => Number::new(a.value - b.value, a.error + b.error, size),
        Binary::Mul => {
            let error = a.value.abs() * b.error + b.value.abs() * a.error + a.error * b.error;
            // Where a factor is 0, a product of the others that overflows gives NaN.
            Number::new(a.value * b.value, error, a.size * b.size)
        }
        Binary::Div => {
            let least = b.value.abs() - b.error;
            if least < 1e-36 || b.value.abs() > 1e36 {
                return UNKNOWN;
            }
            let value = a.value / b.value;
            let error = (a.error + value.abs() * b.error) / least;
            Number::new(value, error, a.size / least)
        }
        Binary::Min | Binary::Max => {
            let value = if binary == Binary::Min {
                a.value.min(b.value)
            } else {
                a.value.max(b.value)
            };
            Number::new(value, a.error.max(b.error), a.size.max(b.size))
        }
        other => panic!("{other:?} of numbers"),
    }
}

fn wholes(binary: Binary, a: Option<(i32, bool)>, b: Option<(i32, bool)>) -> Option<(i32, bool)> {
    let ((a, a_wrapped), (b, b_wrapped)) = (a?, b?);
    let sum =
        |(value, overflowed): (i32, bool)| Some((value, overflowed || a_wrapped || b_wrapped));
    let other = |value: i32| Some((value, false));
    match binary {
        Binary::Add => sum(a.overflowing_add(b)),
        Binary::Sub => sum(a.overflowing_sub(b)),
        Binary::Mul => sum(a.overflowing_mul(b)),
        Binary::Shl => {
            let (value, by) = (a.wrapping_shl(b as u32), b & 31);
            sum((value, i64::from(a) << by != i64::from(value)))
        }
        Binary::Div => match b {
            1 | -1 => sum(a.overflowing_mul(b)),
            0 => other(0),
            _ => other(a / b),
        },
        Binary::Rem => match b {
            0 => Some((a, a_wrapped)),
            _ => other(a.wrapping_rem(b)),
        },
        Binary::Min => other(a.min(b)),
        Binary::Max => other(a.max(b)),
        Binary::And => other(a & b),
        Binary::Or => other(a | b),
        Binary::Xor => other(a ^ b),
        Binary::Shr => other(a.wrapping_shr(b as u32)),
    }
}

fn truths(binary: Binary, a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (binary, a, b) {
        (Binary::And, Some(false), _) | (Binary::And, _, Some(false)) => Some(false),
        (Binary::Or, Some(true), _) | (Binary::Or, _, Some(true)) => Some(true),
        (Binary::And, Some(a), Some(b)) => Some(a && b),
        (Binary::Or, Some(a), Some(b)) => Some(a || b),
        (Binary::Xor, Some(a), Some(b)) => Some(a != b),
        _ => None,
    }
}

fn compare_numbers(compare: Compare, a: Number, b: Number) -> Option<bool> {
    let clear = a.value == b.value && a.value.is_infinite()
        || (a.value - b.value).abs() > a.error + b.error;
    (a.known() && b.known() && clear).then(|| ordering(compare, a.value, b.value))
}

fn ordering<T: PartialOrd>(compare: Compare, a: T, b: T) -> bool {
    match compare {
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Eq => a == b,
        Compare::Ne => a != b,
    }
}

/// The parameters and tensors of random expressions, with values of their own.
pub fn given(random: &mut super::tree::Random) -> (Vec<u32>, Vec<Data>) {
    let value = |param: &Param, random: &mut super::tree::Random| match param.ty {
        Type::F32 => random.number().to_bits(),
        _ => random.of(&[1, 2, 7, 64, -3, 0, 1000, i32::MAX, i32::MIN]) as u32,
    };
    let params = params().iter().map(|param| value(param, random)).collect();
    let tensors = tensors()
        .iter()
        .map(|tensor| data(tensor, random))
        .collect();
    (params, tensors)
}

fn data(tensor: &Tensor, random: &mut super::tree::Random) -> Data {
    let rank = usize::from(tensor.rank);
    // Plain batch and head are not clamped: see `LEAST`.
    let len: Vec<i32> = (0..rank)
        .map(|_| LEAST + random.below(if rank == 1 { 120 } else { 20 }) as i32)
        .collect();
    let mut stride = vec![1_i64; rank];
    for dim in (0..rank.saturating_sub(1)).rev() {
        stride[dim] = stride[dim + 1] * i64::from(len[dim + 1]);
    }
    if rank == 2 {
        stride = vec![1, i64::from(len[0])];
    }
    let n: i64 = len.iter().map(|&len| i64::from(len)).product();
    let bits = (0..n).map(|_| match tensor.element {
        ElementType::I32 => random.of(&[0, 1, 2, 3, 17, -40]) as u32,
        _ => random.number().to_bits(),
    });
    Data {
        bits: bits.collect(),
        len,
        stride,
    }
}

/// Batches and heads are fewer: the host checks that a tensor with such an index has as many.
pub const LEAST: i32 = 6;
