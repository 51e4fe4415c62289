//! Gradient of a tensor that a score reads at its own place: a bias `[batch, heads, q, k]`, or one that all batch entries or heads share.
//!
//! Of the edited score f(s, t) the gradient is `P ∘ (dP − Δ)`; of the element t of the tensor, that times ∂f/∂t, which the launch's edit has for
//! its derivative:
//!
//! ```text
//! for each batch entry and head that read it:
//!     S = Q Kᵀ, edited        W = exp(S − L) ∘ ∂f/∂t        dP = dO Vᵀ        dT ← dT + W ∘ (dP − Δ)
//! ```
//!
//! Where weights are dropped, so is dP, as in every backward pass. A block computes 128 × 128 elements with the [`product`] of `standard`, and adds in the order of batch entries and heads. So the sum is the same every
//! time, and nothing else of this size lies in memory.

use crate::attention::divide;
use crate::attention::mask::Band;
use crate::attention::score::ScoreRows;
use crate::config;
use crate::kernels::common::dropout::divide_by_kept;
use crate::kernels::common::score_mod::Given;
use crate::kernels::merge::partial::lse_log2;
use crate::kernels::standard::backward::{dropped_of, of_rows};
use crate::kernels::standard::forward::scores_of_part;
use crate::kernels::standard::product::{AlongDepth, Operand, Part, Product, product};
use crate::kernels::standard::sequence::{Sequence, value_in_workspace};
use crate::kernels::standard::weights::Head;
use crate::params::{GRADIENT_BF16, GRADIENT_F32, StandardParams, TensorGradientParams};
use crate::ptx::math::{ex2_approx, fma};
use crate::ptx::{barrier, global, score, spec};
use crate::tile::element::{Bf16, Element, F16};
use crate::tile::products::Products;
use crate::tile::register::Accumulator;

const _: () = assert!(config::tensor_gradient().threads == config::product().threads);
const _: () = assert!(config::tensor_gradient().shared_bytes == config::product().shared_bytes);

/// 128 × 128 elements of the gradient: see the module's documentation.
///
/// # Safety
/// The launch is as [`config::tensor_gradient`] says, with a block for each such part of every matrix of the gradient; tensors are as
/// [`TensorGradientParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn tensor_gradient<E: Products>(p: &TensorGradientParams) {
    let shape = &p.pass.shape;
    let part = Part::of_block(shape.seqlen_q, shape.seqlen_k);
    let matrix = Head::new(part.head, p.heads);
    let (mut batch_idx, batch_end) = if p.batches == shape.batch {
        (matrix.batch_idx, matrix.batch_idx + 1)
    } else {
        (0, shape.batch)
    };
    let heads = divide(shape.heads_q, p.heads);
    let first_head = matrix.head_idx * heads;
    let mut sum = Product::zero();
    // SAFETY: this function's contract; what is skipped depends on the block alone.
    unsafe {
        while batch_idx < batch_end {
            let sequence = Sequence::of(&p.pass, batch_idx);
            if !part.is_outside(sequence.seqlen_q(), sequence.seqlen_k()) {
                let mut head_idx = first_head;
                while head_idx < first_head + heads {
                    let head = Head {
                        batch_idx,
                        head_idx,
                    };
                    accumulate::<E>(&p.pass, part, &sequence, head, &mut sum);
                    head_idx += 1;
                }
            }
            batch_idx += 1;
        }
        store(p, part, matrix, &sum);
    }
}

/// dT ← dT + W ∘ (dP − Δ) of one head.
///
/// # Safety
/// As [`tensor_gradient`]; all threads call with the same arguments but for the sum.
#[inline(always)]
unsafe fn accumulate<E: Products>(
    p: &StandardParams,
    part: Part,
    sequence: &Sequence,
    head: Head,
    sum: &mut Product,
) {
    // SAFETY: this function's contract; a barrier stands between the last use of the stages and their refill.
    unsafe {
        let map = sequence.map_row(p, head.head_idx, part.row);
        let band = sequence.band(p);
        let visible = map.visible(band, part.col);
        if visible.is_hidden() || !visible.is_full() && hides_part(part, &band) {
            return;
        }
        let kv_head_idx = head.kv_head_idx(&p.shape);
        let q = Operand::single(sequence.queries::<E>(p, &p.q, head.head_idx));
        let k = Operand::single(sequence.keys::<E>(p, &p.k, kv_head_idx));
        barrier::barrier_sync_all();
        let mut weights =
            product::<E, AlongDepth, AlongDepth>(part, q, k, p.shape.head_dim, 1, |_| false);
        let (tile, column) = scores_of_part(p, part, head, sequence);
        for m in 0..Product::M {
            let tile = tile.below(m as u32 * 16);
            Given::new(&p.score, &p.scale).begin(ScoreRows::Queries, tile);
            score::score_block(column);
            // Rows that see no key have +∞, so they have no weights.
            let lse_log2 = of_rows(sequence, tile.rows, f32::INFINITY, |row| {
                lse_log2(global::ld_global_f32(sequence.value(p, p.lse, head, row)))
            });
            for n in 0..Product::N {
                let s = weights.fragment_mut(m, n);
                let derivatives = score::score_gradient(s, n);
                for idx in 0..4 {
                    let col = column + n as u32 * 8 + idx as u32 % 2;
                    let exponent = fma(s[idx], p.scale.scale_log2, -lse_log2[idx / 2]);
                    let row = tile.rows[idx / 2];
                    // Behind a sequence's end the expression may have read anything.
                    let is_inside = !spec::lengths() || row < sequence.seqlen_q();
                    s[idx] = if is_inside && visible.keep(row, col) {
                        ex2_approx(exponent) * derivatives[idx]
                    } else {
                        0.0
                    };
                }
            }
        }
        let d_o = Operand::single(sequence.outputs::<E>(p, &p.d_o, head.head_idx));
        let v = Operand::single(sequence.values::<E>(p, &p.v, kv_head_idx));
        barrier::barrier_sync_all();
        let mut d_p =
            product::<E, AlongDepth, AlongDepth>(part, d_o, v, p.shape.head_dim_v, 1, |_| false);
        let number = head.number(p.shape.heads_q);
        if spec::dropout() {
            dropped_of(p, part, number).clear(&mut d_p);
            divide_by_kept(&p.dropout, &mut d_p);
        }
        for m in 0..Product::M {
            let tile = tile.below(m as u32 * 16);
            let delta = of_rows(sequence, tile.rows, 0.0, |row| {
                global::ld_global_f32(value_in_workspace(p, p.delta, number, row))
            });
            for n in 0..Product::N {
                let (weight, d_p) = (weights.fragment(m, n), d_p.fragment(m, n));
                let sum = sum.fragment_mut(m, n);
                for idx in 0..4 {
                    // Where nothing is seen dP may be anything.
                    if weight[idx] != 0.0 {
                        sum[idx] = fma(weight[idx], d_p[idx] - delta[idx / 2], sum[idx]);
                    }
                }
            }
        }
    }
}

/// Whether by the mask no query of the part sees a key of it.
#[inline(always)]
fn hides_part(part: Part, band: &Band) -> bool {
    let last = core::cmp::min(part.row + config::product().block_q, band.seqlen_q()) - 1;
    band.end_key(last) <= part.col
        || band.first_key(part.row) >= part.col + config::product().block_k
}

/// Writes the block's part of the gradient, each element rounded to its type.
///
/// # Safety
/// As [`tensor_gradient`].
#[inline(always)]
unsafe fn store(p: &TensorGradientParams, part: Part, matrix: Head, sum: &Product) {
    let first =
        u64::from(matrix.batch_idx) * p.batch_stride + u64::from(matrix.head_idx) * p.head_stride;
    let (first_row, first_col) = part.of_thread();
    for m in 0..Product::M {
        for n in 0..Product::N {
            let x = sum.fragment(m, n);
            for idx in 0..4 {
                let row = first_row + m as u32 * 16 + idx as u32 / 2 * 8;
                let col = first_col + n as u32 * 8 + idx as u32 % 2;
                if row < p.pass.shape.seqlen_q && col < p.pass.shape.seqlen_k {
                    let element = first + u64::from(row) * p.q_stride + u64::from(col) * p.k_stride;
                    // SAFETY: the gradient has this element.
                    unsafe { store_element(p, element, x[idx]) };
                }
            }
        }
    }
}

/// # Safety
/// The gradient has the element.
#[inline(always)]
unsafe fn store_element(p: &TensorGradientParams, element: u64, x: f32) {
    // SAFETY: this function's contract.
    unsafe {
        if p.element == GRADIENT_F32 {
            global::st_global_f32(p.gradient + element * 4, x);
        } else {
            let bits = if p.element == GRADIENT_BF16 {
                Bf16::pack(x, x)
            } else {
                F16::pack(x, x)
            };
            global::st_global_u16(p.gradient + element * 2, bits as u16);
        }
    }
}
