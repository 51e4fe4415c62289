//! Problems for the compact tiles of flash2's forward pass: few queries, packed with the heads of their group.

use super::{Case, HALVES, lengths, short};
use crate::buffer::ALIGNED;
use crate::lengths::Room;

/// head_dims of the kernels, and some that they pad.
const HEAD_DIMS: [usize; 5] = [64, 128, 32, 96, 24];

/// As many rows of a KV head are few.
const DECODE_ROWS: usize = 32;

/// Whether flash2 takes compact tiles of the case's queries.
pub fn is_decode(case: &Case) -> bool {
    let sizes = case.sizes;
    let group = sizes.heads_q / sizes.heads_k.max(1);
    let packed = case
        .lengths
        .is_some_and(|lengths| matches!(lengths.q.room, Room::Packed { .. }));
    let few = sizes.seqlen_q * group <= DECODE_ROWS || case.split_kv.is_some();
    few && !packed && case.blocks.is_none()
}

/// Groups of many sizes, few queries, every kind of mask.
pub fn all() -> Vec<Case> {
    in_kernel_head_dims(short::all())
}

/// Sequences of lengths of their own, of which queries are padded; keys also packed, and behind padding on the left.
pub fn lengths() -> Vec<Case> {
    let in_used_rows = short::all().into_iter().map(lengths::in_used_rows);
    in_kernel_head_dims(in_used_rows.chain(lengths::all()).collect())
}

/// Keys divided into splits.
pub fn splits() -> Vec<Case> {
    in_kernel_head_dims(short::splits())
}

/// Those of few queries, with a head_dim that the kernels take.
fn in_kernel_head_dims(cases: Vec<Case>) -> Vec<Case> {
    let few = cases.into_iter().filter(is_decode);
    few.enumerate()
        .map(|(at, case)| {
            let mut case = Case {
                dtype: HALVES[at / 3 % 2],
                arrangement: ALIGNED[at % ALIGNED.len()],
                ..case
            };
            case.sizes.head_dim = HEAD_DIMS[at % HEAD_DIMS.len()];
            case.sizes.head_dim_v = case.sizes.head_dim;
            case
        })
        .collect()
}
