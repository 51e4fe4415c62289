//! What becomes of scores: the expressions, and what a call gives them.

mod giving;

use ferroflash::Mask;
use ferroflash_expression::{At, ElementType, Expression, Num, ParamValue};

use super::random;
use crate::edits::Edits;
use crate::edits::memory::Given;
use crate::oracle::Sizes;
use giving::Giving;

/// What becomes of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A bias that falls with the distance from the query's place, by a slope of each head.
    Alibi,
    /// The same with slopes of each sequence and head.
    AlibiOfSequences,
    /// `cap · tanh(s / cap)`, the cap a constant.
    SoftCap(Of),
    /// The same, the cap a parameter.
    SoftCapByParam(Of),
    /// First the bias, then the cap.
    AlibiSoftCap(Of),
    /// First the cap, then the bias. Of the second kind the cap is negative.
    SoftCapAlibi(Of),
    /// A table of each head, by the distance of key and query.
    RelativeBias(ElementType),
    /// The same with a table that is too short: distances beyond it have its ends.
    ShortRelativeBias,
    /// A number for each pair of each head; of each sequence, or one for all by a stride of 0.
    Bias(Of),
    /// The same in f32.
    ExactBias,
    /// A number for each pair of each KV head, of all sequences, keys before queries; then a cap.
    SharedBias,
    /// A number for each pair of all heads of all sequences: of rank 2, or of rank 4 with one element for batch entries and one for heads.
    BiasOfPairs(u8),
    /// The score times the logistic function of a bias: it depends on both.
    Gate(Of),
    /// Query and key are of the same document.
    Documents,
    /// As [`Mask::Causal`].
    Causal,
    /// The same by a parameter, so that it is no band to who plans.
    CausalByParam,
    /// As [`Mask::Window`], by parameters.
    Window,
    /// As [`Mask::PrefixLm`].
    Prefix,
    /// Query and key are of the same 64.
    SameBlock,
    /// One key of four.
    EveryFourth,
    /// Rows of queries that see no key, among them whole tiles.
    HiddenRows,
    /// A bias and documents.
    AlibiInDocuments,
    /// As [`Rule::Documents`], each some 150 keys long, and causal.
    LongDocuments,
    /// A query sees the keys from its place on.
    Reversed,
    /// The first queries see no key, and the first keys are seen by none: a block of each.
    HiddenBlocks,
    /// Causal in some heads, a window in the others.
    OfHeads,
    /// The same, and a cap.
    SoftCapOfHeads,
    /// Query and key are of the same 128 or 256, told by the bits in which they differ.
    OfBits,
    /// The same in so many terms that it makes no program, and a bias.
    AlibiInBits,
    /// A mask that hides nothing.
    Nothing,
    /// A random one.
    Random(u64),
}

/// One of two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Functions are fast; tensors are one for all sequences.
    Fast,
    /// Functions are exact; tensors are of each sequence.
    Full,
}

/// Window and prefix.
const LEFT: i32 = 30;
const RIGHT: i32 = 7;
const PREFIX: i32 = 45;

/// Distances that the short table has on either side.
const SHORT: usize = 20;

/// Small beside the largest scores, so that it counts.
const CAP: f32 = 2.5;

impl Rule {
    /// All that are not random.
    pub fn all() -> Vec<Rule> {
        vec![
            Rule::Alibi,
            Rule::AlibiOfSequences,
            Rule::SoftCap(Of::Fast),
            Rule::SoftCap(Of::Full),
            Rule::SoftCapByParam(Of::Fast),
            Rule::SoftCapByParam(Of::Full),
            Rule::AlibiSoftCap(Of::Fast),
            Rule::AlibiSoftCap(Of::Full),
            Rule::RelativeBias(ElementType::F16),
            Rule::RelativeBias(ElementType::Bf16),
            Rule::RelativeBias(ElementType::F32),
            Rule::ShortRelativeBias,
            Rule::Bias(Of::Fast),
            Rule::Bias(Of::Full),
            Rule::SharedBias,
            Rule::Gate(Of::Fast),
            Rule::Gate(Of::Full),
            Rule::Documents,
            Rule::Causal,
            Rule::Window,
            Rule::Prefix,
            Rule::SameBlock,
            Rule::EveryFourth,
            Rule::HiddenRows,
            Rule::AlibiInDocuments,
            Rule::Nothing,
            Rule::SoftCapAlibi(Of::Fast),
            Rule::SoftCapAlibi(Of::Full),
            Rule::ExactBias,
            Rule::BiasOfPairs(2),
            Rule::BiasOfPairs(4),
        ]
    }

    /// Those that hide whole blocks of 128 queries and keys, or show them.
    pub fn of_blocks() -> Vec<Rule> {
        vec![
            Rule::LongDocuments,
            Rule::Causal,
            Rule::CausalByParam,
            Rule::OfHeads,
            Rule::HiddenBlocks,
            Rule::Window,
            Rule::SoftCapOfHeads,
            Rule::Documents,
            Rule::Prefix,
            Rule::Reversed,
            Rule::AlibiInDocuments,
            Rule::Nothing,
            Rule::SameBlock,
            Rule::OfBits,
            Rule::AlibiInBits,
        ]
    }

    /// Those that read a tensor which has a gradient.
    pub fn of_gradients() -> [Rule; 8] {
        [
            Rule::ExactBias,
            Rule::SharedBias,
            Rule::BiasOfPairs(4),
            Rule::Gate(Of::Full),
            Rule::BiasOfPairs(2),
            Rule::Bias(Of::Fast),
            Rule::Gate(Of::Fast),
            Rule::Bias(Of::Full),
        ]
    }

    /// The mask that is built in and does the same.
    pub fn built_in(self) -> Option<Mask> {
        match self {
            Rule::Causal | Rule::CausalByParam => Some(Mask::Causal),
            Rule::Window => Some(Mask::Window {
                left: Some(LEFT as usize),
                right: Some(RIGHT as usize),
            }),
            Rule::Prefix => Some(Mask::PrefixLm {
                prefix: PREFIX as usize,
            }),
            Rule::Nothing => Some(Mask::Full),
            _ => None,
        }
    }

    /// Whether the mask is a band by its text alone.
    pub fn is_band(self) -> bool {
        matches!(self, Rule::Causal | Rule::Reversed)
    }

    /// What takes a score's place.
    fn score(self) -> Option<Expression> {
        let traced = match self {
            Rule::Alibi | Rule::AlibiInDocuments | Rule::AlibiInBits => Expression::score(alibi),
            Rule::AlibiOfSequences => Expression::score(|s, at| {
                s + at.tensor_f32("slopes", [at.batch, at.head]) * distance(at)
            }),
            Rule::SoftCap(of) => Expression::score(|s, _| tanh(s / CAP, of) * CAP),
            Rule::SoftCapOfHeads => Expression::score(|s, at| capped(s, at, Of::Fast)),
            Rule::SoftCapByParam(of) => Expression::score(|s, at| capped(s, at, of)),
            Rule::AlibiSoftCap(of) => Expression::score(|s, at| capped(alibi(s, at), at, of)),
            Rule::SoftCapAlibi(Of::Fast) => {
                Expression::score(|s, at| alibi(capped(s, at, Of::Fast), at))
            }
            Rule::SoftCapAlibi(Of::Full) => Expression::score(|s, at| {
                let cap = at.f32("negative_cap");
                alibi((s / cap).tanh_full() * cap, at)
            }),
            Rule::RelativeBias(element) => Expression::score(|s, at| {
                let indices = [at.head, at.k - at.q + at.i32("n")];
                s + match element {
                    ElementType::F16 => at.tensor_f16("table", indices),
                    ElementType::Bf16 => at.tensor_bf16("table", indices),
                    _ => at.tensor_f32("table", indices),
                }
            }),
            Rule::ShortRelativeBias => Expression::score(|s, at| {
                s + at.tensor_f32("table", [at.head, at.k - at.q + SHORT as i32])
            }),
            Rule::Bias(_) => Expression::score(|s, at| s + bias(at)),
            Rule::ExactBias => Expression::score(|s, at| {
                s + at.tensor_f32("bias", [at.batch, at.head, at.q, at.k])
            }),
            Rule::SharedBias => Expression::score(|s, at| {
                let shared = at.tensor_f32("shared", [at.kv_head, at.k, at.q]);
                ((s + shared) / CAP).tanh() * CAP
            }),
            Rule::BiasOfPairs(2) => {
                Expression::score(|s, at| s + at.tensor_f32("of_pairs", [at.q, at.k]))
            }
            Rule::BiasOfPairs(_) => Expression::score(|s, at| {
                let one = at.constant(0);
                s + at.tensor_f16("of_pairs", [one, one, at.q, at.k])
            }),
            Rule::Gate(Of::Fast) => Expression::score(|s, at| s * (bias(at) + s).sigmoid()),
            Rule::Gate(Of::Full) => Expression::score(|s, at| s * (bias(at) + s).sigmoid_full()),
            Rule::Random(seed) => Expression::score(|s, at| random::score(seed, s, at)),
            _ => return None,
        };
        Some(traced.expect("a score"))
    }

    /// Whether a score counts.
    fn mask(self) -> Option<Expression> {
        let traced = match self {
            Rule::Documents | Rule::AlibiInDocuments => Expression::mask(|at| {
                let of = |index| at.tensor_i32("documents", [at.batch, index]);
                of(at.q + (at.seqlen_k - at.seqlen_q)).eq(of(at.k))
            }),
            Rule::LongDocuments => Expression::mask(|at| {
                let of = |index| at.tensor_i32("long_documents", [at.batch, index]);
                of(at.q).eq(of(at.k)) & at.k.le(at.q)
            }),
            Rule::Reversed => Expression::mask(|at| behind(at).ge(0)),
            Rule::HiddenBlocks => Expression::mask(|at| at.q.ge(128) & at.k.ge(128)),
            Rule::OfHeads | Rule::SoftCapOfHeads => Expression::mask(|at| {
                let window = behind(at).abs().le(at.i32("left"));
                (at.head % 2).eq(0).select(behind(at).le(0), window)
            }),
            Rule::Causal => Expression::mask(|at| behind(at).le(0)),
            Rule::CausalByParam => Expression::mask(|at| behind(at).le(at.i32("none"))),
            Rule::Window => Expression::mask(|at| {
                behind(at).le(at.i32("right")) & (-behind(at)).le(at.i32("left"))
            }),
            Rule::Prefix => Expression::mask(|at| behind(at).le(0) | at.k.lt(PREFIX)),
            Rule::SameBlock => Expression::mask(|at| (at.q / 64).eq(at.k / 64)),
            Rule::EveryFourth => Expression::mask(|at| (at.k % 4).eq(0)),
            Rule::HiddenRows => Expression::mask(|at| (at.q / 16 % 3).eq(1) | at.q.gt(126)),
            Rule::OfBits => Expression::mask(|at| ((at.q ^ at.k) >> 7).le(1)),
            Rule::AlibiInBits => Expression::mask(|at| {
                let differ = |bit: i32| ((at.q ^ at.k) >> bit & 1).eq(0);
                (8..30).fold(differ(7), |all, bit| all & differ(bit))
            }),
            Rule::Nothing => Expression::mask(|at| at.k.ge(0)),
            Rule::Random(seed) if seed % 2 == 0 => Expression::mask(|at| random::mask(seed, at)),
            _ => return None,
        };
        Some(traced.expect("a mask"))
    }

    /// The expressions with what they read, for a problem of these sizes.
    pub fn edits(self, sizes: Sizes, seed: u64) -> Edits {
        let (score, mask) = (self.score(), self.mask());
        let given = Giving {
            sizes,
            seed,
            rule: self,
        };
        let mut params: Vec<(&'static str, ParamValue)> = Vec::new();
        let mut tensors: Vec<Given> = Vec::new();
        for expression in [&score, &mask].into_iter().flatten() {
            for param in expression.params() {
                let (name, value) = given.param(&param.name);
                if params.iter().all(|(known, _)| *known != name) {
                    params.push((name, value));
                }
            }
            for tensor in expression.tensors() {
                let tensor = given.tensor(&tensor.name, tensor.element, tensor.rank.into());
                if tensors.iter().all(|known| known.name != tensor.name) {
                    tensors.push(tensor);
                }
            }
        }
        Edits {
            score,
            mask,
            params,
            tensors,
        }
    }
}

/// How far a key lies behind the query's place, which is aligned to the bottom right.
fn behind(at: At) -> ferroflash_expression::Int {
    at.k - at.q - (at.seqlen_k - at.seqlen_q)
}

fn distance(at: At) -> Num {
    behind(at).to_f32()
}

fn alibi(s: Num, at: At) -> Num {
    s + at.tensor_f32("slopes", [at.head]) * distance(at)
}

fn tanh(x: Num, of: Of) -> Num {
    match of {
        Of::Fast => x.tanh(),
        Of::Full => x.tanh_full(),
    }
}

fn capped(s: Num, at: At, of: Of) -> Num {
    let cap = at.f32("cap");
    tanh(s / cap, of) * cap
}

fn bias(at: At) -> Num {
    at.tensor_f16("bias", [at.batch, at.head, at.q, at.k])
}
