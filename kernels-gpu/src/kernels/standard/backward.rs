//! The four products of the backward pass.

use super::forward::scores_of_part;
use super::product::{
    AcrossDepth, AlongDepth, Layout, Operand, Part, Positive, Product, product, store, store_f32,
};
use super::sequence::{Sequence, value_in_workspace};
use super::weights::{Head, scores_of_head, scores_row_bytes, weights_bytes};
use crate::attention::score::ScoreRows;
use crate::kernels::common::dropout::{Dropped, divide_by_kept, head_of};
use crate::kernels::common::score_mod::Given;
use crate::params::StandardParams;
use crate::ptx::{barrier, global, score, spec};
use crate::tile::element::Element;
use crate::tile::global::GlobalMatrix;
use crate::tile::register::Accumulator;

/// dP = dO Vᵀ, over S; 0 where weights are dropped, and divided by the share that is kept.
///
/// # Safety
/// The launch is as the variant's tile config says; tensors and workspace are as [`StandardParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
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
        let d_o = Operand::single(sequence.outputs::<E>(p, &p.d_o, head.head_idx));
        let v = Operand::single(sequence.values::<E>(p, &p.v, head.kv_head_idx(shape)));
        let mut d_p =
            product::<E, AlongDepth, AlongDepth>(part, d_o, v, shape.head_dim_v, 1, |_| false);
        if spec::dropout() {
            dropped_of(p, part, part.head).clear(&mut d_p);
            divide_by_kept(&p.dropout, &mut d_p);
        }
        if spec::score_gradient() {
            times_derivatives::<E>(p, part, &sequence, &mut d_p);
        }
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

/// Which of the warp's weights in a part are dropped, of a head that is counted through the batch.
///
/// # Safety
/// As [`d_weights`].
#[inline(always)]
pub(in crate::kernels) unsafe fn dropped_of(
    p: &StandardParams,
    part: Part,
    head: u32,
) -> Dropped<'_> {
    let (first_row, first_column) = part.of_warp();
    Dropped {
        p: &p.dropout,
        // SAFETY: the kernel's contract.
        head: unsafe { head_of(&p.dropout, head) },
        rows: ScoreRows::Queries,
        first_row,
        first_column,
    }
}

/// dP ← Δ + (dP − Δ) ∘ f′(S), of the scores as they are before an expression f edits them: dS = P ∘ (dP − Δ) is then the gradient of these. Δ
/// where f′ is 0, as in a row's hidden keys, whatever dP is there.
#[inline(always)]
unsafe fn times_derivatives<E: Element>(
    p: &StandardParams,
    part: Part,
    sequence: &Sequence,
    d_p: &mut Product,
) {
    let head = Head::new(part.head, p.shape.heads_q);
    // SAFETY: as `d_weights`; the barrier stands between the last use of the stages and their refill. Δ has been computed.
    unsafe {
        let q = Operand::single(sequence.queries::<E>(p, &p.q, head.head_idx));
        let k = Operand::single(sequence.keys::<E>(p, &p.k, head.kv_head_idx(&p.shape)));
        barrier::barrier_sync_all();
        let mut s =
            product::<E, AlongDepth, AlongDepth>(part, q, k, p.shape.head_dim, 1, |_| false);
        let (tile, column) = scores_of_part(p, part, head, sequence);
        for m in 0..Product::M {
            let tile = tile.below(m as u32 * 16);
            Given::new(&p.score, &p.scale).begin(ScoreRows::Queries, tile);
            score::score_block(column);
            let delta = of_rows(sequence, tile.rows, 0.0, |row| {
                global::ld_global_f32(value_in_workspace(p, p.delta, part.head, row))
            });
            for n in 0..Product::N {
                let derivatives = score::score_gradient(s.fragment_mut(m, n), n);
                let d_p = d_p.fragment_mut(m, n);
                for idx in 0..4 {
                    let delta = delta[idx / 2];
                    d_p[idx] = if derivatives[idx] == 0.0 {
                        delta
                    } else {
                        (d_p[idx] - delta) * derivatives[idx] + delta
                    };
                }
            }
        }
    }
}

/// The values of two rows; `other` for a row that the sequence does not have.
#[inline(always)]
pub(in crate::kernels) fn of_rows(
    sequence: &Sequence,
    rows: [u32; 2],
    other: f32,
    of: impl Fn(u32) -> f32,
) -> [f32; 2] {
    let mut values = [other; 2];
    for half in 0..2 {
        if rows[half] < sequence.seqlen_q() {
            values[half] = of(rows[half]);
        }
    }
    values
}

/// dQ = dS K · scale.
///
/// # Safety
/// As [`d_weights`]; the weights are dS by now.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
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
        let k = Operand::single(sequence.keys::<E>(p, &p.k, head.kv_head_idx(shape)));
        let map = sequence.map_row(p, head.head_idx, part.row);
        let n_keys = sequence.seqlen_k();
        let mut d_q =
            product::<E, AlongDepth, AcrossDepth>(part, d_s, k, n_keys, 1, |key| map.hides(key));
        d_q.for_each(|_, _, x| *x *= p.scale.scale);
        store::<E>(part, sequence.queries::<E>(p, &p.d_q, head.head_idx), &d_q);
    }
}

/// dV = Pᵀ dO, summed over the group of query heads. P without those that are dropped, divided by the share that is kept.
///
/// # Safety
/// As [`d_weights`]; the weights are P.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn d_v<E: Element>(p: &StandardParams) {
    let columns = p.shape.head_dim_v;
    let part = Part::of_block(p.shape.seqlen_k, columns);
    let head = Head::new(part.head, p.shape.heads_k);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_k(), columns) {
            return;
        }
        let d_o = |head_idx| sequence.outputs::<E>(p, &p.d_o, head_idx);
        let d_v = if spec::dropout() {
            let mut d_v =
                weights_transposed_times::<E, Positive<AcrossDepth>>(p, part, &sequence, d_o);
            divide_by_kept(&p.dropout, &mut d_v);
            d_v
        } else {
            weights_transposed_times::<E, AcrossDepth>(p, part, &sequence, d_o)
        };
        store::<E>(part, sequence.values::<E>(p, &p.d_v, head.head_idx), &d_v);
    }
}

/// dK = dSᵀ Q · scale, summed over the group of query heads.
///
/// # Safety
/// As [`d_weights`]; the weights are dS by now.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn d_k<E: Element>(p: &StandardParams) {
    let part = Part::of_block(p.shape.seqlen_k, p.shape.head_dim);
    let head = Head::new(part.head, p.shape.heads_k);
    // SAFETY: this function's contract.
    unsafe {
        let sequence = Sequence::of(p, head.batch_idx);
        if part.is_outside(sequence.seqlen_k(), p.shape.head_dim) {
            return;
        }
        let q = |head_idx| sequence.queries::<E>(p, &p.q, head_idx);
        let mut d_k = weights_transposed_times::<E, AcrossDepth>(p, part, &sequence, q);
        d_k.for_each(|_, _, x| *x *= p.scale.scale);
        store::<E>(part, sequence.keys::<E>(p, &p.d_k, head.head_idx), &d_k);
    }
}

/// The weights' transpose times rows of each head of a tensor, those of its queries, summed over the query heads that share the part's key
/// head, in their order.
#[inline(always)]
unsafe fn weights_transposed_times<E: Element, A: Layout<E>>(
    p: &StandardParams,
    part: Part,
    sequence: &Sequence,
    rows_of_head: impl Fn(u32) -> GlobalMatrix,
) -> Product {
    let shape = &p.shape;
    let head = Head::new(part.head, shape.heads_k).first_of_group(shape);
    let weights = Operand {
        matrix: sequence.weights(p, head.batch_idx * shape.heads_q + head.head_idx),
        head_bytes: weights_bytes(p),
    };
    let matrix = rows_of_head(head.head_idx);
    let tensor = Operand {
        matrix,
        head_bytes: rows_of_head(head.head_idx + 1)
            .rows
            .base
            .wrapping_sub(matrix.rows.base),
    };
    // SAFETY: the kernel's contract; the heads of a group follow each other.
    unsafe {
        product::<E, A, AcrossDepth>(
            part,
            weights,
            tensor,
            sequence.seqlen_q(),
            shape.group_size,
            |_| false,
        )
    }
}
