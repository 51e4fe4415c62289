//! The online softmax of a tile of scores (FlashAttention, Algorithm 1), with FlashAttention-4's economy: the output
//! is rescaled only when a row's maximum has grown by so much that exponentials could overflow.
//!
//! A row's statistics are a reference value `m` and the sum `l` of `exp2(scale_log2 · (s − m))`. Any `m` near the
//! maximum will do: the quotient O / l does not depend on it. So while no score passes `m` by more than 2⁸ in the
//! exponential, `m` stays, and a block of scores costs neither shuffles nor a pass over O.
//!
//! Where S can be had again, not even the maxima are looked for: exponentials are taken with the `m` there is, and the sums,
//! which are needed anyway, say whether that was right ([`OnlineSoftmax::outgrown_by`]). It nearly always was, and a pass over S is saved.

use super::register::Accumulator;
use crate::attention::score::RowTerms;
use crate::ptx::math::{ex2_approx, fma, lg2_approx, max, rcp_approx};
use crate::ptx::score;
use crate::ptx::shuffle::{shuffle_bfly_f32, vote_any};
use crate::ptx::special;

/// How far, as an exponent of 2, a score may pass its row's reference value: 2⁸ leaves f16 room for P.
const SLACK_LOG2: f32 = 8.0;

/// The greatest rowsum P, of a lane's columns of a block, that a score which has not outgrown its m leaves behind. A lane has
/// at most 2⁵ columns: with a greater sum, one of them has a score that passes m by more than [`SLACK_LOG2`]. And f16 has
/// room for every P of a smaller one.
const LIMIT: f32 = (1 << 14) as f32;

/// The most fragments that a warp has below each other.
const MAX_M: usize = 2;

/// One value for each row of a warp's tile that this lane has a part in: `[m][half]` is row `16 m + 8 half + lane / 4`.
pub type RowValues = [[f32; 2]; MAX_M];

/// What terms of rows do to the references of scores.
trait OfReferences {
    /// The references of scores that lack their terms, of those of whole scores. Of −∞ that is anything: a term may be no number.
    fn take_from(self, m: RowValues) -> RowValues;

    /// The other way round. −∞ stays.
    fn add_to(self, m: RowValues) -> RowValues;
}

impl OfReferences for RowTerms {
    #[inline(always)]
    fn take_from(self, mut m: RowValues) -> RowValues {
        if self == RowTerms::Apart {
            m[0] = score::without_row_terms(m[0]);
        }
        m
    }

    #[inline(always)]
    fn add_to(self, mut m: RowValues) -> RowValues {
        if self == RowTerms::Apart {
            let whole = score::with_row_terms(m[0]);
            for half in 0..2 {
                if m[0][half] != f32::NEG_INFINITY {
                    m[0][half] = whole[half];
                }
            }
        }
        m
    }
}

/// The running statistics of a warp's rows.
#[derive(Clone, Copy)]
pub struct OnlineSoftmax {
    m: RowValues,
    /// This lane's part of the sum.
    l: RowValues,
    scale_log2: f32,
    /// [`SLACK_LOG2`] in units of the scores.
    slack: f32,
    /// Where P has 8 bits.
    e4m3: Option<E4m3Weights>,
}

/// What is special where P becomes e4m3: it is taken times 2³, so that fewer small weights become 0. l has the factor, too, so that O has not.
#[derive(Clone, Copy)]
struct E4m3Weights {
    /// The factor of scores before the softmax, where they have one.
    unit: f32,
    /// The factor of O: the scale of V, where all keys have the same.
    o_scale: f32,
}

/// log₂ of the factor of weights in e4m3.
const E4M3_UNIT_LOG2: f32 = 3.0;

/// As [`SLACK_LOG2`], for weights in e4m3: 2³ · 2^5.8 is less than 448. Where the softmax is speculative there is none: a lane's columns, 2⁵ or a few more, of
/// weights that are all 2³ have a sum below the limit.
const E4M3_SLACK_LOG2: f32 = 5.8;

/// As [`LIMIT`], for weights in e4m3: the greatest of these numbers. A smaller sum has no greater weight.
const E4M3_LIMIT: f32 = 448.0;

impl OnlineSoftmax {
    /// No score seen yet.
    #[inline(always)]
    pub fn new(scale_log2: f32) -> Self {
        OnlineSoftmax {
            m: [[f32::NEG_INFINITY; 2]; MAX_M],
            l: [[0.0; 2]; MAX_M],
            scale_log2,
            slack: SLACK_LOG2 * rcp_approx(scale_log2),
            e4m3: None,
        }
    }

    /// No score seen yet, of rows whose P becomes e4m3. `unit` is what scores are multiplied by where an expression edits them; O is multiplied by `o_scale` in the end.
    #[inline(always)]
    pub fn of_e4m3(scale_log2: f32, unit: f32, o_scale: f32, speculates: bool) -> Self {
        let slack_log2 = if speculates { 0.0 } else { E4M3_SLACK_LOG2 };
        OnlineSoftmax {
            slack: slack_log2 * rcp_approx(scale_log2),
            e4m3: Some(E4m3Weights { unit, o_scale }),
            ..OnlineSoftmax::new(scale_log2)
        }
    }

    /// The same of scores that become exponents of 2 when they are multiplied by `unit`: neither they nor the slack need a factor, so no registers hold them.
    #[inline(always)]
    pub fn of_e4m3_exponents(unit: f32, o_scale: f32) -> Self {
        OnlineSoftmax {
            slack: E4M3_SLACK_LOG2,
            e4m3: Some(E4m3Weights { unit, o_scale }),
            ..OnlineSoftmax::new(1.0)
        }
    }

    /// What scores are multiplied by, in 8 bits.
    #[inline(always)]
    pub fn unit(&self) -> Option<f32> {
        self.e4m3.map(|weights| weights.unit)
    }

    /// That of rows that have seen scores before, with these references and these sums over whole rows.
    #[inline(always)]
    pub fn resumed<S: Accumulator>(scale_log2: f32, m: RowValues, l: RowValues) -> Self {
        let mut softmax = OnlineSoftmax::new(scale_log2);
        softmax.m = m;
        softmax.set_row_sums::<S>(l);
        softmax
    }

    /// S ← P = exp2(scale_log2 · (S − m)), and the sums; O is rescaled where m changes.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    pub unsafe fn update<S: Accumulator, O: Accumulator>(&mut self, s: &mut S, o: &mut O) {
        // SAFETY: warp-collective, as promised; the vote is the same in all lanes.
        unsafe {
            if let Some(block_max) = self.outgrown(s, RowTerms::InScores) {
                self.renew::<O>(block_max, |m, half, alpha| scale_row(o, m, half, alpha));
            }
        }
        self.l = self.exponentials_onto(s, RowTerms::InScores, self.l);
    }

    /// [`OnlineSoftmax::update`] of a tile's first scores, when there is no O yet.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    pub unsafe fn begin<S: Accumulator>(&mut self, s: &mut S, terms: RowTerms) {
        // SAFETY: warp-collective, as promised.
        unsafe { self.grow(s, terms) };
        self.l = self.exponentials_onto(s, terms, self.l);
    }

    /// The part of [`OnlineSoftmax::update`] that decides: if a score has outgrown its row's m by too much, in any row of
    /// the warp, m ← the rows' maxima, l ← α l, and α is given, by which O is to be multiplied ([`scale_rows`]).
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    pub unsafe fn grow<S: Accumulator>(&mut self, s: &S, terms: RowTerms) -> Option<RowValues> {
        // SAFETY: warp-collective, as promised; the vote is the same in all lanes.
        unsafe {
            let block_max = terms.add_to(self.outgrown(s, terms)?);
            let mut alphas = [[1.0; 2]; MAX_M];
            self.renew::<S>(block_max, |m, half, alpha| alphas[m][half] = alpha);
            Some(alphas)
        }
    }

    /// m ← the references of another part that has seen other scores of the same rows; l ← α l where that changes them, in any row of the
    /// warp, and α is given, by which O is to be multiplied.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    pub unsafe fn follow<S: Accumulator>(&mut self, m: RowValues) -> Option<RowValues> {
        let mut differs = false;
        for idx in 0..S::M {
            for half in 0..2 {
                differs |= self.m[idx][half] != m[idx][half];
            }
        }
        // SAFETY: warp-collective, as promised; the vote is the same in all lanes.
        if !unsafe { vote_any(differs) } {
            return None;
        }
        let mut alphas = [[1.0; 2]; MAX_M];
        for idx in 0..S::M {
            for half in 0..2 {
                let new = m[idx][half];
                let alpha = ex2_approx((self.m[idx][half] - finite(new)) * self.scale_log2);
                self.m[idx][half] = new;
                self.l[idx][half] *= alpha;
                alphas[idx][half] = alpha;
            }
        }
        Some(alphas)
    }

    /// The rows' references, for [`OnlineSoftmax::follow`].
    #[inline(always)]
    pub const fn references(&self) -> RowValues {
        self.m
    }

    /// l of each row, over the four lanes that share it.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    pub unsafe fn row_sums<S: Accumulator>(&self) -> RowValues {
        let mut sums = [[0.0; 2]; MAX_M];
        for m in 0..S::M {
            for half in 0..2 {
                // SAFETY: warp-collective, as promised.
                sums[m][half] = unsafe { quad_sum(self.l[m][half]) };
            }
        }
        sums
    }

    /// l ← these sums of whole rows. One of the four lanes that share a row keeps them.
    #[inline(always)]
    pub fn set_row_sums<S: Accumulator>(&mut self, sums: RowValues) {
        let keeps = special::lane_idx().is_multiple_of(4);
        for m in 0..S::M {
            for half in 0..2 {
                self.l[m][half] = if keeps { sums[m][half] } else { 0.0 };
            }
        }
    }

    /// The maxima of the scores seen so far, in this lane's columns and without the block's terms, if one of the warp's has outgrown its m.
    #[inline(always)]
    unsafe fn outgrown<S: Accumulator>(&self, s: &S, terms: RowTerms) -> Option<RowValues> {
        let references = terms.take_from(self.m);
        let mut block_max = references;
        let mut grown = false;
        for m in 0..S::M {
            for half in 0..2 {
                for n in 0..S::N {
                    let x = s.fragment(m, n);
                    block_max[m][half] = max(block_max[m][half], max(x[2 * half], x[2 * half + 1]));
                }
                grown |= block_max[m][half] > references[m][half] + self.slack;
            }
        }
        // SAFETY: warp-collective, as promised.
        unsafe { vote_any(grown) }.then_some(block_max)
    }

    /// m ← the rows' maxima, l ← α l with α = exp2(scale_log2 · (old m − new m)); `scale` is told each row's α.
    #[inline(always)]
    unsafe fn renew<A: Accumulator>(
        &mut self,
        block_max: RowValues,
        mut scale: impl FnMut(usize, usize, f32),
    ) {
        for m in 0..A::M {
            for half in 0..2 {
                // SAFETY: warp-collective, as promised.
                let new = unsafe { quad_max(block_max[m][half]) };
                let alpha = ex2_approx((self.m[m][half] - finite(new)) * self.scale_log2);
                self.m[m][half] = new;
                self.l[m][half] *= alpha;
                scale(m, half, alpha);
            }
        }
    }

    /// Whether every row of the warp has seen a key, so that it has an m.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    pub unsafe fn has_references<S: Accumulator>(&self) -> bool {
        let missing = |m: &f32| *m == f32::NEG_INFINITY;
        // SAFETY: warp-collective, as promised.
        !unsafe { vote_any(self.m[..S::M].iter().flatten().any(missing)) }
    }

    /// S ← P = exp2(scale_log2 · (S − m)); gives this lane's part of rowsum P, for [`OnlineSoftmax::add`].
    #[inline(always)]
    pub fn exponentials<S: Accumulator>(&self, s: &mut S, terms: RowTerms) -> RowValues {
        self.exponentials_onto(s, terms, [[0.0; 2]; MAX_M])
    }

    /// The same, added to `sums`.
    #[inline(always)]
    fn exponentials_onto<S: Accumulator>(
        &self,
        s: &mut S,
        terms: RowTerms,
        mut sums: RowValues,
    ) -> RowValues {
        let references = terms.take_from(self.m);
        for m in 0..S::M {
            for half in 0..2 {
                let seen = self.m[m][half] != f32::NEG_INFINITY;
                let reference = if seen { references[m][half] } else { 0.0 };
                let offset = match self.e4m3 {
                    None => -reference * self.scale_log2,
                    Some(_) => fma(-reference, self.scale_log2, E4M3_UNIT_LOG2),
                };
                for n in 0..S::N {
                    let x = s.fragment_mut(m, n);
                    for p in &mut x[2 * half..2 * half + 2] {
                        *p = ex2_approx(fma(*p, self.scale_log2, offset));
                        sums[m][half] += *p;
                    }
                }
            }
        }
        sums
    }

    /// Whether a score has outgrown its row's m, by the sums of P: what a look at the maxima before would have found. P is of
    /// no use then.
    #[inline(always)]
    pub fn outgrown_by<S: Accumulator>(&self, sums: &RowValues) -> bool {
        let limit = match self.e4m3 {
            None => LIMIT,
            Some(_) => E4M3_LIMIT,
        };
        sums[..S::M].iter().flatten().any(|sum| *sum > limit)
    }

    /// l ← l + rowsum P.
    #[inline(always)]
    pub fn add<S: Accumulator>(&mut self, sums: RowValues) {
        for m in 0..S::M {
            for half in 0..2 {
                self.l[m][half] += sums[m][half];
            }
        }
    }

    /// O ← diag(l)⁻¹ O; gives L = m · scale + ln l. A row that saw no key has O = 0 and L = −∞.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    pub unsafe fn finalize<O: Accumulator>(&self, o: &mut O) -> RowValues {
        let mut lse = [[0.0; 2]; MAX_M];
        for m in 0..O::M {
            for half in 0..2 {
                // SAFETY: warp-collective, as promised.
                let l = unsafe { quad_sum(self.l[m][half]) };
                let seen = l != 0.0;
                let inverse = if seen { rcp_approx(l) } else { 0.0 };
                let factor = match self.e4m3 {
                    None => inverse,
                    Some(E4m3Weights { o_scale, .. }) => inverse * o_scale,
                };
                for n in 0..O::N {
                    let x = o.fragment_mut(m, n);
                    x[2 * half] *= factor;
                    x[2 * half + 1] *= factor;
                }
                let l = match self.e4m3 {
                    None => l,
                    // Exact: a power of 2.
                    Some(_) => l * 0.125,
                };
                lse[m][half] = log_sum_exp(self.m[m][half], l, self.scale_log2);
            }
        }
        lse
    }
}

/// L = m · scale + ln l of a row; −∞ where it saw no key.
#[inline(always)]
fn log_sum_exp(m: f32, l: f32, scale_log2: f32) -> f32 {
    let log2 = fma(m, scale_log2, lg2_approx(l));
    if l != 0.0 {
        log2 * core::f32::consts::LN_2
    } else {
        f32::NEG_INFINITY
    }
}

/// The same of rows, by their references and sums over whole rows.
#[inline(always)]
pub fn log_sums_exp<S: Accumulator>(m: RowValues, l: RowValues, scale_log2: f32) -> RowValues {
    let mut lse = [[0.0; 2]; MAX_M];
    for idx in 0..S::M {
        for half in 0..2 {
            lse[idx][half] = log_sum_exp(m[idx][half], l[idx][half], scale_log2);
        }
    }
    lse
}

/// O ← diag(α) O.
#[inline(always)]
pub fn scale_rows<O: Accumulator>(o: &mut O, alpha: RowValues) {
    for m in 0..O::M {
        for half in 0..2 {
            scale_row(o, m, half, alpha[m][half]);
        }
    }
}

/// Multiplies one of this lane's rows.
#[inline(always)]
fn scale_row<O: Accumulator>(o: &mut O, m: usize, half: usize, factor: f32) {
    for n in 0..O::N {
        let x = o.fragment_mut(m, n);
        x[2 * half] *= factor;
        x[2 * half + 1] *= factor;
    }
}

/// `x`, and 0 for −∞, so that the difference of two of them is no NaN.
#[inline(always)]
pub fn finite(x: f32) -> f32 {
    if x == f32::NEG_INFINITY { 0.0 } else { x }
}

/// The maximum over the four lanes that share a row.
///
/// # Safety
/// Warp-collective.
#[inline(always)]
pub unsafe fn quad_max(x: f32) -> f32 {
    // SAFETY: warp-collective, as promised.
    unsafe {
        let x = max(x, shuffle_bfly_f32(x, 1));
        max(x, shuffle_bfly_f32(x, 2))
    }
}

/// The sum over the four lanes that share a row.
#[inline(always)]
unsafe fn quad_sum(x: f32) -> f32 {
    // SAFETY: warp-collective, as promised.
    unsafe {
        let x = x + shuffle_bfly_f32(x, 1);
        x + shuffle_bfly_f32(x, 2)
    }
}
