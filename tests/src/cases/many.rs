//! Sequences by the hundred, few queries of each: what an engine decodes at once. Problems of so many rows that a plan takes the ways of large
//! ones ([`Thresholds`](ferroflash::plan::Thresholds)), with the real numbers; for a GPU and the CPU, as the emulator is too slow.

use ferroflash::{Dtype, SplitKv};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::fp8::{self, Fp8Case};
use super::mla::{COLUMNS, MlaCase};
use super::pages::PagedCase;
use super::{Case, HALVES, MASKS, window};
use crate::buffer::{ALIGNED, Arrangement};
use crate::lengths::{Lengths, Rows};

/// The most sequences.
const MOST_SEQUENCES: usize = 1100;

/// The most query heads.
const MOST_HEADS: usize = 64;

/// The most queries of a sequence.
const MOST_QUERIES: usize = 64;

/// The most keys of a sequence: more than one block of any tile has.
const MOST_KEYS: usize = 700;

/// The most products of a query, a key and a column: what the oracle computes in a second or so.
const MOST_PRODUCTS: usize = 1 << 26;

/// head_dims of the kernels, and some that they pad.
const HEAD_DIMS: [usize; 6] = [64, 128, 64, 128, 96, 40];

/// Rows of a page.
const PAGE_SIZES: [usize; 4] = [16, 64, 256, 3];

/// One side's rows of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// In batch entries, all of them used.
    Full,
    /// In batch entries, of which some rows are used.
    Used,
    /// One behind the other.
    Packed,
}

/// Of so many problems the sizes that decide which way a plan takes, at random; the lengths of a side as `sides` says, by turns.
fn cases(n: usize, seed: u64, sides: &[(Side, Side)]) -> Vec<Case> {
    let mut rng = StdRng::seed_from_u64(seed);
    let of = |at: usize| case(&mut rng, sides[at % sides.len()]);
    (0..n).map(of).collect()
}

/// Sequences with and without lengths of their own; both passes.
pub fn dense(n: usize, seed: u64) -> Vec<Case> {
    let sides = [
        (Side::Full, Side::Used),
        (Side::Full, Side::Full),
        (Side::Packed, Side::Packed),
        (Side::Used, Side::Used),
        (Side::Packed, Side::Used),
    ];
    cases(n, seed, &sides)
}

/// Keys and values in pages.
pub fn paged(n: usize, seed: u64) -> Vec<PagedCase> {
    let sides = [(Side::Full, Side::Used), (Side::Packed, Side::Used)];
    let of = |(at, case)| in_pages(at, case);
    let cases = cases(n, seed ^ 1, &sides).into_iter().enumerate();
    cases.map(of).collect()
}

/// The same in 8 bits.
pub fn in_8_bits(n: usize, seed: u64) -> Vec<Fp8Case> {
    let of = |(at, case)| in_pages(at, case);
    let cases = cases(n, seed ^ 2, &[(Side::Full, Side::Used)]).into_iter();
    fp8::in_8_bits(cases.enumerate().map(of).collect())
}

/// Values in the keys of one head.
pub fn latent(n: usize, seed: u64) -> Vec<MlaCase> {
    let cases = cases(n, seed ^ 3, &[(Side::Full, Side::Used)]).into_iter();
    let of = |(at, case): (usize, Case)| {
        let (head_dim, head_dim_v) = COLUMNS;
        let sizes = case.sizes;
        // Its columns are many times as many.
        let mut case = case
            .columns(head_dim, head_dim_v)
            .heads(sizes.batch, sizes.heads_q, 1);
        if let Some(lengths) = case.lengths {
            let k = in_use(lengths.k, 40);
            case = case.of_rows(Lengths { k, ..lengths });
        }
        MlaCase {
            paged: in_pages(at, case),
            split_kv: [SplitKv::Auto, SplitKv::Keys(64)][at % 2],
        }
    };
    cases.enumerate().map(of).collect()
}

/// The same side with so many rows of a sequence at most.
fn in_use(rows: Rows, most: usize) -> Rows {
    let used = rows.used.unwrap_or_default();
    let used: Vec<usize> = used.iter().map(|&n| n.min(most)).collect();
    Rows::padded(rows.longest().min(most)).used(used.leak())
}

fn in_pages(at: usize, case: Case) -> PagedCase {
    PagedCase {
        case,
        page_size: PAGE_SIZES[at % PAGE_SIZES.len()],
        more_columns: at % 2,
        prefix: 0,
    }
}

fn case(rng: &mut StdRng, (of_q, of_k): (Side, Side)) -> Case {
    // As many small ones as large ones.
    let mut up_to = |most: usize| {
        let exponent = rng.random_range(0.0..=(most as f64).log2());
        (exponent.exp2().round() as usize).clamp(1, most)
    };
    let batch = up_to(MOST_SEQUENCES);
    let heads_q = up_to(MOST_HEADS);
    let mut seqlen_q = up_to(MOST_QUERIES);
    let mut seqlen_k = up_to(MOST_KEYS).max(seqlen_q);
    let head_dim = *HEAD_DIMS.choose(rng).unwrap_or(&64);
    let products =
        |seqlen_q: usize, seqlen_k: usize| batch * heads_q * head_dim * seqlen_q * seqlen_k;
    while products(seqlen_q, seqlen_k) > MOST_PRODUCTS && (seqlen_q > 1 || seqlen_k > 33) {
        // Rows are what thresholds count; keys go first.
        match seqlen_k > 33 {
            true => seqlen_k = (seqlen_k / 2).max(33),
            false => seqlen_q /= 2,
        }
    }
    let groups: Vec<usize> = (1..=heads_q)
        .filter(|n| heads_q.is_multiple_of(*n))
        .collect();
    let heads_k = *groups.choose(rng).unwrap_or(&1);
    let masks = [MASKS[0], MASKS[1], window(Some(20), Some(0))];
    let mask = *masks.choose(rng).unwrap_or(&MASKS[0]);
    let dtype: Dtype = HALVES[rng.random_range(0..2)];
    let case = Case {
        arrangement: *ALIGNED.choose(rng).unwrap_or(&Arrangement::Bshd),
        seed: rng.random_range(0..1000),
        ..Case::new(dtype, mask, head_dim, seqlen_q, seqlen_k).heads(batch, heads_q, heads_k)
    };
    if (of_q, of_k) == (Side::Full, Side::Full) {
        return case;
    }
    let (q, k) = (
        rows(rng, of_q, batch, seqlen_q),
        rows(rng, of_k, batch, seqlen_k),
    );
    case.of_rows(Lengths { n: batch, q, k })
}

/// Rows of so many sequences: none of some, one of others.
fn rows(rng: &mut StdRng, side: Side, n: usize, most: usize) -> Rows {
    let mut lens = || -> &'static [usize] {
        let of = |_| match rng.random_range(0..6) {
            0 => 0,
            1 => 1,
            2 => most,
            _ => rng.random_range(0..=most),
        };
        (0..n).map(of).collect::<Vec<_>>().leak()
    };
    match side {
        Side::Full => Rows::padded(most),
        Side::Used => Rows::padded(most).used(lens()),
        Side::Packed => Rows::packed_between(1, lens(), 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counters of arrivals are for 8192 rows: what decode got wrong beyond them had no test.
    #[test]
    fn some_have_more_rows_than_any_threshold() {
        let rows = |case: &Case| {
            let sizes = case.sizes;
            sizes.batch * sizes.heads_q * sizes.seqlen_q
        };
        let cases = dense(200, 7);
        let many = cases.iter().filter(|case| rows(case) > 8192).count();
        assert!((20..180).contains(&many), "{many} of {}", cases.len());
        let few = cases.iter().filter(|case| case.sizes.seqlen_q == 1).count();
        assert!(few > 20, "{few} have one query");
        let products = |case: &Case| {
            let sizes = case.sizes;
            rows(case) * sizes.seqlen_k * sizes.head_dim
        };
        let most = cases.iter().map(products).max();
        assert!(
            most.is_some_and(|most| most <= 4 * MOST_PRODUCTS),
            "{most:?}"
        );
    }
}
