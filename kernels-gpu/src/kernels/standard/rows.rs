//! The row-wise steps between the products: the softmax, Δ, and dS. One warp takes one row; a lane takes eight
//! columns at a time.

use core::f32::consts::{LN_2, LOG2_E};

use super::sequence::{Sequence, value_in_workspace};
use super::weights::{Head, scores_of_head, scores_row_bytes, weights_rows};
use crate::attention::divide;
use crate::attention::dropout::{Head as RandomHead, dropped, patch};
use crate::config;
use crate::kernels::common::dropout::head_of;
use crate::kernels::merge::partial::{lse_log2, sink_of, with_sink};
use crate::params::StandardParams;
use crate::ptx::math::{ex2_approx, lg2_approx, max, rcp_approx};
use crate::ptx::shuffle::shuffle_bfly_f32;
use crate::ptx::{global, spec, special};
use crate::tile::element::Element;
use crate::tile::products::Products;
use crate::tile::softmax::finite;

/// Rows of a block: one for each warp.
const ROWS: u32 = config::weight_rows().block_q;
/// Columns that a lane takes at a time.
const COLS: usize = 8;
/// Columns that a warp takes at a time.
const WARP_COLS: u32 = 32 * COLS as u32;

const _: () = assert!(ROWS * 32 == config::weight_rows().threads);

/// A row of the scores.
#[derive(Clone, Copy)]
struct Row {
    /// Which head, counted through the batch.
    head: u32,
    /// Which of its batch entry.
    head_idx: u32,
    /// Which query.
    q_idx: u32,
    sequence: Sequence,
}

impl Row {
    /// This warp's row; `None` beyond the last possible row.
    #[inline(always)]
    unsafe fn of_warp(p: &StandardParams) -> Option<Self> {
        let shape = &p.shape;
        let blocks = shape.seqlen_q.div_ceil(ROWS);
        let idx = special::block_idx_x();
        let head = divide(idx, blocks);
        let q_idx = (idx - head * blocks) * ROWS + special::thread_idx_x() / 32;
        if q_idx >= shape.seqlen_q {
            return None;
        }
        let Head {
            batch_idx,
            head_idx,
        } = Head::new(head, shape.heads_q);
        Some(Row {
            head,
            head_idx,
            q_idx,
            // SAFETY: the kernel's contract.
            sequence: unsafe { Sequence::of(p, batch_idx) },
        })
    }

    /// As [`Row::of_warp`]; `None` also beyond the sequence's end.
    #[inline(always)]
    unsafe fn of_sequence(p: &StandardParams) -> Option<Self> {
        // SAFETY: the kernel's contract.
        unsafe { Row::of_warp(p) }.filter(|row| !row.is_outside())
    }

    /// Whether it is beyond the sequence's end.
    #[inline(always)]
    fn is_outside(self) -> bool {
        spec::lengths() && self.q_idx >= self.sequence.seqlen_q()
    }

    /// Address of this row of the scores.
    #[inline(always)]
    fn scores(self, p: &StandardParams) -> u64 {
        scores_of_head(p, self.head) + u64::from(self.q_idx) * scores_row_bytes(p)
    }

    /// Address of this row of the weights.
    #[inline(always)]
    fn weights(self, p: &StandardParams) -> u64 {
        weights_rows(p, self.head).chunk(self.q_idx, 0)
    }

    /// Address of this row's value in an array that lies as q does.
    #[inline(always)]
    fn value(self, p: &StandardParams, base: u64) -> u64 {
        let head = Head::new(self.head, p.shape.heads_q);
        self.sequence.value(p, base, head, self.q_idx)
    }

    /// Address of this row's value in an array `f32 [batch, heads_q, seqlen_q]`.
    #[inline(always)]
    fn in_workspace(self, p: &StandardParams, base: u64) -> u64 {
        value_in_workspace(p, base, self.head, self.q_idx)
    }
}

/// P = exp(S − L) with L = log Σ exp S, where the sum has exp(sink), too, if heads have sinks; some are dropped, if the kernel drops weights; a row that sees no key has P = 0 and
/// L = −∞, or its sink. Beyond a sequence's last row, and its last key,
/// P = 0.
///
/// # Safety
/// The launch is as the variant's tile config says; tensors and workspace are as [`StandardParams`] says.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn softmax<E: Element>(p: &StandardParams) {
    // SAFETY: this function's contract.
    let Some(row) = (unsafe { Row::of_warp(p) }) else {
        return;
    };
    let (scores, weights) = (row.scores(p), row.weights(p));
    let padded_k = row.sequence.padded_k(p);
    // SAFETY: this function's contract; all lanes have the same row.
    unsafe {
        if row.is_outside() {
            clear_weights(p, weights, 0);
            return;
        }
        clear_weights(p, weights, padded_k);
    }
    let lane = special::lane_idx();
    let (mut m, mut l) = (f32::NEG_INFINITY, 0.0);
    // SAFETY: this function's contract: rows are `padded_k` long, a multiple of 8, and were written whole. The lanes
    // meet again behind the loop.
    unsafe {
        let mut col = u64::from(lane) * COLS as u64;
        while col < padded_k {
            let s = load_f32(scores + col * 4);
            let mut new = m;
            for s in &s {
                new = max(new, *s);
            }
            l *= exp(m - finite(new));
            for s in &s {
                l += exp(s - finite(new));
            }
            m = new;
            col += u64::from(WARP_COLS);
        }
        let reference = finite(warp_max(m));
        let sum = warp_sum(l * exp(m - reference));
        let mut inverse = if sum == 0.0 { 0.0 } else { rcp_approx(sum) };
        let mut lse = if sum == 0.0 {
            f32::NEG_INFINITY
        } else {
            reference + lg2_approx(sum) * LN_2
        };
        if spec::sinks() {
            let (with_sink, factor) = with_sink(lse, sink_of(p.sinks, row.head_idx));
            lse = with_sink;
            inverse *= factor;
        }

        let mut col = u64::from(lane) * COLS as u64;
        while col < padded_k {
            let mut s = load_f32(scores + col * 4);
            for s in &mut s {
                *s = exp(*s - reference) * inverse;
            }
            if spec::dropout() {
                let head = head_of(&p.dropout, row.head);
                drop_weights(p, head, row.q_idx, col as u32, &mut s);
            }
            global::st_global_x4(weights + col * 2, E::pack_chunk(s));
            col += u64::from(WARP_COLS);
        }
        if lane == 0 {
            global::st_global_f32(row.value(p, p.lse), lse);
        }
    }
}

/// Drops some of eight weights of a row, from a column on that is a multiple of 8: they are 0 and the others divided by the share that is kept, or
/// they have a minus.
#[inline(always)]
fn drop_weights(
    p: &StandardParams,
    head: RandomHead,
    query: u32,
    first_key: u32,
    weights: &mut [f32; COLS],
) {
    for pair in 0..COLS / 2 {
        let key = first_key + 2 * pair as u32;
        let [a, b, c, d] = head.words(patch(query), patch(key));
        let [even, odd] = match query % 2 {
            0 => [a, b],
            _ => [c, d],
        };
        let byte = query / 8 % 2 + 2 * (key / 8 % 2);
        for half in 0..2 {
            let word = if half == 0 { even } else { odd };
            let bits = dropped(word, p.dropout.low, p.dropout.high);
            let is_dropped = bits >> (8 * byte + 7) & 1 != 0;
            let weight = &mut weights[2 * pair + half];
            *weight = match (p.marks_dropped != 0, is_dropped) {
                (true, true) => -*weight,
                (true, false) => *weight,
                (false, true) => 0.0,
                (false, false) => *weight * p.dropout.inverse_keep,
            };
        }
    }
}

/// A row's weights ← 0 from this column on, where sequences have different lengths.
#[inline(always)]
unsafe fn clear_weights(p: &StandardParams, weights: u64, first: u64) {
    if !spec::lengths() {
        return;
    }
    let mut col = first + u64::from(special::lane_idx()) * COLS as u64;
    while col < p.padded_k {
        // SAFETY: the row is `padded_k` long.
        unsafe { global::st_global_x4(weights + col * 2, [0; 4]) };
        col += u64::from(WARP_COLS);
    }
}

/// Δ = rowsum(dO ∘ O) − dL: a lane takes a chunk of 16 bytes at a time. A row that sees no key has dL = 0, whatever the
/// caller says of it. For the gradients of sinks lse to base 2, too, in the same order.
///
/// # Safety
/// As [`softmax`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn delta<E: Products>(p: &StandardParams) {
    // SAFETY: this function's contract.
    let Some(row) = (unsafe { Row::of_warp(p) }) else {
        return;
    };
    let lane = special::lane_idx();
    if row.is_outside() {
        if spec::sinks() {
            // SAFETY: this function's contract.
            unsafe {
                let is_first = lane == 0;
                let at = |array| row.in_workspace(p, array);
                global::st_global_f32_if(at(p.lse_log2), f32::INFINITY, is_first);
                global::st_global_f32_if(at(p.delta), 0.0, is_first);
            }
        }
        return;
    }
    let o = row.sequence.outputs::<E>(p, &p.o, row.head_idx);
    let d_o = row.sequence.outputs::<E>(p, &p.d_o, row.head_idx);
    let mut sum = 0.0;
    // SAFETY: this function's contract; the lanes meet again behind the branch.
    unsafe {
        let mut chunk = lane;
        while chunk < o.chunks {
            let [o, d_o] = [o, d_o].map(|x| global::ld_global_x4(x.rows.chunk(row.q_idx, chunk)));
            sum += E::dot(o, d_o);
            chunk += 32;
        }
        let sum = warp_sum(sum);
        if lane == 0 {
            let lse = || global::ld_global_f32(row.value(p, p.lse));
            let d_lse = if p.d_lse == 0 || lse() == f32::NEG_INFINITY {
                0.0
            } else {
                global::ld_global_f32(row.value(p, p.d_lse))
            };
            global::st_global_f32(row.in_workspace(p, p.delta), sum - d_lse);
            if spec::sinks() {
                let lse_log2 = lse_log2(lse());
                global::st_global_f32(row.in_workspace(p, p.lse_log2), lse_log2);
            }
        }
    }
}

/// dS = P ∘ (dP − Δ), over P; 0 where the mask hides the key, whatever dP is there. A weight with a minus is one that has been dropped.
///
/// # Safety
/// As [`softmax`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn d_scores<E: Element>(p: &StandardParams) {
    // SAFETY: this function's contract.
    let Some(row) = (unsafe { Row::of_sequence(p) }) else {
        return;
    };
    let (d_weights, weights) = (row.scores(p), row.weights(p));
    let (band, padded_k) = (row.sequence.band(p), row.sequence.padded_k(p));
    let map = row.sequence.map_row(p, row.head_idx, row.q_idx);
    // SAFETY: as in `softmax`.
    unsafe {
        let delta = global::ld_global_f32(row.in_workspace(p, p.delta));
        let mut col = u64::from(special::lane_idx()) * COLS as u64;
        while col < padded_k {
            let d_p = load_f32(d_weights + col * 4);
            let mut x = E::unpack_chunk(global::ld_global_x4(weights + col * 2));
            if spec::dropout() {
                x = x.map(f32::abs);
            }
            let visible = map.visible(band, col as u32);
            for (i, (x, d_p)) in (0..).zip(x.iter_mut().zip(&d_p)) {
                *x = if visible.keep(row.q_idx, (col + i) as u32) {
                    *x * (d_p - delta)
                } else {
                    0.0
                };
            }
            global::st_global_x4(weights + col * 2, E::pack_chunk(x));
            col += u64::from(WARP_COLS);
        }
    }
}

/// eˣ.
#[inline(always)]
fn exp(x: f32) -> f32 {
    ex2_approx(x * LOG2_E)
}

/// Eight values of f32.
#[inline(always)]
unsafe fn load_f32(address: u64) -> [f32; COLS] {
    // SAFETY: the caller's row holds them.
    let (low, high) = unsafe {
        (
            global::ld_global_f32x4(address),
            global::ld_global_f32x4(address + 16),
        )
    };
    [
        low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
    ]
}

/// The maximum over the warp.
#[inline(always)]
unsafe fn warp_max(mut x: f32) -> f32 {
    for i in 0..5 {
        // SAFETY: warp-collective, as its callers know.
        x = max(x, unsafe { shuffle_bfly_f32(x, 1 << i) });
    }
    x
}

/// The sum over the warp.
#[inline(always)]
unsafe fn warp_sum(mut x: f32) -> f32 {
    for i in 0..5 {
        // SAFETY: warp-collective, as its callers know.
        x += unsafe { shuffle_bfly_f32(x, 1 << i) };
    }
    x
}
