//! Weights that are dropped, few and many, by seeds and offsets of every size, beside everything else that problems have, in every kind of tiles.
//!
//! Cases are those of other sets, with dropout; some have sinks, too.

use super::Case;
use super::base::{self, one_in};
use super::pages::PagedCase;
use super::scores::ScoreCase;
use crate::dropout::Dropout;
use crate::inputs::LseGradient;
use crate::sinks::Sinks;

/// Gives each case dropout, and one in four sinks.
fn with_dropout(mut cases: Vec<Case>) -> Vec<Case> {
    each(cases.iter_mut());
    cases
}

fn each<'a>(cases: impl Iterator<Item = &'a mut Case>) {
    for (n, case) in cases.enumerate() {
        case.dropout = Some(Dropout::nth(n));
        if n % 4 == 3 {
            case.sinks = Sinks::Near;
        }
    }
}

/// Each head_dim of the kernels; rows that see no key, empty sequences, no heads; head_dims that kernels pad.
pub fn all() -> Vec<Case> {
    with_dropout(base::all())
}

/// Windows and prefixes.
pub fn masks() -> Vec<Case> {
    with_dropout(base::masks())
}

/// Sequences of lengths of their own, packed and padded, and rows of none.
pub fn lengths() -> Vec<Case> {
    with_dropout(base::lengths())
}

/// Block masks.
pub fn blocks() -> Vec<Case> {
    with_dropout(base::blocks())
}

/// A few queries over many keys, which flash2's kernel for these does not take; divided into splits and not.
pub fn few() -> Vec<Case> {
    with_dropout(one_in(
        4,
        [super::decode::all(), super::decode::lengths()].concat(),
    ))
}

/// Compact tiles of flash3's forward pass, and keys divided.
pub fn short() -> Vec<Case> {
    with_dropout(base::short())
}

/// Sequences that are long enough for wide tiles.
pub fn wide() -> Vec<Case> {
    let sets = [super::wide_tiles::all(), super::wide_tiles::lengths()];
    with_dropout(one_in(6, sets.concat()))
}

/// Compact tiles of flash2's backward pass.
pub fn compact() -> Vec<Case> {
    with_dropout(super::compact::quick())
}

/// Query heads in shares.
pub fn shares() -> Vec<Case> {
    with_dropout(one_in(4, super::head_splits::full()))
}

/// Keys and values in pages, divided and not.
pub fn pages() -> Vec<PagedCase> {
    let cases = [super::pages::all(), super::pages::mixed()].concat();
    let mut cases = one_in(6, cases);
    each(cases.iter_mut().map(|paged| &mut paged.case));
    cases
}

/// Scores and masks of the user's own.
pub fn scores() -> Vec<ScoreCase> {
    let sets = [
        super::scores::all(),
        super::scores::lengths(),
        super::scores::few(),
    ];
    let mut cases = one_in(5, sets.concat());
    for score in &mut cases {
        // Which rows have an lse depends on the sinks, too.
        score.case.lse_gradient = LseGradient::Absent;
    }
    each(cases.iter_mut().map(|score| &mut score.case));
    cases
}
