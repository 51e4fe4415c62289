//! How exact products of f32 tensors are.

use std::fmt;
use std::str::FromStr;

/// How exact products of f32 tensors are on a GPU. Sums, the softmax and lse are in f32 whatever it is. On the CPU products are in f32, too.
///
/// [`ProblemBuilder::precision`](crate::ProblemBuilder::precision) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// As tensor cores multiply the type: f32 as tf32, each element rounded to ten bits of mantissa, an error of 2⁻¹¹. 16-bit types as
    /// they are.
    #[default]
    Tensor,
    /// As f32: each element is a sum of two tf32, and three products are made for one (3xTF32). An error of 2⁻²², at about a third of the speed. For f32
    /// alone: products of 16-bit types are exact.
    Full,
}

/// `tensor` or `full`; anything else is refused.
impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tensor" => Ok(Precision::Tensor),
            "full" => Ok(Precision::Full),
            other => Err(format!("{other}: it must be tensor or full")),
        }
    }
}

/// `tensor` or `full`.
impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::Tensor => "tensor",
            Precision::Full => "full",
        })
    }
}
