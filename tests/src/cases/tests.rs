//! The sets of cases cover what they say, and every case is a problem.

use super::*;
use crate::subject::TileShape;
use ferroflash::Algorithm;

#[test]
fn the_full_set_covers_each_pair_of_choices() {
    let cases = full();
    for head_dim in HEAD_DIMS {
        for mask in MASKS {
            let some = |f: &dyn Fn(&&Case) -> bool| {
                cases
                    .iter()
                    .filter(|case| case.sizes.head_dim == head_dim && case.mask == mask)
                    .any(|case| f(&case))
            };
            assert!(
                HALVES
                    .iter()
                    .all(|&dtype| some(&|case| case.dtype == dtype))
            );
            assert!(
                ALIGNED
                    .iter()
                    .all(|&arrangement| some(&|case| case.arrangement == arrangement))
            );
            assert!(
                HEADS
                    .iter()
                    .all(|&(_, q, k)| some(
                        &|case| (case.sizes.heads_q, case.sizes.heads_k) == (q, k)
                    ))
            );
            assert!(some(&|case| case.sizes.seqlen_k < case.sizes.seqlen_q));
            for lse_gradient in [LseGradient::Absent, LseGradient::Given] {
                assert!(some(&|case| case.lse_gradient == lse_gradient));
            }
        }
    }
}

#[test]
fn every_case_is_a_problem() {
    for case in [
        quick(),
        full(),
        edge(),
        padded(),
        wide(),
        compact::quick(),
        compact::full(),
        short::all(),
        short::packed(),
        short::splits(),
        orders::shifted(),
        orders::lists(),
        orders::causal(),
        head_splits::full(),
        head_splits::causal(),
        head_splits::windows(),
        wide_tiles::all(),
        windows::all(),
        lengths::all(),
        aimed::repeated(),
        aimed::mispredictions(TileShape::Default),
        aimed::mispredictions(TileShape::Compact),
        aimed::wide_mispredictions(),
        aimed::edges(Algorithm::Flash2, TileShape::Default),
        aimed::edges(Algorithm::Flash3, TileShape::Compact),
        aimed::stages(),
    ]
    .concat()
    {
        let problem = case.problem().unwrap();
        assert_eq!(
            problem.shape_q().iter().product::<usize>(),
            case.values().q.len()
        );
        ferroflash::validate::sizes(&problem).unwrap();
    }
}
