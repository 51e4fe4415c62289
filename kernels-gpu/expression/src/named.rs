//! Scores and masks with names: the command measures them, and builds check kernels with some of them against budgets.
//!
//! | name | expression | parameters and tensors |
//! |---|---|---|
//! | `identity` | `s` | |
//! | `alibi` | `s + slopes[head] · (k − (q + seqlen_k − seqlen_q))` | `slopes` f32 `[heads]` |
//! | `alibi-batch` | the same with slopes of each batch entry | `slopes` f32 `[batch, heads]` |
//! | `soft-cap` | `cap · tanh(s / cap)` | `cap` f32 |
//! | `soft-cap-alibi` | the cap, then ALiBi | `cap`, `slopes` f32 `[heads]` |
//! | `bias` | `s + bias[batch, head, q, k]` | `bias` bf16, which batch entries may share |
//! | `causal` | `k ≤ q + seqlen_k − seqlen_q` | |
//! | `window` | the same, and no more than `window` keys before it | `window` i32 |
//! | `document` | `document[batch, q] = document[batch, k]` | `document` i32 `[batch, longest of q and k]` |
//! | `blocks` | `blocks[q / 64, k / 64] = 1` | `blocks` i32 `[queries / 64, keys / 64]`, rounded up |

use super::{At, Expression, ExpressionError, Int, Num};

/// A score with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedScore {
    /// The unchanged score.
    Identity,
    /// ALiBi: a penalty for distance, by a slope for each head.
    Alibi,
    /// ALiBi with slopes of each batch entry and head.
    AlibiBatch,
    /// A soft cap: cap · tanh(score / cap).
    SoftCap,
    /// The soft cap, then ALiBi.
    SoftCapAlibi,
    /// A bias for each head, query and key.
    Bias,
}

/// A mask with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedMask {
    /// A query sees the keys up to its own position.
    Causal,
    /// The same, but at most this many keys before its own position.
    Window,
    /// A query sees the keys of its own document.
    Document,
    /// A query sees keys by blocks of 64 × 64, which a tensor selects. Intervals cannot bound it: it is evaluated at pairs.
    Blocks,
}

impl NamedScore {
    /// All of them.
    pub const ALL: [NamedScore; 6] = [
        NamedScore::Identity,
        NamedScore::Alibi,
        NamedScore::AlibiBatch,
        NamedScore::SoftCap,
        NamedScore::SoftCapAlibi,
        NamedScore::Bias,
    ];

    /// Its name in options.
    pub const fn name(self) -> &'static str {
        match self {
            NamedScore::Identity => "identity",
            NamedScore::Alibi => "alibi",
            NamedScore::AlibiBatch => "alibi-batch",
            NamedScore::SoftCap => "soft-cap",
            NamedScore::SoftCapAlibi => "soft-cap-alibi",
            NamedScore::Bias => "bias",
        }
    }

    /// The one with this name.
    pub fn by_name(name: &str) -> Option<NamedScore> {
        NamedScore::ALL
            .into_iter()
            .find(|known| known.name() == name)
    }

    /// The expression.
    pub fn expression(self) -> Result<Expression, ExpressionError> {
        Expression::score(|s, at| match self {
            NamedScore::Identity => s,
            NamedScore::Alibi => alibi(s, at, &[at.head]),
            NamedScore::AlibiBatch => alibi(s, at, &[at.batch, at.head]),
            NamedScore::SoftCap => s.soft_cap(at.f32("cap")),
            NamedScore::SoftCapAlibi => alibi(s.soft_cap(at.f32("cap")), at, &[at.head]),
            NamedScore::Bias => s + at.tensor_bf16("bias", [at.batch, at.head, at.q, at.k]),
        })
    }
}

impl NamedMask {
    /// All of them.
    pub const ALL: [NamedMask; 4] = [
        NamedMask::Causal,
        NamedMask::Window,
        NamedMask::Document,
        NamedMask::Blocks,
    ];

    /// Its name in options.
    pub const fn name(self) -> &'static str {
        match self {
            NamedMask::Causal => "causal",
            NamedMask::Window => "window",
            NamedMask::Document => "document",
            NamedMask::Blocks => "blocks",
        }
    }

    /// The one with this name.
    pub fn by_name(name: &str) -> Option<NamedMask> {
        NamedMask::ALL
            .into_iter()
            .find(|known| known.name() == name)
    }

    /// The expression.
    pub fn expression(self) -> Result<Expression, ExpressionError> {
        Expression::mask(|at| match self {
            NamedMask::Causal => at.k.le(at.place()),
            NamedMask::Window => at.k.le(at.place()) & at.distance().le(at.i32("window")),
            NamedMask::Document => {
                let document = |place| at.tensor_i32("document", [at.batch, place]);
                document(at.q).eq(document(at.k))
            }
            NamedMask::Blocks => at.tensor_i32("blocks", [at.q / 64, at.k / 64]).eq(1),
        })
    }
}

fn alibi(score: Num, at: At, slope: &[Int]) -> Num {
    let distance = at.k - at.place();
    score + at.tensor_f32("slopes", slope) * distance.to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_what_they_name() {
        for score in NamedScore::ALL {
            assert_eq!(NamedScore::by_name(score.name()), Some(score));
        }
        for mask in NamedMask::ALL {
            assert_eq!(NamedMask::by_name(mask.name()), Some(mask));
        }
        assert_eq!(NamedScore::by_name("causal"), None);
    }

    #[test]
    fn expressions_say_what_they_are() {
        let score = |name: NamedScore| name.expression().unwrap().to_string();
        let mask = |name: NamedMask| name.expression().unwrap().to_string();
        assert_eq!(score(NamedScore::Identity), "score");
        assert_eq!(score(NamedScore::SoftCap), "cap * tanh(score / cap)");
        for (name, reads) in [
            (NamedScore::Alibi, "slopes[head]"),
            (NamedScore::AlibiBatch, "slopes[batch, head]"),
            (NamedScore::SoftCapAlibi, "slopes[head]"),
            (NamedScore::Bias, "bias[batch, head, q, k]"),
        ] {
            assert!(score(name).contains(reads), "{}", score(name));
        }
        assert!(mask(NamedMask::Causal).contains("seqlen_k"));
        assert!(mask(NamedMask::Window).contains("window"));
        assert!(mask(NamedMask::Document).contains("document[batch, q]"));
        assert_eq!(mask(NamedMask::Blocks), "blocks[q / 64, k / 64] == 1");
    }
}
