//! The four products of the backward pass.

use super::product::{AcrossDepth, AlongDepth, Operand, Part, Product, product, store, store_f32};
use super::weights::{
    Head, matrix_of_head, scores_of_head, scores_row_bytes, weights_bytes, weights_of_head,
};
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
    let d_o = Operand::single(matrix_of_head(shape, &p.d_o, head, shape.seqlen_q));
    let v = Operand::single(matrix_of_head(
        shape,
        &p.v,
        head.kv_head(shape),
        shape.seqlen_k,
    ));
    // SAFETY: this function's contract.
    unsafe {
        let d_p = product::<E, AlongDepth, AlongDepth>(part, d_o, v, shape.head_dim, 1);
        let base = scores_of_head(p, part.head);
        store_f32(
            part,
            base,
            shape.seqlen_q,
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
    let d_s = Operand::single(weights_of_head(p, part.head));
    let k = Operand::single(matrix_of_head(
        shape,
        &p.k,
        head.kv_head(shape),
        shape.seqlen_k,
    ));
    // SAFETY: this function's contract.
    unsafe {
        let mut d_q = product::<E, AlongDepth, AcrossDepth>(part, d_s, k, shape.seqlen_k, 1);
        d_q.for_each(|_, _, x| *x *= p.scale.scale);
        store::<E>(
            part,
            matrix_of_head(shape, &p.d_q, head, shape.seqlen_q),
            &d_q,
        );
    }
}

/// dV = Pᵀ dO, summed over the group of query heads.
///
/// # Safety
/// As [`d_weights`]; the weights are P.
#[inline(always)]
pub unsafe fn d_v<E: Element>(p: &StandardParams) {
    let part = Part::of_block(p.shape.seqlen_k, p.shape.head_dim);
    // SAFETY: this function's contract.
    unsafe {
        let d_v = weights_transposed_times::<E>(p, part, &p.d_o);
        store_key_gradient::<E>(p, part, &p.d_v, &d_v);
    }
}

/// dK = dSᵀ Q · scale, summed over the group of query heads.
///
/// # Safety
/// As [`d_weights`]; the weights are dS by now.
#[inline(always)]
pub unsafe fn d_k<E: Element>(p: &StandardParams) {
    let part = Part::of_block(p.shape.seqlen_k, p.shape.head_dim);
    // SAFETY: this function's contract.
    unsafe {
        let mut d_k = weights_transposed_times::<E>(p, part, &p.q);
        d_k.for_each(|_, _, x| *x *= p.scale.scale);
        store_key_gradient::<E>(p, part, &p.d_k, &d_k);
    }
}

/// The weights' transpose times a tensor of `seqlen_q` rows, summed over the query heads that share the part's key
/// head, in their order.
#[inline(always)]
unsafe fn weights_transposed_times<E: Element>(
    p: &StandardParams,
    part: Part,
    tensor: &TensorView,
) -> Product {
    let shape = &p.shape;
    let head = Head::new(part.head, shape.heads_k).first_of_group(shape);
    let weights = Operand {
        matrix: weights_of_head(p, head.batch_idx * shape.heads_q + head.head_idx),
        head_bytes: weights_bytes(p),
    };
    let tensor = Operand {
        matrix: matrix_of_head(shape, tensor, head, shape.seqlen_q),
        head_bytes: (tensor.head_stride * 2) as u64,
    };
    // SAFETY: the kernel's contract; the heads of a group follow each other.
    unsafe {
        product::<E, AcrossDepth, AcrossDepth>(
            part,
            weights,
            tensor,
            shape.seqlen_q,
            shape.group_size,
        )
    }
}

/// Writes the part of dK or dV.
#[inline(always)]
unsafe fn store_key_gradient<E: Element>(
    p: &StandardParams,
    part: Part,
    tensor: &TensorView,
    c: &Product,
) {
    let head = Head::new(part.head, p.shape.heads_k);
    let target = matrix_of_head(&p.shape, tensor, head, p.shape.seqlen_k);
    // SAFETY: the kernel's contract.
    unsafe { store::<E>(part, target, c) }
}
