//! Problems for flash2's kernels of f32, in both precisions.

use ferroflash::{Dtype, Mask, Precision};

use super::pages::PagedCase;
use super::scores::{self, Rule, ScoreCase};
use super::{Case, HEADS, LENGTHS, MASKS, base, with_lse_gradients};
use crate::buffer::ALIGNED;
use crate::dropout::Dropout;
use crate::inputs::{ADVERSARIAL, Fill, LseGradient};
use crate::sinks::{KINDS, Sinks};

/// head_dims of the kernels, and some that they pad.
const HEAD_DIMS: [usize; 7] = [64, 128, 32, 100, 4, 60, 36];

const PRECISIONS: [Precision; 2] = [Precision::Tensor, Precision::Full];

/// Every pair of lengths around the tiles, with head_dims, heads, arrangements, masks and precisions going round; the adversarial numbers.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let masks = MASKS.into_iter().chain([
        Mask::Window {
            left: Some(40),
            right: Some(9),
        },
        Mask::PrefixLm { prefix: 33 },
    ]);
    let masks: Vec<Mask> = masks.collect();
    for (at, (seqlen_q, seqlen_k)) in LENGTHS.into_iter().enumerate() {
        for (of_precision, precision) in PRECISIONS.into_iter().enumerate() {
            let round = 2 * at + of_precision;
            let (batch, heads_q, heads_k) = HEADS[round % HEADS.len()];
            let head_dim = HEAD_DIMS[(at + 3 * of_precision) % HEAD_DIMS.len()];
            let mask = masks[(at + of_precision) % masks.len()];
            let case = Case::new(Dtype::F32, mask, head_dim, seqlen_q, seqlen_k);
            cases.push(Case {
                precision,
                arrangement: ALIGNED[round % ALIGNED.len()],
                seed: round as u64,
                ..case.heads(batch, heads_q, heads_k)
            });
        }
    }
    for (at, fill) in ADVERSARIAL.into_iter().chain([Fill::Rising]).enumerate() {
        cases.extend(PRECISIONS.map(|precision| Case {
            fill,
            precision,
            ..Case::new(Dtype::F32, MASKS[at % 2], HEAD_DIMS[at % 4], 70, 140)
        }));
    }
    with_lse_gradients(cases)
}

/// Masks, lengths and block masks, with sinks or dropout beside them.
pub fn beside() -> Vec<Case> {
    let sets = [base::all(), base::masks(), base::lengths(), base::blocks()].concat();
    sets.into_iter().enumerate().map(of_f32).collect()
}

/// Biases, whose gradients the backward pass gives, beside masks, lengths, block masks, sinks and dropout.
pub fn scores() -> Vec<ScoreCase> {
    let sets = [
        scores::all(),
        scores::masks(),
        scores::lengths(),
        scores::blocks(),
    ];
    let rules = Rule::of_gradients();
    let cases = sets.concat().into_iter().step_by(3).enumerate();
    let of_f32 = |(at, scores): (usize, ScoreCase)| {
        let case = of_f32((at, scores.case));
        ScoreCase {
            case: Case {
                fill: Fill::Normal,
                // A row that sees no key has its sink for lse, and what is said of its gradient counts.
                lse_gradient: match case.sinks {
                    Sinks::Absent => case.lse_gradient,
                    _ => LseGradient::Absent,
                },
                ..case
            },
            rule: rules[at % rules.len()],
        }
    };
    cases.map(of_f32).collect()
}

/// A case in f32, of another head_dim; one in three has sinks, one drops weights.
fn of_f32((at, case): (usize, Case)) -> Case {
    let head_dim = HEAD_DIMS[at % HEAD_DIMS.len()];
    let case = Case {
        dtype: Dtype::F32,
        precision: PRECISIONS[at / 3 % 2],
        ..case.columns(head_dim, head_dim)
    };
    match at % 3 {
        0 => case,
        1 => Case {
            sinks: KINDS[at / 3 % KINDS.len()],
            ..case
        },
        _ => Case {
            dropout: Some(Dropout::nth(at / 3)),
            ..case
        },
    }
}

/// Keys and values in pages.
pub fn pages() -> Vec<PagedCase> {
    let whole = |paged: &PagedCase| paged.case.split_kv.is_none();
    let paged = super::pages::all().into_iter().filter(whole);
    let of_f32 = |(at, paged): (usize, PagedCase)| PagedCase {
        case: Case {
            dtype: Dtype::F32,
            precision: PRECISIONS[at % 2],
            ..paged.case
        },
        ..paged
    };
    paged.step_by(4).enumerate().map(of_f32).collect()
}
