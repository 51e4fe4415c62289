//! Small problems for a device whose thresholds are smaller still ([`Thresholds`](ferroflash::plan::Thresholds)): a plan takes the ways that
//! otherwise only problems of thousands of rows get.

use ferroflash::Mask;

use super::mla::{self, MlaCase};
use super::{Case, HALVES, MASKS, lengths, window};
use crate::lengths::{Lengths, Rows};

/// Values in the keys, of which queries see the last ones.
pub fn mla_windows() -> Vec<MlaCase> {
    let mut cases = mla::lengths();
    for (at, case) in cases.iter_mut().enumerate() {
        case.paged.case.mask = window(Some([30, 100][at % 2]), Some(0));
    }
    cases
}

/// Several wide tiles of one head, with every kind of mask; columns of the kernels that have them.
pub fn wide() -> Vec<Case> {
    let masks = [MASKS[0], MASKS[1], Mask::PrefixLm { prefix: 70 }];
    let sizes = [(64, 400, 400), (128, 250, 500), (104, 400, 300)];
    let mut cases = Vec::new();
    for (at, (head_dim, seqlen_q, seqlen_k)) in sizes.into_iter().enumerate() {
        for (of_mask, mask) in masks.into_iter().enumerate() {
            let case = Case::new(
                HALVES[(at + of_mask) % 2],
                mask,
                head_dim,
                seqlen_q,
                seqlen_k,
            );
            cases.push(case.heads(1, 2, 1));
        }
    }
    cases
}

/// Packed sequences of which the longest meets an edge of the mask that one of their average length does not: a plan takes them for unmasked.
pub fn wide_lengths() -> Vec<Case> {
    const LENGTHS: Lengths = Lengths {
        n: 3,
        q: Rows::packed(&[260, 130, 3]),
        k: Rows::packed(&[300, 9, 5]),
    };
    let masks = [
        window(Some(150), Some(150)),
        Mask::PrefixLm { prefix: 140 },
        Mask::Full,
    ];
    let of = |(at, mask): (usize, Mask)| {
        [64, 128].map(|head_dim| {
            let case = Case::new(HALVES[at % 2], mask, head_dim, 0, 0);
            case.heads(1, 2, 1).of_rows(LENGTHS)
        })
    };
    masks.into_iter().enumerate().flat_map(of).collect()
}

/// `(seqlen_q, seqlen_k)` around wide tiles of head_dim above 192, of 80 keys and 64 queries.
const AROUND_COLUMNS: [(usize, usize); 10] = [
    (64, 80),
    (65, 81),
    (63, 79),
    (130, 40),
    (1, 160),
    (200, 239),
    (129, 241),
    (250, 400),
    (330, 100),
    (70, 500),
];

/// The same around pairs of blocks of 64 keys; of some the second block has none.
const AROUND_PAIRS: [(usize, usize); 11] = [
    (64, 128),
    (65, 129),
    (63, 127),
    (130, 40),
    (1, 256),
    (200, 191),
    (129, 257),
    (250, 400),
    (330, 64),
    (70, 500),
    (140, 321),
];

/// Head_dims whose wide tiles these are.
const OF_COLUMNS: [usize; 3] = [256, 232, 200];

/// Wide tiles whose consumers divide the columns, with every kind of mask.
pub fn wide_columns() -> Vec<Case> {
    columns_of(&AROUND_COLUMNS)
}

/// Paired tiles, with every kind of mask.
pub fn paired() -> Vec<Case> {
    columns_of(&AROUND_PAIRS)
}

/// Problems of these sizes with every kind of mask.
fn columns_of(sizes: &[(usize, usize)]) -> Vec<Case> {
    let masks = [
        MASKS[0],
        MASKS[1],
        window(Some(64), Some(63)),
        window(Some(40), None),
        window(None, Some(20)),
        Mask::PrefixLm { prefix: 70 },
        Mask::PrefixLm { prefix: 165 },
    ];
    let mut cases = Vec::new();
    for (at, &sizes) in sizes.iter().enumerate() {
        for (of_mask, mask) in masks.into_iter().enumerate() {
            let round = at + of_mask;
            let (heads_q, heads_k) = [(1, 1), (2, 1), (2, 2), (3, 1)][round % 4];
            let case = super::nth(round, mask, OF_COLUMNS[round % 3], sizes);
            cases.push(case.heads(1 + round % 2, heads_q, heads_k));
        }
    }
    let mut values = cases[..6].to_vec();
    for case in &mut values {
        *case = case.columns(256, 128);
    }
    cases.extend(values);
    super::with_lse_gradients(cases)
}

/// The same with sequences of lengths of their own.
pub fn wide_columns_lengths() -> Vec<Case> {
    let mut cases = lengths::all();
    for (at, case) in cases.iter_mut().enumerate() {
        let head_dim = OF_COLUMNS[at % 3];
        *case = case.columns(head_dim, head_dim);
    }
    cases
}

/// The same with so few tiles that query heads which share keys are divided.
pub fn wide_columns_head_splits() -> Vec<Case> {
    let masks = [MASKS[0], MASKS[1], window(Some(100), Some(0))];
    let sizes = [(300, 70), (200, 161), (150, 240), (130, 80)];
    let mut cases = Vec::new();
    for (at, sizes) in sizes.into_iter().enumerate() {
        for (of_mask, mask) in masks.into_iter().enumerate() {
            let round = at + of_mask;
            let (heads_q, heads_k) = [(4, 1), (7, 1), (6, 2)][round % 3];
            let case = super::nth(round, mask, OF_COLUMNS[round % 3], sizes);
            cases.push(case.heads(1 + at % 2, heads_q, heads_k));
        }
    }
    super::with_lse_gradients(cases)
}

#[cfg(test)]
mod tests {
    use ferroflash::plan::{Algorithm, Backend, plan};
    use ferroflash::tensor::Location;
    use ferroflash::validate::{Pass, without_tensors};
    use ferroflash_kernels::params::Params;

    use super::*;
    use crate::subject::{EMULATED_PAIRED_SPLITS, EMULATED_WIDE_SPLITS, Subject};

    /// The backward pass of each on a device: its last kernel, and the number of its head splits.
    fn planned(
        subject: &Subject,
        cases: Vec<Case>,
    ) -> impl Iterator<Item = (&'static str, u32)> + use<> {
        let device = (subject.open)(0).unwrap();
        cases.into_iter().map(move |case| {
            let problem = case.problem().unwrap();
            let checked = without_tensors(&problem, Pass::Backward, Location::Host).unwrap();
            let asked = Some(Algorithm::Flash3);
            let plan = plan(&checked, device.info(), Backend::Emulated, asked).unwrap();
            match plan
                .launches
                .last()
                .map(|launch| (launch.variant, launch.params))
            {
                Some((variant, Params::TmaBackward(params))) => {
                    (variant.name, params.pass.n_head_splits)
                }
                _ => panic!("{plan}"),
            }
        })
    }

    #[test]
    fn consumers_divide_the_columns() {
        let cases = [wide_columns(), wide_columns_head_splits()].concat();
        for (name, _) in planned(&EMULATED_WIDE_SPLITS, cases) {
            assert!(name.ends_with("16_d256_wide"), "{name}");
        }
    }

    #[test]
    fn two_blocks_share_a_tile() {
        let cases = [paired(), wide_columns_head_splits()].concat();
        for (name, _) in planned(&EMULATED_PAIRED_SPLITS, cases) {
            assert!(name.ends_with("16_d256_paired"), "{name}");
        }
    }

    #[test]
    fn most_query_heads_are_divided() {
        let cases = wide_columns_head_splits();
        let n = cases.len();
        for subject in [EMULATED_WIDE_SPLITS, EMULATED_PAIRED_SPLITS] {
            let planned = planned(&subject, cases.clone());
            let divided = planned.filter(|&(_, splits)| splits > 1).count();
            assert!(2 * divided > n, "{divided} of {n}");
        }
    }
}
