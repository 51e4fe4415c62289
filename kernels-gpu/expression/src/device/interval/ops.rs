//! What expressions are made of that bounds know of: where scores lie, the types of values, and the functions of them.

/// Where a score lies. All count from 0 and are whole numbers.
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

/// What a node's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// A number.
    F32,
    /// A whole number; arithmetic wraps around.
    I32,
    /// Whether.
    Bool,
}

/// How exact a function is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    /// What one instruction of the special function unit gives.
    #[default]
    Fast,
    /// Within a few units of the last place.
    Full,
}

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unary {
    /// −x, of numbers and whole numbers.
    Neg,
    /// |x|, of numbers and whole numbers.
    Abs,
    /// Not, of truth values; of whole numbers bit by bit.
    Not,
    /// The number that a whole number is, rounded to the nearest.
    ToF32,
    /// The whole number towards zero; the nearest there is for one that is too large, 0 for NaN.
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
    /// a / b; of whole numbers towards zero, and 0 where b is 0.
    Div,
    /// The rest of that division, of whole numbers: its sign is a's; a where b is 0.
    Rem,
    /// The lesser; of a number and NaN the number.
    Min,
    /// The greater; of a number and NaN the number.
    Max,
    /// Of truth values; of whole numbers bit by bit.
    And,
    /// Of truth values; of whole numbers bit by bit.
    Or,
    /// Of truth values; of whole numbers bit by bit.
    Xor,
    /// a · 2ᵇ of whole numbers, b modulo 32.
    Shl,
    /// ⌊a / 2ᵇ⌋ of whole numbers, b modulo 32: the sign is kept.
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
