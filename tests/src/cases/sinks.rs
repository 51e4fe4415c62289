//! Sinks of heads: near the scores, far above and below them, and −∞, beside everything else that problems have, in every kind of tiles.
//!
//! Cases are those of other sets, with sinks.

use super::base::{self, one_in};
use super::fp8::Fp8Case;
use super::mla::MlaCase;
use super::pages::PagedCase;
use super::scores::ScoreCase;
use super::{Case, HALVES, MASKS};
use crate::inputs::LseGradient;
use crate::sinks::{KINDS, Sinks};

/// Gives each case sinks, whose kinds go round.
fn with_sinks(cases: Vec<Case>) -> Vec<Case> {
    let kinds = KINDS.into_iter().cycle();
    cases
        .into_iter()
        .zip(kinds)
        .map(|(case, sinks)| Case { sinks, ..case })
        .collect()
}

/// Each head_dim of the kernels; rows that see no key, empty sequences, no heads; head_dims that kernels pad.
pub fn all() -> Vec<Case> {
    with_sinks(base::all())
}

/// Windows and prefixes.
pub fn masks() -> Vec<Case> {
    with_sinks(base::masks())
}

/// Sequences of lengths of their own, packed and padded, and rows of none.
pub fn lengths() -> Vec<Case> {
    with_sinks(base::lengths())
}

/// Block masks.
pub fn blocks() -> Vec<Case> {
    with_sinks(base::blocks())
}

/// A few queries over many keys, divided into splits and not.
pub fn few() -> Vec<Case> {
    let sets = [
        super::decode::all(),
        super::decode::lengths(),
        super::decode::splits(),
    ];
    with_sinks(one_in(3, sets.concat()))
}

/// Several splits of every sequence, and sinks that count: who adds them to each split gives them too much weight. All run.
pub fn splits() -> Vec<Case> {
    let lengths = [(1, 700), (3, 520), (5, 513), (2, 900)];
    let heads = [(2, 8, 2), (1, 4, 1), (1, 6, 2), (3, 2, 2)];
    let all = lengths.into_iter().zip(heads).enumerate();
    let cases = all.flat_map(|(at, ((seqlen_q, seqlen_k), (batch, heads_q, heads_k)))| {
        MASKS.into_iter().enumerate().map(move |(of_mask, mask)| {
            let (dtype, head_dim) = (HALVES[(at + of_mask) % 2], [64, 128][at % 2]);
            let case = Case::new(dtype, mask, head_dim, seqlen_q, seqlen_k);
            Case {
                split_kv: Some(256),
                sinks: [Sinks::Near, Sinks::Mixed][of_mask],
                seed: at as u64,
                ..case.heads(batch, heads_q, heads_k)
            }
        })
    });
    let cases: Vec<Case> = cases.collect();
    let in_lengths = super::lengths::of_their_own(cases.clone());
    cases.into_iter().chain(in_lengths).collect()
}

/// Compact tiles of flash3's forward pass, with heads packed, and with keys divided.
pub fn short() -> Vec<Case> {
    with_sinks(base::short())
}

/// Grouped tiles.
pub fn grouped() -> Vec<Case> {
    let sets = [
        super::grouped::all(),
        super::grouped::lengths(),
        super::grouped::splits(),
    ];
    with_sinks(one_in(3, sets.concat()))
}

/// Wide tiles of the forward pass.
pub fn wide() -> Vec<Case> {
    let sets = [super::wide_tiles::all(), super::wide_tiles::lengths()];
    with_sinks(one_in(4, sets.concat()))
}

/// Compact tiles of flash2's backward pass.
pub fn compact() -> Vec<Case> {
    with_sinks(super::compact::quick())
}

/// Query heads in shares.
pub fn shares() -> Vec<Case> {
    with_sinks(one_in(4, super::head_splits::full()))
}

/// Keys and values in pages, divided and not.
pub fn pages() -> Vec<PagedCase> {
    let cases = [
        super::pages::all(),
        super::pages::splits(),
        super::pages::mixed(),
    ]
    .concat();
    let mut cases = one_in(6, cases);
    each(cases.iter_mut().map(|paged| &mut paged.case));
    cases
}

/// Values in the keys.
pub fn latent() -> Vec<MlaCase> {
    let sets = [
        super::mla::all(),
        super::mla::lengths(),
        super::mla::splits(),
    ];
    let mut cases = one_in(4, sets.concat());
    each(cases.iter_mut().map(|latent| &mut latent.paged.case));
    cases
}

/// Keys and values in 8 bits.
pub fn fp8() -> Vec<Fp8Case> {
    let mut cases = one_in(4, [super::fp8::all(), super::fp8::splits()].concat());
    each(cases.iter_mut().map(|fp8| &mut fp8.paged.case));
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

fn each<'a>(cases: impl Iterator<Item = &'a mut Case>) {
    for (case, sinks) in cases.zip(KINDS.into_iter().cycle()) {
        case.sinks = sinks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_has_every_kind_that_shows() {
        let sets = [
            all(),
            masks(),
            lengths(),
            blocks(),
            few(),
            short(),
            grouped(),
        ];
        for (at, cases) in sets.into_iter().enumerate() {
            for kind in [Sinks::Near, Sinks::Mixed, Sinks::Above, Sinks::Below] {
                assert!(
                    cases.iter().any(|case| case.sinks == kind),
                    "set {at}: {kind:?}"
                );
            }
        }
        assert!(3 < pages().len() && 3 < latent().len() && 3 < fp8().len() && 3 < scores().len());
    }
}
