//! Scores and masks that have names: what they are, and what a measurement gives them.
//!
//! | name | what | parameters and tensors |
//! |---|---|---|
//! | `alibi` | `s + slopes[head] · (k − (q + seqlen_k − seqlen_q))` | `slopes` f32 `[heads]` |
//! | `alibi-batch` | the same with slopes of each batch entry | `slopes` f32 `[batch, heads]` |
//! | `soft-cap` | `cap · tanh(s / cap)` | `cap` f32 |
//! | `soft-cap-alibi` | the cap, then ALiBi | `cap`, `slopes` f32 `[heads]` |
//! | `bias` | `s + bias[batch, head, q, k]` | `bias` bf16, one for all batch entries |
//! | `causal` | `k ≤ q + seqlen_k − seqlen_q` | |
//! | `window` | the same, and no more than `window` keys before it | `window` i32 |
//! | `document` | `document[batch, q] = document[batch, k]` | `document` i32 `[batch, longest of q and k]` |

mod inputs;
mod words;

#[cfg(test)]
mod tests;

use clap::ValueEnum;
use ferroflash::expression::{At, Cond, ExpressionError, Int, Num};
use ferroflash::{Mask, MaskExpression, Problem, Score};

use crate::failure::Failure;

pub use inputs::Given;
pub use words::{MaskWord, ScoreWord};

/// A score that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScoreName {
    /// ALiBi: a penalty for distance, by a slope for each head.
    Alibi,
    /// ALiBi with slopes of each batch entry and head.
    AlibiBatch,
    /// A soft cap of 50: cap · tanh(score / cap).
    SoftCap,
    /// The soft cap, then ALiBi.
    SoftCapAlibi,
    /// A bias of bf16 for each head, query and key, which batch entries share.
    Bias,
}

/// A mask that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MaskName {
    /// A query sees the keys up to its own place, as --causal 1 says.
    Causal,
    /// Of these the last 1024 before its own place, as --causal 1 --window 1024 says.
    Window,
    /// A query sees the keys of its own document: 32 of one length.
    Document,
}

impl ScoreName {
    /// As options have it.
    pub fn name(self) -> &'static str {
        match self {
            ScoreName::Alibi => "alibi",
            ScoreName::AlibiBatch => "alibi-batch",
            ScoreName::SoftCap => "soft-cap",
            ScoreName::SoftCapAlibi => "soft-cap-alibi",
            ScoreName::Bias => "bias",
        }
    }

    /// The expression.
    pub fn score(self) -> Result<Score, ExpressionError> {
        match self {
            ScoreName::Alibi => Score::new(|s, at| alibi(s, at, &[at.head])),
            ScoreName::AlibiBatch => Score::new(|s, at| alibi(s, at, &[at.batch, at.head])),
            ScoreName::SoftCap => Score::new(soft_cap),
            ScoreName::SoftCapAlibi => Score::new(|s, at| alibi(soft_cap(s, at), at, &[at.head])),
            ScoreName::Bias => {
                Score::new(|s, at| s + at.tensor_bf16("bias", [at.batch, at.head, at.q, at.k]))
            }
        }
    }
}

impl MaskName {
    /// As options have it.
    pub fn name(self) -> &'static str {
        match self {
            MaskName::Causal => "causal",
            MaskName::Window => "window",
            MaskName::Document => "document",
        }
    }

    /// The expression.
    pub fn mask(self) -> Result<MaskExpression, ExpressionError> {
        match self {
            MaskName::Causal => Mask::new(|at| at.k.le(own_place(at))),
            MaskName::Window => Mask::new(window),
            MaskName::Document => Mask::new(|at| {
                let document = |place| at.tensor_i32("document", [at.batch, place]);
                document(at.q).eq(document(at.k))
            }),
        }
    }
}

/// The key at a query's own place: the last query is at the last key.
fn own_place(at: At) -> Int {
    at.q + at.seqlen_k - at.seqlen_q
}

fn alibi(score: Num, at: At, slope: &[Int]) -> Num {
    let distance = at.k - own_place(at);
    score + at.tensor_f32("slopes", slope) * distance.to_f32()
}

fn soft_cap(score: Num, at: At) -> Num {
    let cap = at.f32("cap");
    (score / cap).tanh() * cap
}

fn window(at: At) -> Cond {
    let place = own_place(at);
    at.k.le(place) & (place - at.k).le(at.i32("window"))
}

/// The score and the mask of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The score, if another than q · k.
    pub score: Option<ScoreName>,
    /// The mask beside the problem's own.
    pub mask: Option<MaskName>,
}

impl Named {
    /// The problem with both.
    pub fn put(self, problem: Problem) -> Result<Problem, Failure> {
        let mut builder = problem.to_builder();
        if let Some(score) = self.score {
            builder = builder.score(score.score()?);
        }
        if let Some(mask) = self.mask {
            builder = builder.mask_expression(mask.mask()?);
        }
        Ok(builder.build()?)
    }
}
