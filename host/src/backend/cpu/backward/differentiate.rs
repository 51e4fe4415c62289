//! The softmax the other way: probabilities from lse, and their gradient, over panels of scores.

use pulp::{Simd, WithSimd};

use crate::backend::cpu::buffer::Panel;
use crate::backend::cpu::exp2::exp2;
use crate::backend::cpu::machine::Machine;
use crate::backend::cpu::softmax::scale_log2;

/// The inputs of the probabilities and their gradient, in addition to S and dP.
#[derive(Clone, Copy)]
pub(super) enum Statistics<'a> {
    /// Rows of attention are in the lanes.
    PerLane {
        lse_log2: &'a [f32],
        delta: &'a [f32],
    },
    /// Rows of attention are the panel's rows.
    PerRow {
        lse_log2: &'a [f32],
        delta: &'a [f32],
    },
}

/// P = exp(S · scale − lse), dS = P ∘ (dP − Δ), in place, in the first `n_rows` rows.
pub(super) fn differentiate(
    machine: &Machine,
    softmax_scale: f32,
    statistics: Statistics,
    s: &mut Panel,
    d_p: &mut Panel,
    n_rows: usize,
) {
    let lanes = s.lanes();
    machine.run(Differentiate {
        lanes,
        scale_log2: scale_log2(softmax_scale),
        statistics,
        s: &mut s.all_mut()[..n_rows * lanes],
        d_p: &mut d_p.all_mut()[..n_rows * lanes],
    });
}

/// Operands of [`differentiate`].
struct Differentiate<'a> {
    lanes: usize,
    scale_log2: f32,
    statistics: Statistics<'a>,
    s: &'a mut [f32],
    d_p: &'a mut [f32],
}

impl WithSimd for Differentiate<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let scale = simd.splat_f32s(self.scale_log2);
        let rows = self
            .s
            .chunks_exact_mut(self.lanes)
            .zip(self.d_p.chunks_exact_mut(self.lanes));
        match self.statistics {
            Statistics::PerLane { lse_log2, delta } => {
                let ((lse_log2, _), (delta, _)) =
                    (S::as_simd_f32s(lse_log2), S::as_simd_f32s(delta));
                for (s, d_p) in rows {
                    let ((s, _), (d_p, _)) = (S::as_mut_simd_f32s(s), S::as_mut_simd_f32s(d_p));
                    for ((s, d_p), (&lse_log2, &delta)) in
                        s.iter_mut().zip(d_p).zip(lse_log2.iter().zip(delta))
                    {
                        differentiate_vector(simd, scale, s, d_p, lse_log2, delta);
                    }
                }
            }
            Statistics::PerRow { lse_log2, delta } => {
                for ((s, d_p), (&lse_log2, &delta)) in rows.zip(lse_log2.iter().zip(delta)) {
                    let ((s, _), (d_p, _)) = (S::as_mut_simd_f32s(s), S::as_mut_simd_f32s(d_p));
                    let (lse_log2, delta) = (simd.splat_f32s(lse_log2), simd.splat_f32s(delta));
                    for (s, d_p) in s.iter_mut().zip(d_p) {
                        differentiate_vector(simd, scale, s, d_p, lse_log2, delta);
                    }
                }
            }
        }
    }
}

/// [`differentiate`] for one vector.
#[inline(always)]
fn differentiate_vector<S: Simd>(
    simd: S,
    scale: S::f32s,
    s: &mut S::f32s,
    d_p: &mut S::f32s,
    lse_log2: S::f32s,
    delta: S::f32s,
) {
    let p = exp2(
        simd,
        simd.mul_add_e_f32s(*s, scale, simd.neg_f32s(lse_log2)),
    );
    *s = p;
    *d_p = simd.mul_f32s(p, simd.sub_f32s(*d_p, delta));
}
