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
    let visible_to_all = sizes.n_visible_keys(first_row).clamp(keys.start, keys.end);
    for key in visible_to_all..keys.end {
        let blind = sizes
            .first_row_that_sees(key)
            .saturating_sub(first_row)
            .min(s.lanes());
        s.row_mut(key - keys.start)[..blind].fill(f32::NEG_INFINITY);
    }
}

/// Scores with the keys from `first_key` on in the lanes, and row `rows.start + i` of q in row `i`.
pub(super) fn hide_lanes_from_rows(
    sizes: &Sizes,
    s: &mut Panel,
    first_key: usize,
    rows: Range<usize>,
) {
    let last_key = first_key + s.lanes() - 1;
    let seeing_all = sizes
        .first_row_that_sees(last_key)
        .clamp(rows.start, rows.end);
    for row in rows.start..seeing_all {
        let visible = sizes
            .n_visible_keys(row)
            .saturating_sub(first_key)
            .min(s.lanes());
        s.row_mut(row - rows.start)[visible..].fill(f32::NEG_INFINITY);
    }
}
