//! Scores of the user's own aimed at flash3's tiles.

use ferroflash::Mask;
use ferroflash_expression::ElementType;

use super::{Of, Rule, ScoreCase};
use crate::cases::{Case, HALVES, MASKS};
use crate::inputs::Fill;
use crate::lengths::{Lengths, Rows};

/// Soft caps of head_dim 64, where every block of keys outgrows those that a row has seen before: flash3 has an order of its own there.
pub(super) fn outgrown((seqlen_q, seqlen_k): (usize, usize)) -> impl Iterator<Item = ScoreCase> {
    let rules = [Rule::SoftCap(Of::Fast), Rule::AlibiSoftCap(Of::Fast)];
    rules.into_iter().enumerate().map(move |(round, rule)| {
        let case = Case::new(HALVES[round], MASKS[round], 64, seqlen_q, seqlen_k);
        let case = Case {
            fill: Fill::Falling,
            ..case.heads(1, 2, 1)
        };
        ScoreCase { case, rule }
    })
}

/// Values of more columns than keys, which have tiles of their own in flash3's forward pass.
pub(super) fn of_many_values() -> impl Iterator<Item = ScoreCase> {
    let rules = [
        Rule::AlibiSoftCap(Of::Fast),
        Rule::Bias(Of::Fast),
        Rule::Documents,
        Rule::SoftCap(Of::Full),
    ];
    let columns = [256, 512].into_iter().enumerate();
    let cases = columns.flat_map(move |(at, head_dim_v)| {
        let of_columns = move |(round, rule)| (2 * at + round, head_dim_v, rule);
        rules.into_iter().enumerate().map(of_columns)
    });
    cases.map(|(round, head_dim_v, rule)| {
        let case = Case::new(HALVES[round % 2], MASKS[round / 2 % 2], 64, 150, 290);
        let case = Case {
            seed: round as u64,
            ..case.columns(64, head_dim_v).heads(1, 2, 1)
        };
        ScoreCase { case, rule }
    })
}

/// Sequences that are long enough for flash3's wide tiles. With masks they are packed: else the plan takes other tiles, and skips what masks hide.
pub fn wide() -> Vec<ScoreCase> {
    const PACKED: [[Rows; 2]; 3] = [
        [Rows::packed(&[1537]), Rows::packed(&[130])],
        [Rows::packed(&[4097]), Rows::packed(&[90])],
        [Rows::packed(&[1600]), Rows::packed(&[257])],
    ];
    let sizes = [(1537, 130, 64), (4097, 90, 104), (1600, 257, 40)];
    let rules = [
        Rule::AlibiSoftCap(Of::Fast),
        Rule::EveryFourth,
        Rule::RelativeBias(ElementType::F16),
        Rule::AlibiInDocuments,
        Rule::SoftCap(Of::Full),
        Rule::HiddenRows,
    ];
    let cases = rules.into_iter().enumerate().map(|(round, rule)| {
        let (seqlen_q, seqlen_k, head_dim) = sizes[round % sizes.len()];
        let case = Case::new(HALVES[round % 2], Mask::Full, head_dim, seqlen_q, seqlen_k);
        let case = Case {
            seed: round as u64,
            ..case.heads(1, 2, 1)
        };
        let [q, k] = PACKED[round % PACKED.len()];
        let has_mask = rule.edits(case.sizes, 0).mask.is_some();
        ScoreCase {
            case: match has_mask {
                true => case.of_rows(Lengths { n: 1, q, k }),
                false => case,
            },
            rule,
        }
    });
    let outgrown = outgrown((1537, 300)).take(1);
    cases.chain(outgrown).collect()
}
