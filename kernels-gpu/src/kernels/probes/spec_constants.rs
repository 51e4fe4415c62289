//! The probe of specialisation constants.

use super::put_all;
use crate::ptx::spec;

pub(super) unsafe fn spec_constants(_: u64, output: u64) {
    let constants = [
        spec::right_bound(),
        spec::left_bound(),
        spec::lengths(),
        spec::head_splits(),
        spec::prefix(),
        spec::block_mask(),
        spec::split_kv(),
        spec::pages(),
        spec::score(),
        spec::score_gradient(),
        spec::edit_partial(),
        spec::sinks(),
        spec::dropout(),
        spec::pad_columns(),
        spec::full_precision(),
    ];
    put_all(output, 0, &constants.map(u32::from));
}
