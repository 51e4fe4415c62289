//! Scores and masks by name, as `ferroflash bench` measures them, and what calls give them.

use clap::ValueEnum;
use ferroflash::expression::{ElementType, ExpressionError, ParamValue, Tensor};
use ferroflash::{Mask, MaskExpression, Problem, Score};

/// A score of the user's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScoreName {
    /// A bias that falls with the distance of a key, by a slope of each head (Press et al. 2022), aligned to the bottom right.
    Alibi,
    /// cap · tanh(s / cap), as Gemma 2 has it.
    SoftCap,
    /// Both.
    SoftCapAlibi,
    /// A number for each head, query and key, in bf16.
    Bias,
}

/// A mask of the user's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MaskName {
    /// A causal mask.
    Causal,
    /// A query sees the keys of its own document, of 32 of equal lengths in a sequence.
    Document,
}

impl ScoreName {
    /// The expression.
    pub fn score(self) -> Result<Score, ExpressionError> {
        Score::new(|s, at| {
            let cap = || at.f32("cap");
            let distance = || (at.k - at.q - (at.seqlen_k - at.seqlen_q)).to_f32();
            let slope = || at.tensor_f32("slopes", [at.head]);
            match self {
                ScoreName::Alibi => s + slope() * distance(),
                ScoreName::SoftCap => (s / cap()).tanh() * cap(),
                ScoreName::SoftCapAlibi => (s / cap()).tanh() * cap() + slope() * distance(),
                ScoreName::Bias => s + at.tensor_bf16("bias", [at.head, at.q, at.k]),
            }
        })
    }
}

impl MaskName {
    /// The expression.
    pub fn mask(self) -> Result<MaskExpression, ExpressionError> {
        Mask::new(|at| match self {
            MaskName::Causal => at.k.le(at.q + (at.seqlen_k - at.seqlen_q)),
            MaskName::Document => {
                let document = |place| at.tensor_i32("document", [place]);
                document(at.q).eq(document(at.k))
            }
        })
    }
}

/// The value of a parameter.
pub fn param() -> ParamValue {
    ParamValue::F32(50.0)
}

/// Documents of a sequence.
const DOCUMENTS: usize = 32;

/// The elements of a tensor, and its extents.
pub struct Filled {
    /// The elements, as the tensor's type has them.
    pub data: Data,
    /// The extents.
    pub shape: Vec<usize>,
}

/// Elements.
pub enum Data {
    /// Numbers of 32 bits.
    F32(Vec<f32>),
    /// Numbers of 16 bits.
    Bf16(Vec<half::bf16>),
    /// Whole numbers.
    I32(Vec<i32>),
}

/// What a tensor of these expressions holds, for a problem.
pub fn filled(tensor: &Tensor, problem: &Problem) -> Filled {
    let (heads, seqlen_q, seqlen_k) = (problem.heads_q(), problem.seqlen_q(), problem.seqlen_k());
    match tensor.element {
        ElementType::I32 => {
            let longest = seqlen_q.max(seqlen_k);
            let each = longest.div_ceil(DOCUMENTS).max(1);
            Filled {
                data: Data::I32((0..longest).map(|place| (place / each) as i32).collect()),
                shape: vec![longest],
            }
        }
        ElementType::Bf16 | ElementType::F16 => {
            let n_elems = heads * seqlen_q * seqlen_k;
            let value = |idx: usize| half::bf16::from_f32((idx % 1021) as f32 / 512.0 - 1.0);
            Filled {
                data: Data::Bf16((0..n_elems).map(value).collect()),
                shape: vec![heads, seqlen_q, seqlen_k],
            }
        }
        ElementType::F32 => {
            let slope = |head: usize| (-8.0 * (head + 1) as f32 / heads as f32).exp2();
            Filled {
                data: Data::F32((0..heads).map(slope).collect()),
                shape: vec![heads],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::Dtype;

    #[test]
    fn every_name_is_an_expression_whose_tensors_can_be_filled() {
        let problem = Problem::builder(Dtype::Bf16)
            .seqlen_q(64)
            .seqlen_k(128)
            .heads(4)
            .head_dim(64)
            .build()
            .unwrap();
        let scores = ScoreName::value_variants().iter();
        let scores = scores.map(|name| name.score().unwrap().expression());
        let masks = MaskName::value_variants().iter();
        let masks = masks.map(|name| name.mask().unwrap().expression());
        for expression in scores.chain(masks) {
            for tensor in expression.tensors() {
                let Filled { data, shape } = filled(tensor, &problem);
                let n_elems = match data {
                    Data::F32(data) => data.len(),
                    Data::Bf16(data) => data.len(),
                    Data::I32(data) => data.len(),
                };
                assert_eq!(shape.len(), usize::from(tensor.rank), "{}", tensor.name);
                assert_eq!(n_elems, shape.iter().product(), "{}", tensor.name);
            }
        }
    }
}
