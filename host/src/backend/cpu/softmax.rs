//! The online softmax over panels of scores with one row of attention per lane.

use pulp::{Simd, WithSimd};

use super::buffer::Panel;
use super::exp2::exp2;
use super::machine::{Machine, vectors};
use super::merge::Merged;

/// Running statistics of the rows in the lanes of one panel.
#[derive(Debug)]
pub(super) struct OnlineSoftmax {
    /// `softmax_scale · log₂ e`: exponentials are computed to base 2.
    scale_log2: f32,
    /// One row each: the largest score so far, unscaled; the sum of exponentials so far; the latest factor by which the earlier sums shrank.
    m: Panel,
    l: Panel,
    alpha: Panel,
}

impl OnlineSoftmax {
    /// Nothing seen yet.
    pub(super) fn new(softmax_scale: f32, lanes: usize) -> OnlineSoftmax {
        let mut softmax = OnlineSoftmax {
            scale_log2: scale_log2(softmax_scale),
            m: Panel::new(1, lanes),
            l: Panel::new(1, lanes),
            alpha: Panel::new(1, lanes),
        };
        softmax.reset(lanes);
        softmax
    }

    /// Bytes of the statistics of a panel.
    pub(super) fn n_bytes(lanes: usize) -> u64 {
        3 * Panel::n_bytes(1, lanes)
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self, lanes: usize) {
        for panel in [&mut self.m, &mut self.l, &mut self.alpha] {
            panel.set_lanes(lanes);
        }
        self.m.row_mut(0).fill(f32::NEG_INFINITY);
        self.l.row_mut(0).fill(0.0);
    }

    /// Adds `n_rows` rows of scores, −∞ where masked: m, l; S ← P. Returns α, by which O must shrink.
    pub(super) fn update(&mut self, machine: &Machine, s: &mut Panel, n_rows: usize) -> &[f32] {
        let lanes = s.lanes();
        machine.run(Update {
            lanes,
            scale_log2: self.scale_log2,
            s: &mut s.all_mut()[..n_rows * lanes],
            m: self.m.row_mut(0),
            l: self.l.row_mut(0),
            alpha: self.alpha.row_mut(0),
        });
        self.alpha.row(0)
    }

    /// O ← diag(l)⁻¹ O; `lse[lane]` = m · scale + ln l. A row that saw no key: O = 0, lse = −∞.
    pub(super) fn finish(&mut self, softmax_scale: f32, o: &mut Panel, lse: &mut [f32]) {
        let (m, l) = (self.m.row(0), self.l.row(0));
        for (lse, (m, l)) in lse.iter_mut().zip(m.iter().zip(l)) {
            *lse = if *l == 0.0 {
                f32::NEG_INFINITY
            } else {
                m * softmax_scale + l.ln()
            };
        }
        let inverse = self.alpha.row_mut(0);
        for (inverse, &l) in inverse.iter_mut().zip(l) {
            *inverse = if l == 0.0 { 0.0 } else { 1.0 / l };
        }
        scale_lanes(o, inverse);
    }

    /// O and lse of the lanes' rows ← those with a sink each, as if merged with a part whose O is 0 and whose lse is the sink.
    pub(super) fn add_sinks(
        &mut self,
        o: &mut Panel,
        lse: &mut [f32],
        sink_of_lane: impl Fn(usize) -> f32,
    ) {
        let factors = self.alpha.row_mut(0);
        for (lane, (lse, factor)) in lse.iter_mut().zip(&mut *factors).enumerate() {
            let merged = Merged::new(*lse, sink_of_lane(lane));
            (*lse, *factor) = (merged.lse, merged.weights[0]);
        }
        scale_lanes(o, factors);
    }
}

/// Each lane times its factor.
fn scale_lanes(panel: &mut Panel, factors: &[f32]) {
    let lanes = panel.lanes();
    for row in panel.all_mut().chunks_exact_mut(lanes) {
        for (x, factor) in row.iter_mut().zip(factors) {
            *x *= factor;
        }
    }
}

/// `softmax_scale · log₂ e`.
pub(super) fn scale_log2(softmax_scale: f32) -> f32 {
    (f64::from(softmax_scale) * std::f64::consts::LOG2_E) as f32
}

/// Operands of [`OnlineSoftmax::update`].
struct Update<'a> {
    lanes: usize,
    scale_log2: f32,
    s: &'a mut [f32],
    m: &'a mut [f32],
    l: &'a mut [f32],
    alpha: &'a mut [f32],
}

impl WithSimd for Update<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.lanes == S::F32_LANES {
            self.sweep::<S, 1>(simd)
        } else {
            self.sweep::<S, 2>(simd)
        }
    }
}

impl Update<'_> {
    #[inline(always)]
    fn sweep<S: Simd, const VECTORS: usize>(self, simd: S) {
        let (zero, minus_infinity) = (simd.splat_f32s(0.0), simd.splat_f32s(f32::NEG_INFINITY));
        let scale = simd.splat_f32s(self.scale_log2);
        let m_old = vectors::<S, VECTORS>(self.m);
        let mut m = m_old;
        for row in self.s.chunks_exact(self.lanes) {
            let s = vectors::<S, VECTORS>(row);
            for (m, s) in m.iter_mut().zip(s) {
                *m = simd.max_f32s(*m, s);
            }
        }
        // −m · scale, or 0 where no key has been seen yet: then every score is −∞ and every exponential 0, not NaN.
        let mut shift = [zero; VECTORS];
        let mut alpha = [zero; VECTORS];
        for index in 0..VECTORS {
            let unseen = simd.equal_f32s(m[index], minus_infinity);
            shift[index] =
                simd.select_f32s(unseen, zero, simd.mul_f32s(simd.neg_f32s(m[index]), scale));
            alpha[index] = exp2(simd, simd.mul_add_e_f32s(m_old[index], scale, shift[index]));
        }
        let mut sum = [zero; VECTORS];
        for row in self.s.chunks_exact_mut(self.lanes) {
            let (row, _) = S::as_mut_simd_f32s(row);
            for index in 0..VECTORS {
                let p = exp2(simd, simd.mul_add_e_f32s(row[index], scale, shift[index]));
                sum[index] = simd.add_f32s(sum[index], p);
                row[index] = p;
            }
        }
        let ((m_out, _), (l_out, _)) = (S::as_mut_simd_f32s(self.m), S::as_mut_simd_f32s(self.l));
        let (alpha_out, _) = S::as_mut_simd_f32s(self.alpha);
        for index in 0..VECTORS {
            m_out[index] = m[index];
            l_out[index] = simd.mul_add_e_f32s(l_out[index], alpha[index], sum[index]);
            alpha_out[index] = alpha[index];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_in_pieces_give_what_they_give_at_once() {
        for machine in Machine::all() {
            let lanes = machine.wide_lanes();
            let score = |key: usize, lane: usize| ((key * 37 + lane * 11) % 64) as f32 - 32.0;
            let run = |pieces: &[usize]| {
                let mut softmax = OnlineSoftmax::new(0.3, lanes);
                let mut sum = Panel::new(1, lanes);
                let mut first = 0;
                for &n in pieces {
                    let mut s = Panel::new(n, lanes);
                    for key in 0..n {
                        for lane in 0..lanes {
                            s.row_mut(key)[lane] = score(first + key, lane);
                        }
                    }
                    let alpha = softmax.update(&machine, &mut s, n).to_vec();
                    for (lane, sum) in sum.row_mut(0).iter_mut().enumerate() {
                        *sum *= alpha[lane];
                        *sum += (0..n)
                            .map(|key| s.row(key)[lane] * (first + key) as f32)
                            .sum::<f32>();
                    }
                    first += n;
                }
                let mut lse = vec![0.0; lanes];
                softmax.finish(0.3, &mut sum, &mut lse);
                (sum.row(0).to_vec(), lse)
            };
            let (at_once, in_pieces) = (run(&[40]), run(&[1, 7, 30, 2]));
            for lane in 0..lanes {
                assert!((at_once.0[lane] - in_pieces.0[lane]).abs() < 1e-5 * at_once.0[lane].abs());
                assert!((at_once.1[lane] - in_pieces.1[lane]).abs() < 1e-6);
            }
        }
    }
}
