//! Masking panels of scores: −∞ where a row does not see a key.

use std::ops::Range;

use super::buffer::Panel;
use super::sizes::Sizes;

/// Scores with the rows of q from `first_row` on in the lanes, and key `keys.start + i` in row `i`.
pub(super) fn hide_keys_from_lanes(
    sizes: &Sizes,
    s: &mut Panel,
    first_row: usize,
    keys: Range<usize>,
) {
    let rows = first_row..first_row + s.lanes();
    let last_row = (rows.end - 1).min(sizes.rows_per_group() - 1);
    let seen_by_all = sizes.first_key(last_row)..sizes.end_key(first_row);
    for key in keys.clone().filter(|key| !seen_by_all.contains(key)) {
        let lane = |row: usize| row.clamp(rows.start, rows.end) - rows.start;
        let (begin, end) = (lane(sizes.first_row(key)), lane(sizes.end_row(key)));
        let scores = s.row_mut(key - keys.start);
        scores[..begin].fill(f32::NEG_INFINITY);
        scores[end..].fill(f32::NEG_INFINITY);
    }
}

/// Scores with the keys from `first_key` on in the lanes, and row `rows.start + i` of q in row `i`.
pub(super) fn hide_lanes_from_rows(
    sizes: &Sizes,
    s: &mut Panel,
    first_key: usize,
    rows: Range<usize>,
) {
    let keys = first_key..first_key + s.lanes();
    let last_key = (keys.end - 1).min(sizes.seqlen_k - 1);
    let seeing_all = sizes.first_row(last_key)..sizes.end_row(first_key);
    for row in rows.clone().filter(|row| !seeing_all.contains(row)) {
        let lane = |key: usize| key.clamp(keys.start, keys.end) - keys.start;
        let (begin, end) = (lane(sizes.first_key(row)), lane(sizes.end_key(row)));
        let scores = s.row_mut(row - rows.start);
        scores[..begin].fill(f32::NEG_INFINITY);
        scores[end..].fill(f32::NEG_INFINITY);
    }
}
