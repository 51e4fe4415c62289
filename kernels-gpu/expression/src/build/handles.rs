//! Handles to nodes, and what can be computed with them.

use std::ops::{
    Add, AddAssign, BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, BitXorAssign, Div, DivAssign,
    Mul, MulAssign, Neg, Not, Rem, RemAssign, Shl, ShlAssign, Shr, ShrAssign, Sub, SubAssign,
};

use super::apply;
use crate::{Binary, Compare, Id, Node, Precision, Unary};

/// A node of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    /// The trace's number.
    pub trace: u64,
    /// The node's.
    pub id: Id,
}

impl Handle {
    /// A handle of no trace.
    pub const NONE: Handle = Handle { trace: 0, id: 0 };
}

/// A node of a trace, or a constant.
#[derive(Clone, Copy, Debug)]
pub enum Raw {
    /// A node.
    Handle(Handle),
    /// A constant's node.
    Constant(Node),
}

impl Raw {
    /// The node, unless this is a constant.
    pub fn handle(&self) -> Option<Handle> {
        match self {
            Raw::Handle(handle) => Some(*handle),
            Raw::Constant(_) => None,
        }
    }
}

/// A value of an expression, or a constant of its type: [`Num`] or `f32`, [`Int`] or `i32`, [`Cond`] or `bool`.
pub trait Operand: Copy + Sealed {
    /// The value's type.
    type Handle: Operand<Handle = Self::Handle> + From<Handle>;
}

/// The kind of an operand. No other types can be operands.
pub trait Sealed {
    /// The node or the constant.
    fn raw(self) -> Raw;
}

/// A number: an `f32` for each pair of a query and a key. Operators take constants on either side.
#[derive(Clone, Copy, Debug)]
pub struct Num(Handle);

/// An integer: an `i32` for each pair of a query and a key, whose arithmetic wraps around. Division by 0 gives 0, and its remainder is the dividend.
/// Operators take constants on either side.
#[derive(Clone, Copy, Debug)]
pub struct Int(Handle);

/// A boolean for each pair of a query and a key.
#[derive(Clone, Copy, Debug)]
pub struct Cond(Handle);

/// A handle, and the constants that it can be combined with.
macro_rules! operand {
    ($handle:ident, $constant:ident, $node:expr) => {
        impl From<Handle> for $handle {
            fn from(handle: Handle) -> $handle {
                $handle(handle)
            }
        }

        impl Sealed for $handle {
            fn raw(self) -> Raw {
                Raw::Handle(self.0)
            }
        }

        impl Operand for $handle {
            type Handle = $handle;
        }

        impl Sealed for $constant {
            fn raw(self) -> Raw {
                Raw::Constant($node(self))
            }
        }

        impl Operand for $constant {
            type Handle = $handle;
        }
    };
}

operand!(Num, f32, |x: f32| Node::F32(x.to_bits()));
operand!(Int, i32, Node::I32);
operand!(Cond, bool, Node::Bool);

fn unary<H: From<Handle>>(op: Unary, a: impl Operand) -> H {
    H::from(apply([a.raw()], |[a]| Node::Unary(op, a)))
}

fn binary<H: From<Handle>>(op: Binary, a: impl Operand, b: impl Operand) -> H {
    H::from(apply([a.raw(), b.raw()], |[a, b]| Node::Binary(op, a, b)))
}

fn compare(op: Compare, a: impl Operand, b: impl Operand) -> Cond {
    Cond(apply([a.raw(), b.raw()], |[a, b]| Node::Compare(op, a, b)))
}

/// An operator between values, and between values and constants, each owned or borrowed.
macro_rules! operator {
    ($handle:ident, $constant:ident, $op:ident, $method:ident, $assign_op:ident, $assign:ident) => {
        operator!(@ $handle, $handle, $handle, $op, $method);
        operator!(@ $handle, $handle, &$handle, $op, $method);
        operator!(@ $handle, &$handle, $handle, $op, $method);
        operator!(@ $handle, &$handle, &$handle, $op, $method);
        operator!(@ $handle, $handle, $constant, $op, $method);
        operator!(@ $handle, &$handle, $constant, $op, $method);
        operator!(@ $handle, $constant, $handle, $op, $method);
        operator!(@ $handle, $constant, &$handle, $op, $method);

        impl<R: Operand<Handle = $handle>> $assign_op<R> for $handle {
            fn $assign(&mut self, other: R) {
                *self = binary(BINARY.$method, *self, other);
            }
        }
    };
    (@ $handle:ident, $a:ty, $b:ty, $op:ident, $method:ident) => {
        impl $op<$b> for $a {
            type Output = $handle;

            fn $method(self, other: $b) -> $handle {
                binary(BINARY.$method, self.to_owned(), other.to_owned())
            }
        }
    };
}

/// The function of each operator, by its method's name.
struct Operators {
    add: Binary,
    sub: Binary,
    mul: Binary,
    div: Binary,
    rem: Binary,
    bitand: Binary,
    bitor: Binary,
    bitxor: Binary,
    shl: Binary,
    shr: Binary,
}

const BINARY: Operators = Operators {
    add: Binary::Add,
    sub: Binary::Sub,
    mul: Binary::Mul,
    div: Binary::Div,
    rem: Binary::Rem,
    bitand: Binary::And,
    bitor: Binary::Or,
    bitxor: Binary::Xor,
    shl: Binary::Shl,
    shr: Binary::Shr,
};

operator!(Num, f32, Add, add, AddAssign, add_assign);
operator!(Num, f32, Sub, sub, SubAssign, sub_assign);
operator!(Num, f32, Mul, mul, MulAssign, mul_assign);
operator!(Num, f32, Div, div, DivAssign, div_assign);
operator!(Int, i32, Add, add, AddAssign, add_assign);
operator!(Int, i32, Sub, sub, SubAssign, sub_assign);
operator!(Int, i32, Mul, mul, MulAssign, mul_assign);
operator!(Int, i32, Div, div, DivAssign, div_assign);
operator!(Int, i32, Rem, rem, RemAssign, rem_assign);
operator!(Int, i32, BitAnd, bitand, BitAndAssign, bitand_assign);
operator!(Int, i32, BitOr, bitor, BitOrAssign, bitor_assign);
operator!(Int, i32, BitXor, bitxor, BitXorAssign, bitxor_assign);
operator!(Int, i32, Shl, shl, ShlAssign, shl_assign);
operator!(Int, i32, Shr, shr, ShrAssign, shr_assign);
operator!(Cond, bool, BitAnd, bitand, BitAndAssign, bitand_assign);
operator!(Cond, bool, BitOr, bitor, BitOrAssign, bitor_assign);
operator!(Cond, bool, BitXor, bitxor, BitXorAssign, bitxor_assign);

/// An operator with one operand, owned or borrowed.
macro_rules! sign {
    ($handle:ident, $op:ident, $method:ident, $unary:expr) => {
        impl $op for $handle {
            type Output = $handle;

            fn $method(self) -> $handle {
                unary($unary, self)
            }
        }

        impl $op for &$handle {
            type Output = $handle;

            fn $method(self) -> $handle {
                unary($unary, *self)
            }
        }
    };
}

sign!(Num, Neg, neg, Unary::Neg);
sign!(Int, Neg, neg, Unary::Neg);
sign!(Int, Not, not, Unary::Not);
sign!(Cond, Not, not, Unary::Not);

/// The common part of numbers and integers.
macro_rules! ordered {
    ($handle:ident) => {
        impl $handle {
            /// self < other. With NaN it is false.
            pub fn lt(self, other: impl Operand<Handle = $handle>) -> Cond {
                compare(Compare::Lt, self, other)
            }

            /// self ≤ other. With NaN it is false.
            pub fn le(self, other: impl Operand<Handle = $handle>) -> Cond {
                compare(Compare::Le, self, other)
            }

            /// self > other. With NaN it is false.
            pub fn gt(self, other: impl Operand<Handle = $handle>) -> Cond {
                compare(Compare::Lt, other, self)
            }

            /// self ≥ other. With NaN it is false.
            pub fn ge(self, other: impl Operand<Handle = $handle>) -> Cond {
                compare(Compare::Le, other, self)
            }

            /// self = other. With NaN it is false.
            pub fn eq(self, other: impl Operand<Handle = $handle>) -> Cond {
                compare(Compare::Eq, self, other)
            }

            /// self ≠ other. With NaN it is true.
            pub fn ne(self, other: impl Operand<Handle = $handle>) -> Cond {
                compare(Compare::Ne, self, other)
            }

            /// The smaller one; of a number and NaN, the number.
            pub fn min(self, other: impl Operand<Handle = $handle>) -> $handle {
                binary(Binary::Min, self, other)
            }

            /// The greater one; of a number and NaN, the number.
            pub fn max(self, other: impl Operand<Handle = $handle>) -> $handle {
                binary(Binary::Max, self, other)
            }

            /// The absolute value.
            pub fn abs(self) -> $handle {
                unary(Unary::Abs, self)
            }
        }
    };
}

ordered!(Num);
ordered!(Int);

/// A function with its two precisions and their errors on a GPU, which [`crate::ptx`] lists, too.
macro_rules! function {
    ($fast:ident, $full:ident, $unary:ident, $what:literal, $fast_error:literal, $full_error:literal) => {
        #[doc = concat!($what, " On a GPU by one instruction of the special function unit: ", $fast_error, ".")]
        pub fn $fast(self) -> Num {
            unary(Unary::$unary(Precision::Fast), self)
        }

        #[doc = concat!($what, " On a GPU, too, it is ", $full_error, ".")]
        pub fn $full(self) -> Num {
            unary(Unary::$unary(Precision::Full), self)
        }
    };
}

impl Num {
    function!(
        exp2,
        exp2_full,
        Exp2,
        "2ˣ.",
        "within 4 units of the last place, denormals are 0",
        "within 4 units of the last place, denormals among them"
    );
    function!(
        ln,
        ln_full,
        Ln,
        "The natural logarithm.",
        "2⁻²² off at most near 1, elsewhere 2⁻²² of the value; denormals count as 0",
        "within 2 units of the last place"
    );
    function!(
        tanh,
        tanh_full,
        Tanh,
        "The hyperbolic tangent.",
        "2⁻¹¹ of the value off at most",
        "within 4 units of the last place"
    );
    function!(
        sigmoid,
        sigmoid_full,
        Sigmoid,
        "1 / (1 + e⁻ˣ).",
        "2⁻¹¹ off at most",
        "within 6 units of the last place; below −87 the value at −87"
    );
    function!(
        sqrt,
        sqrt_full,
        Sqrt,
        "The square root.",
        "within 2 units of the last place, denormals are 0",
        "rounded to the nearest"
    );

    /// eˣ, as 2 to the power of x · log₂ e. On a GPU by one instruction of the special function unit, as [`Num::exp2`]; the product is
    /// rounded: the error grows with x.
    pub fn exp(self) -> Num {
        (self * std::f32::consts::LOG2_E).exp2()
    }

    /// eˣ, as 2 to the power of x · log₂ e. The product is rounded: the error grows with x.
    pub fn exp_full(self) -> Num {
        (self * std::f32::consts::LOG2_E).exp2_full()
    }

    /// A soft cap, `cap · tanh(self / cap)`, which holds the value between −cap and cap (Gemma 2). tanh is [`Num::tanh`].
    ///
    /// ```
    /// # use ferroflash_expression::Expression;
    /// let capped = Expression::score(|s, at| s.soft_cap(at.f32("cap")))?;
    /// assert_eq!(capped.to_string(), "cap * tanh(score / cap)");
    /// # Ok::<(), ferroflash_expression::ExpressionError>(())
    /// ```
    pub fn soft_cap(self, cap: impl Operand<Handle = Num>) -> Num {
        let share: Num = binary(Binary::Div, self, cap);
        binary(Binary::Mul, share.tanh(), cap)
    }

    /// The integer towards zero; saturates, and is 0 for NaN.
    pub fn to_i32(self) -> Int {
        unary(Unary::ToI32, self)
    }
}

impl Int {
    /// The number, rounded to the nearest.
    pub fn to_f32(self) -> Num {
        unary(Unary::ToF32, self)
    }
}

impl Cond {
    /// `if self { a } else { b }`. Both are computed.
    pub fn select<A, B>(self, a: A, b: B) -> A::Handle
    where
        A: Operand,
        B: Operand<Handle = A::Handle>,
    {
        let operands = [self.raw(), a.raw(), b.raw()];
        A::Handle::from(apply(operands, |[c, a, b]| Node::Select(c, a, b)))
    }
}
