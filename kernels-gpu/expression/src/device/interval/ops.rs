//! The parts of expressions that bounds use: the positions of scores, the types of values, and their functions.

/// An index of a score's position. All count from 0 and are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Index {
    /// The sequence.
    Batch,
    /// The query head.
    Head,
    /// The head of keys and values.
    KvHead,
    /// The query, from the sequence's first one.
    Query,
    /// The key, from the sequence's first one.
    Key,
    /// Queries of the sequence.
    SeqlenQ,
    /// Keys of the sequence.
    SeqlenK,
}

/// The type of a node's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// A number.
    F32,
    /// An integer; arithmetic wraps around.
    I32,
    /// A boolean.
    Bool,
}

/// How exact a function is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    /// As exact as one instruction of the special-function unit.
    #[default]
    Fast,
    /// Within a few units of the last place.
    Full,
}

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unary {
    /// −x, for numbers and integers.
    Neg,
    /// |x|, for numbers and integers.
    Abs,
    /// Not, for booleans; bitwise for integers.
    Not,
    /// The number of an integer, rounded to the nearest.
    ToF32,
    /// The integer towards zero; saturates, and is 0 for NaN.
    ToI32,
    /// 2ˣ.
    Exp2(Precision),
    /// The natural logarithm.
    Ln(Precision),
    /// The hyperbolic tangent.
    Tanh(Precision),
    /// 1 / (1 + e⁻ˣ).
    Sigmoid(Precision),
    /// The square root.
    Sqrt(Precision),
}

/// A function of two values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Binary {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a · b.
    Mul,
    /// a / b; for integers towards zero, and 0 if b is 0.
    Div,
    /// The remainder of that division, for integers: it has the sign of a; a if b is 0.
    Rem,
    /// The smaller one; of a number and NaN, the number.
    Min,
    /// The greater one; of a number and NaN, the number.
    Max,
    /// For booleans; bitwise for integers.
    And,
    /// For booleans; bitwise for integers.
    Or,
    /// For booleans; bitwise for integers.
    Xor,
    /// a · 2ᵇ for integers, b modulo 32.
    Shl,
    /// ⌊a / 2ᵇ⌋ for integers, b modulo 32: the sign is kept.
    Shr,
}

/// How two numbers compare. With NaN only [`Compare::Ne`] is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Compare {
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a = b.
    Eq,
    /// a ≠ b.
    Ne,
}
