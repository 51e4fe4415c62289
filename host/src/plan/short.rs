//! Short sequences in flash3's forward pass: when compact tiles pay, and how many heads share one. Choices of speed only.

use ferroflash_kernels::attention::mask::Work;

use super::DeviceInfo;
use crate::problem::Problem;

/// Rows of a compact tile.
const ROWS: u64 = 64;

/// The most compact tiles for each SM at which they pay although default tiles, of twice the rows, would be full.
///
/// An SM is at best as fast with two compact tiles as with one default tile. A single compact tile takes little more than half the time, so compact
/// tiles pay while each has its own SM. Under a causal mask lengths differ: with two for each SM, a
/// short one goes with a long one, while default tiles would still leave the last to finish alone.
const fn most_tiles_per_sm(work: Work) -> u64 {
    match work {
        Work::Even => 1,
        Work::Growing | Work::Shrinking => 2,
    }
}

/// The most heads that share a tile, one row each, as an exponent of 2.
const MOST_PACKED_LOG2: u32 = ROWS.trailing_zeros();

/// How many tiles there must be without packed heads for every [`PACKING_PAYS`]`.1` with them: with fewer, whole tiles are read just as often, in shorter pieces.
const PACKING_PAYS: (u64, u64) = (3, 2);

/// Whether to prefer compact tiles on a device with this many SMs.
pub fn prefers_compact(problem: &Problem, n_sms: u32) -> bool {
    let fills_no_default_tile = problem.seqlen_q() as u64 <= ROWS;
    let spread = most_tiles_per_sm(problem.work()) * u64::from(n_sms);
    fills_no_default_tile || pack_gqa_log2(problem, ROWS) > 0 || n_tiles(problem, 0, ROWS) <= spread
}

/// Rows of a grouped tile.
const GROUPED_ROWS: u64 = 128;

/// Whether to prefer grouped tiles, if compact ones are preferred to default ones: if few queries of a group make fewer of them.
pub fn prefers_grouped(problem: &Problem, device: &DeviceInfo) -> bool {
    let tiles = |rows| n_tiles(problem, pack_gqa_log2(problem, rows), rows);
    let keys = (problem.batch() as u64)
        .saturating_mul(problem.heads_k() as u64)
        .saturating_mul(problem.seqlen_k() as u64);
    let key_bytes = problem.kv_columns() as u64 * problem.dtype_k().size_bytes() as u64;
    let bytes_per_sm = device.thresholds.grouped_bytes_per_sm;
    problem.seqlen_q() as u64 <= ROWS
        && pack_gqa_log2(problem, GROUPED_ROWS) > 0
        && tiles(GROUPED_ROWS) < tiles(ROWS)
        && keys.saturating_mul(key_bytes) >= bytes_per_sm.saturating_mul(device.n_sms.into())
}

/// How many heads of a group share a tile of this many rows, as an exponent of 2: the smallest number that makes the fewest tiles, if that is few
/// enough. A box of 64 rows has one query of each at least.
pub fn pack_gqa_log2(problem: &Problem, rows: u64) -> u32 {
    // An expression knows the head of a tile, not of each of its rows; so does dropout.
    if problem.edit_parts().is_some() || problem.dropout().is_some() {
        return 0;
    }
    let most = (problem.group_size() as u64)
        .trailing_zeros()
        .min(MOST_PACKED_LOG2);
    let (packed, tiles) = (0..=most)
        .map(|log2| (log2, n_tiles(problem, log2, rows)))
        .min_by_key(|&(_, tiles)| tiles)
        .unwrap_or_default();
    let alone = n_tiles(problem, 0, rows);
    let pays = alone.saturating_mul(PACKING_PAYS.1) >= tiles.saturating_mul(PACKING_PAYS.0);
    if pays { packed } else { 0 }
}

/// Tiles of this many rows of all heads, `2^pack_gqa_log2` of which share each.
fn n_tiles(problem: &Problem, pack_gqa_log2: u32, rows: u64) -> u64 {
    (problem.batch() as u64)
        .saturating_mul(problem.heads_q() as u64 >> pack_gqa_log2)
        .saturating_mul((problem.seqlen_q() as u64).div_ceil(rows >> pack_gqa_log2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::problem::Mask;

    fn problem(batch: usize, (heads_q, heads_k): (usize, usize), seqlen_q: usize) -> Problem {
        Problem::builder(Dtype::Bf16)
            .batch(batch)
            .heads_q(heads_q)
            .heads_k(heads_k)
            .seqlen_q(seqlen_q)
            .seqlen_k(4096)
            .head_dim(128)
            .build()
            .unwrap()
    }

    fn of_sms(n_sms: u32) -> DeviceInfo {
        DeviceInfo {
            n_sms,
            ..DeviceInfo::h200()
        }
    }

    #[test]
    fn heads_share_a_tile_where_that_makes_fewer() {
        for (heads, seqlen_q, packed) in [
            ((32, 8), 1, 4),
            ((64, 1), 1, 64),
            ((256, 1), 1, 64),
            ((32, 8), 5, 4),
            ((64, 1), 16, 4),
            ((24, 2), 1, 4),
            ((24, 8), 1, 1),
            ((8, 8), 1, 1),
            ((32, 8), 64, 1),
            ((64, 8), 65, 8),
            // Three tiles for two heads instead of four do not pay.
            ((16, 8), 65, 1),
            ((32, 8), 4096, 1),
        ] {
            let log2 = pack_gqa_log2(&problem(2, heads, seqlen_q), ROWS);
            assert_eq!(1 << log2, packed, "{heads:?} {seqlen_q}");
        }
    }

    #[test]
    fn compact_tiles_are_for_short_sequences_and_few_heads() {
        let of = |mask| move |problem: Problem| problem.to_builder().mask(mask).build().unwrap();
        for (problem, full, causal) in [
            (problem(100, (32, 32), 64), true, true),
            (problem(100, (32, 32), 65), false, false),
            (problem(100, (32, 8), 16), true, true),
            (problem(1, (16, 16), 512), true, true),
            (problem(1, (16, 16), 576), false, true),
            (problem(2, (16, 16), 512), false, true),
            (problem(2, (16, 16), 576), false, false),
        ] {
            let prefers = |mask| prefers_compact(&of(mask)(problem), 132);
            assert_eq!(
                (prefers(Mask::Full), prefers(Mask::Causal)),
                (full, causal),
                "{problem:?}"
            );
        }
    }

    #[test]
    fn grouped_tiles_are_for_more_rows_than_a_compact_one_has() {
        for (problem, n_sms, grouped) in [
            // 128 rows that read the same keys.
            (problem(8, (64, 8), 16), 132, true),
            (problem(2, (64, 8), 16), 132, false),
            (problem(2, (64, 8), 16), 33, true),
            // 64 rows are a compact tile.
            (problem(64, (32, 8), 16), 132, false),
            (problem(64, (64, 8), 1), 132, false),
            (problem(64, (32, 8), 17), 132, true),
            (problem(64, (128, 1), 1), 132, false),
            // Each head has keys of its own.
            (problem(64, (32, 32), 16), 132, false),
            (problem(64, (64, 8), 65), 132, false),
        ] {
            assert_eq!(
                prefers_grouped(&problem, &of_sms(n_sms)),
                grouped,
                "{problem:?}"
            );
        }
    }

    #[test]
    fn no_size_overflows() {
        let most = problem(usize::MAX, (usize::MAX - 1, 1), usize::MAX);
        assert_eq!(pack_gqa_log2(&most, ROWS), 0);
        assert!(!prefers_grouped(&most, &of_sms(u32::MAX)));
        assert!(!prefers_compact(&most, u32::MAX));
        let headless = most.to_builder().heads_k(0).build().unwrap();
        assert_eq!(pack_gqa_log2(&headless, ROWS), 0);
    }
}
