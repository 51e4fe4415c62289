//! The two products of the forward pass: the scores, and the output.

use super::product::{AcrossDepth, AlongDepth, Operand, Part, product, store, store_f32};
use super::weights::{Head, matrix_of_head, scores_of_head, scores_row_bytes, weights_of_head};
use crate::kernels::band;
use crate::params::StandardParams;
use crate::tile::element::Element;

/// S = Q Kᵀ · scale; −∞ where the mask hides the key, and in the padding columns.
///
/// # Safety
/// The launch is as the row's footprint says; tensors and workspace are as [`StandardParams`] says.
#[inline(always)]
pub unsafe fn scores<E: Element>(p: &StandardParams) {
    let shape = &p.shape;
    let part = Part::of_block(shape.seqlen_q, shape.seqlen_k);
    let head = Head::new(part.head, shape.heads_q);
    let q = Operand::single(matrix_of_head(shape, &p.q, head, shape.seqlen_q));
    let k = Operand::single(matrix_of_head(
        shape,
        &p.k,
        head.kv_head(shape),
        shape.seqlen_k,
    ));
    // SAFETY: this function's contract.
    unsafe {
        let s = product::<E, AlongDepth, AlongDepth>(part, q, k, shape.head_dim, 1);
        let base = scores_of_head(p, part.head);
        let band = band(shape, p.window);
        store_f32(
            part,
            base,
            shape.seqlen_q,
            scores_row_bytes(p),
            &s,
            |row, col, s| {
                if band.keep(row, col) {
                    s * p.scale.scale
                } else {
                    f32::NEG_INFINITY
                }
            },
        );
    }
}

/// O = P V.
///
/// # Safety
/// As [`scores`]; the softmax ran before on the stream.
#[inline(always)]
pub unsafe fn output<E: Element>(p: &StandardParams) {
    let shape = &p.shape;
    let part = Part::of_block(shape.seqlen_q, shape.head_dim);
    let head = Head::new(part.head, shape.heads_q);
    let weights = Operand::single(weights_of_head(p, part.head));
    let v = Operand::single(matrix_of_head(
        shape,
        &p.v,
        head.kv_head(shape),
        shape.seqlen_k,
    ));
    // SAFETY: this function's contract.
    unsafe {
        let o = product::<E, AlongDepth, AcrossDepth>(part, weights, v, shape.seqlen_k, 1);
        store::<E>(part, matrix_of_head(shape, &p.o, head, shape.seqlen_q), &o);
    }
}
