//! What a call gives the expressions of a rule: numbers for their parameters, and tensors.

use ferroflash_expression::random::Random;
use ferroflash_expression::{ElementType, ParamValue};

use super::Of;
use super::{LEFT, RIGHT, Rule, SHORT};
use crate::edits::memory::{Given, Strides};
use crate::oracle::Sizes;

/// What a call gives.
pub(super) struct Giving {
    pub(super) sizes: Sizes,
    pub(super) seed: u64,
    pub(super) rule: Rule,
}

impl Giving {
    pub(super) fn param(&self, name: &str) -> (&'static str, ParamValue) {
        match name {
            "cap" => ("cap", ParamValue::F32(1.75)),
            "negative_cap" => ("negative_cap", ParamValue::F32(-1.25)),
            "n" => ("n", ParamValue::I32(self.sizes.seqlen_q as i32 - 1)),
            "left" => ("left", ParamValue::I32(LEFT)),
            "right" => ("right", ParamValue::I32(RIGHT)),
            "none" => ("none", ParamValue::I32(0)),
            "weight" => ("weight", ParamValue::F32(0.75)),
            "period" => ("period", ParamValue::I32(5)),
            _ => panic!("no value for the parameter {name}"),
        }
    }

    pub(super) fn tensor(&self, name: &str, element: ElementType, rank: usize) -> Given {
        let Sizes {
            batch,
            seqlen_q,
            seqlen_k,
            heads_q,
            heads_k,
            ..
        } = self.sizes;
        let uniform = |indices: &[usize]| {
            let mix = |seed: u64, &index: &usize| Random(seed ^ index as u64).bits();
            let bits = indices.iter().fold(self.seed, mix);
            (bits >> 40) as f64 / f64::from(1u32 << 23) - 1.0
        };
        let some = |name, extents: &[usize], strides, f: &dyn Fn(&[usize]) -> f64| {
            Given::new(name, element, extents, strides, f)
        };
        match (name, rank) {
            ("slopes", 1) => some("slopes", &[heads_q], Strides::Contiguous, &|at| {
                0.03 + 0.01 * uniform(at)
            }),
            ("slopes", _) => some("slopes", &[batch, heads_q], Strides::Reversed, &|at| {
                0.03 + 0.02 * uniform(at)
            }),
            // Documents of 10 to 41 keys.
            ("documents", _) => some("documents", &[batch, seqlen_k], Strides::Odd, &|at| {
                (at[1] / (10 + (self.seed as usize + at[0]) % 32)) as f64
            }),
            ("long_documents", _) => {
                let rows = seqlen_q.max(seqlen_k);
                some("long_documents", &[batch, rows], Strides::Odd, &|at| {
                    (at[1] / (150 + (self.seed as usize + at[0]) % 32)) as f64
                })
            }
            ("table", _) if self.rule == Rule::ShortRelativeBias => {
                some("table", &[heads_q, 2 * SHORT + 1], Strides::Odd, &uniform)
            }
            ("table", _) => {
                let distances = (seqlen_q + seqlen_k).max(2) - 1;
                some("table", &[heads_q, distances], Strides::Reversed, &uniform)
            }
            ("shared", _) => {
                let extents = [heads_k, seqlen_k, seqlen_q];
                some("shared", &extents, Strides::Odd, &uniform)
            }
            ("of_pairs", 2) => {
                let extents = [seqlen_q, seqlen_k];
                some("of_pairs", &extents, Strides::Odd, &uniform)
            }
            ("of_pairs", _) => {
                let extents = [1, 1, seqlen_q, seqlen_k];
                some("of_pairs", &extents, Strides::Contiguous, &uniform)
            }
            ("bias", _) => {
                let strides = match self.rule {
                    Rule::Bias(Of::Fast) => Strides::Repeated(0),
                    Rule::Bias(Of::Full) => Strides::Odd,
                    _ => Strides::Contiguous,
                };
                let extents = [batch, heads_q, seqlen_q, seqlen_k];
                some("bias", &extents, strides, &uniform)
            }
            _ => panic!("no tensor {name}"),
        }
    }
}
