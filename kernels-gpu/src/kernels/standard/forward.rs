//! The two products of the forward pass: the scores, and the output.

use super::product::{AcrossDepth, AlongDepth, Operand, Part, product, store, store_f32};
use super::sequence::Sequence;
use super::weights::{Head, scores_of_head, scores_row_bytes};
use crate::attention::score::ScoreTile;
use crate::kernels::common::score_mod::Given;
use crate::params::StandardParams;
use crate::ptx::spec;
use crate::tile::element::Element;

/// S = Q Kᵀ · scale; −∞ where the mask hides the key, and in the padding columns.
///
/// # Safety
/// The launch is as the variant's tile config says; tensors and workspace are as [`StandardParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn scores<E: Element>(p: &StandardParams) {
    let shape = &p.shape;
    let part = Part::of_block(shape.seqlen_q, shape.seqlen_k);
    let head = Head::new(part.head, shape.heads_q);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_q(), sequence.seqlen_k()) {
            return;
        }
        let q = Operand::single(sequence.queries::<E>(p, &p.q, head.head_idx));
        let k = Operand::single(sequence.keys::<E>(p, &p.k, head.kv_head_idx(shape)));
        let mut s = product::<E, AlongDepth, AlongDepth>(part, q, k, shape.head_dim, 1, |_| false);
        let mut unit = p.scale.scale;
        if spec::score() {
            let (tile, column) = scores_of_part(p, part, head, &sequence);
            Given::new(&p.score, &p.scale).edit(tile, column, &mut s);
            unit = p.score.unit;
        }
        let base = scores_of_head(p, part.head);
        // The part lies in one block of the mask's map: see `BLOCK_MULTIPLE`.
        let map = sequence.map_row(p, head.head_idx, part.row);
        let visible = map.visible(sequence.band(p), part.col);
        store_f32(
            part,
            base,
            sequence.seqlen_q(),
            scores_row_bytes(p),
            &s,
            |row, col, s| {
                if visible.keep(row, col) {
                    s * unit
                } else {
                    f32::NEG_INFINITY
                }
            },
        );
    }
}

/// Where a thread's scores of a part lie: the tile of its first fragment, and its first column.
#[inline(always)]
pub(in crate::kernels) fn scores_of_part(
    p: &StandardParams,
    part: Part,
    head: Head,
    sequence: &Sequence,
) -> (ScoreTile, u32) {
    let (row, column) = part.of_thread();
    let seqlens = [sequence.seqlen_q(), sequence.seqlen_k()];
    let Head {
        batch_idx,
        head_idx,
    } = head;
    let tile = ScoreTile::new(batch_idx, head_idx, p.shape.group_size, seqlens, row);
    (tile, column)
}

/// O = P V.
///
/// # Safety
/// As [`scores`]; the softmax ran before on the stream.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn output<E: Element>(p: &StandardParams) {
    let shape = &p.shape;
    let part = Part::of_block(shape.seqlen_q, shape.head_dim_v);
    let head = Head::new(part.head, shape.heads_q);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_q(), shape.head_dim_v) {
            return;
        }
        let weights = Operand::single(sequence.weights(p, part.head));
        let v = Operand::single(sequence.values::<E>(p, &p.v, head.kv_head_idx(shape)));
        let map = sequence.map_row(p, head.head_idx, part.row);
        let n_keys = sequence.seqlen_k();
        let o = product::<E, AlongDepth, AcrossDepth>(part, weights, v, n_keys, 1, |key| {
            map.hides(key)
        });
        store::<E>(part, sequence.outputs::<E>(p, &p.o, head.head_idx), &o);
    }
}
