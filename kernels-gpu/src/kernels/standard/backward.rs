//! The four products of the backward pass.

use super::product::{AcrossDepth, AlongDepth, Operand, Part, Product, product, store, store_f32};
use super::sequence::Sequence;
use super::weights::{Head, scores_of_head, scores_row_bytes, weights_bytes};
use crate::params::{StandardParams, TensorView};
use crate::tile::element::Element;
use crate::tile::register::Accumulator;

/// dP = dO Vᵀ, over S.
///
/// # Safety
/// The launch is as the row's footprint says; tensors and workspace are as [`StandardParams`] says.
#[inline(always)]
pub unsafe fn d_weights<E: Element>(p: &StandardParams) {
    let shape = &p.shape;
    let part = Part::of_block(shape.seqlen_q, shape.seqlen_k);
    let head = Head::new(part.head, shape.heads_q);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_q(), sequence.seqlen_k()) {
            return;
        }
        let d_o = Operand::single(sequence.queries(p, &p.d_o, head.head_idx));
        let v = Operand::single(sequence.keys(p, &p.v, head.kv_head_idx(shape)));
        let d_p = product::<E, AlongDepth, AlongDepth>(part, d_o, v, shape.head_dim, 1, |_| false);
        let base = scores_of_head(p, part.head);
        store_f32(
            part,
            base,
            sequence.seqlen_q(),
            scores_row_bytes(p),
            &d_p,
            |_, _, x| x,
        );
    }
}

/// dQ = dS K · scale.
///
/// # Safety
/// As [`d_weights`]; the weights are dS by now.
#[inline(always)]
pub unsafe fn d_q<E: Element>(p: &StandardParams) {
    let shape = &p.shape;
    let part = Part::of_block(shape.seqlen_q, shape.head_dim);
    let head = Head::new(part.head, shape.heads_q);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_q(), shape.head_dim) {
            return;
        }
        let d_s = Operand::single(sequence.weights(p, part.head));
        let k = Operand::single(sequence.keys(p, &p.k, head.kv_head_idx(shape)));
        let map = sequence.map_row(p, head.head_idx, part.row);
        let n_keys = sequence.seqlen_k();
        let mut d_q =
            product::<E, AlongDepth, AcrossDepth>(part, d_s, k, n_keys, 1, |key| map.hides(key));
        d_q.for_each(|_, _, x| *x *= p.scale.scale);
        store::<E>(part, sequence.queries(p, &p.d_q, head.head_idx), &d_q);
    }
}

/// dV = Pᵀ dO, summed over the group of query heads.
///
/// # Safety
/// As [`d_weights`]; the weights are P.
#[inline(always)]
pub unsafe fn d_v<E: Element>(p: &StandardParams) {
    let part = Part::of_block(p.shape.seqlen_k, p.shape.head_dim);
    let head = Head::new(part.head, p.shape.heads_k);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_k(), p.shape.head_dim) {
            return;
        }
        let d_v = weights_transposed_times::<E>(p, part, sequence, &p.d_o);
        store::<E>(part, sequence.keys(p, &p.d_v, head.head_idx), &d_v);
    }
}

/// dK = dSᵀ Q · scale, summed over the group of query heads.
///
/// # Safety
/// As [`d_weights`]; the weights are dS by now.
#[inline(always)]
pub unsafe fn d_k<E: Element>(p: &StandardParams) {
    let part = Part::of_block(p.shape.seqlen_k, p.shape.head_dim);
    let head = Head::new(part.head, p.shape.heads_k);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_k(), p.shape.head_dim) {
            return;
        }
        let mut d_k = weights_transposed_times::<E>(p, part, sequence, &p.q);
        d_k.for_each(|_, _, x| *x *= p.scale.scale);
        store::<E>(part, sequence.keys(p, &p.d_k, head.head_idx), &d_k);
    }
}

/// The weights' transpose times a tensor of the rows of q, summed over the query heads that share the part's key
/// head, in their order.
#[inline(always)]
unsafe fn weights_transposed_times<E: Element>(
    p: &StandardParams,
    part: Part,
    sequence: Sequence,
    tensor: &TensorView,
) -> Product {
    let shape = &p.shape;
    let head = Head::new(part.head, shape.heads_k).first_of_group(shape);
    let weights = Operand {
        matrix: sequence.weights(p, head.batch_idx * shape.heads_q + head.head_idx),
        head_bytes: weights_bytes(p),
    };
    let tensor = Operand {
        matrix: sequence.queries(p, tensor, head.head_idx),
        head_bytes: (tensor.head_stride * 2) as u64,
    };
    // SAFETY: the kernel's contract; the heads of a group follow each other.
    unsafe {
        product::<E, AcrossDepth, AcrossDepth>(
            part,
            weights,
            tensor,
            sequence.seqlen_q(),
            shape.group_size,
            |_| false,
        )
    }
}
