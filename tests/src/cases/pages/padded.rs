//! Sequences that begin at any row of any of their pages, behind padding (`leftpad_k`).

use ferroflash::Mask;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::{HEADS, MASKS, PagedCase, nth};
use crate::lengths::{Lengths, Rows};

/// Beginnings and ends of pages, rows next to them, and a sequence that is nothing but padding.
const LENGTHS: [Lengths; 3] = [
    // Decode.
    Lengths {
        n: 5,
        q: Rows::padded(1),
        k: Rows::padded(300)
            .used(&[300, 70, 129, 40, 64])
            .leftpad(&[100, 69, 1, 40, 16]),
    },
    // Chunks of queries; one sequence without padding.
    Lengths {
        n: 3,
        q: Rows::padded(70).used(&[70, 3, 64]),
        k: Rows::padded(260)
            .used(&[200, 260, 70])
            .leftpad(&[63, 130, 0]),
    },
    // Prefill of some beside decode of others.
    Lengths {
        n: 5,
        q: Rows::packed(&[1, 40, 1, 0, 130]),
        k: Rows::padded(280)
            .used(&[257, 40, 279, 5, 130])
            .leftpad(&[128, 3, 17, 5, 1]),
    },
];

/// Sequences of one page.
const OF_ONE_PAGE: Lengths = Lengths {
    n: 4,
    q: Rows::padded(9),
    k: Rows::padded(300)
        .used(&[300, 70, 40, 299])
        .leftpad(&[100, 69, 40, 1]),
};

/// All lengths in pages of a few sizes each, every size with one of them; few queries with divided keys, too.
pub fn padded() -> Vec<PagedCase> {
    let sizes = [16, 1, 64, 48, 3, 256];
    let mut cases = Vec::new();
    for (at, lengths) in LENGTHS.into_iter().enumerate() {
        for of_size in 0..4 {
            let page_size = sizes[(2 * at + of_size) % sizes.len()];
            cases.push(nth(3 * at + of_size, lengths, page_size, None));
        }
    }
    let split = |(at, page_size)| nth(at, LENGTHS[0], page_size, Some([64, 128][at % 2]));
    cases.extend([16, 64, 1].into_iter().enumerate().map(split));
    // Entries of a cache, chosen.
    cases.extend((0..4).map(|at| nth(at, OF_ONE_PAGE, 300 + at, None)));
    cases.push(nth(1, OF_ONE_PAGE, 300, Some(64)));
    cases
}

/// Sequences of random lengths behind random padding, in pages of random sizes.
pub fn random(n: usize, seed: u64) -> Vec<PagedCase> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..n).map(|_| drawn(&mut rng)).collect()
}

fn drawn(rng: &mut StdRng) -> PagedCase {
    let (n, longest) = (rng.random_range(1..5), rng.random_range(1..300));
    let used: Vec<usize> = (0..n).map(|_| rng.random_range(0..=longest)).collect();
    let mut padding = |&used: &usize| match rng.random_ratio(1, 4) {
        true => [0, used][rng.random_range(0..2)],
        false => rng.random_range(0..=used),
    };
    let leftpad: Vec<usize> = used.iter().map(&mut padding).collect();
    let longest_q: usize = *[1, 3, 40, 130].choose(rng).unwrap_or(&1);
    let lens: Vec<usize> = (0..n).map(|_| rng.random_range(0..=longest_q)).collect();
    let q = match rng.random_range(0..3) {
        0 => Rows::padded(longest_q),
        1 => Rows::padded(longest_q).used(lens.leak()),
        _ => Rows::packed(lens.leak()),
    };
    let lengths = Lengths {
        n,
        q,
        k: Rows::padded(longest)
            .used(used.leak())
            .leftpad(leftpad.leak()),
    };
    let page_size = match rng.random_ratio(1, 2) {
        true => [1, 8, 16, 32, 64][rng.random_range(0..5)],
        false => rng.random_range(1..=longest + 3),
    };
    let split_kv = (longest_q < 9 && rng.random_ratio(1, 3)).then_some(64);
    let mut paged = nth(rng.random_range(0..120), lengths, page_size, split_kv);
    let (heads_q, heads_k) = HEADS[rng.random_range(0..HEADS.len())];
    paged.case = paged.case.heads(n, heads_q, heads_k);
    paged.case.mask = match rng.random_range(0..=MASKS.len()) {
        at if at < MASKS.len() => MASKS[at],
        _ => Mask::Window {
            left: Some(rng.random_range(0..100)),
            right: Some(rng.random_range(0..100)),
        },
    };
    paged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_front_of_a_sequence_is_in_no_page() {
        for paged in padded().into_iter().chain(random(40, 7)) {
            let (table, columns) = (paged.table(), paged.columns());
            for (sequence, slots) in paged.own_slots().into_iter().enumerate() {
                for slot in 0..columns {
                    let page = paged.page(table[sequence * columns + slot]);
                    assert_eq!(page.is_some(), slots.contains(&slot), "{paged:?}");
                }
            }
        }
    }
}
