//! Weights that are dropped, as a warp's fragments hold them: see [`crate::attention::dropout`].
//!
//! Of two adjacent fragments, 16 columns, a lane has rows `r` and `r + 8`, and columns `2c`, `2c + 1`, `2c + 8` and `2c + 9`: half of a patch. The
//! lane four further on has the other half, if `r` is even. So the two take two patches together, those of neighbouring fragments: each calls
//! the generator for one of them, and gives the other lane two of its four words.

use crate::attention::dropout::{Head, Stream, dropped};
use crate::attention::score::ScoreRows;
use crate::params::DropoutParams;
use crate::ptx::convert::prmt_signs;
use crate::ptx::shuffle::shuffle_bfly_u32;
use crate::ptx::{global, special};
use crate::tile::element::{Bf16, F32};
use crate::tile::products::Products;
use crate::tile::register::Accumulator;

/// The random bytes of a head, counted through the batch.
///
/// # Safety
/// Where the parameters name memory, seed and offset lie there.
#[inline(always)]
pub(crate) unsafe fn head_of(p: &DropoutParams, head: u32) -> Head {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let is_memory = p.state != 0;
    // SAFETY: the caller's contract.
    unsafe {
        let seed = global::ld_global_x2_or(p.state, halves(p.seed), is_memory);
        let offset = global::ld_global_x2_or(p.state + 8, halves(p.offset), is_memory);
        Stream::new(seed, offset).of_head(head)
    }
}

/// The two, exchanged where all bits of `mask` are 1, not where all are 0. Lanes differ in that: a branch would part them before they exchange words.
#[inline(always)]
fn swapped_if(mask: u32, a: [u32; 2], b: [u32; 2]) -> [[u32; 2]; 2] {
    let pick = |zeros: u32, ones: u32| (zeros & !mask) | (ones & mask);
    [
        [pick(a[0], b[0]), pick(a[1], b[1])],
        [pick(b[0], a[0]), pick(b[1], a[1])],
    ]
}

/// A warp's tile of scores: which of its weights are dropped.
#[derive(Clone, Copy)]
pub(crate) struct Dropped<'a> {
    pub(crate) p: &'a DropoutParams,
    pub(crate) head: Head,
    /// Whether its rows are queries or keys.
    pub(crate) rows: ScoreRows,
    /// Its first row, a multiple of 16.
    pub(crate) first_row: u32,
    /// Its first column, a multiple of 16.
    pub(crate) first_column: u32,
}

impl Dropped<'_> {
    /// Calls `f` with the place of every fragment of an `S`, and with bits of 1 for its weights that are dropped: 16 for each, as they are packed.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub(crate) unsafe fn for_each<S: Accumulator>(self, mut f: impl FnMut(usize, usize, [u32; 2])) {
        let lane = special::lane_idx();
        let odd = lane / 4 % 2;
        // Two patches below each other, where there are not twice as many beside each other.
        let below = !S::N.is_multiple_of(4) && S::M.is_multiple_of(2);
        let (step_m, step_n) = if below { (2, 1) } else { (1, 2) };
        let row = self.first_row / 4 + lane / 8 + if below { odd * 4 } else { 0 };
        let column = self.first_column / 4 + lane % 4;
        for m in 0..S::M / step_m {
            for n in 0..(S::N / 2).div_ceil(step_n) {
                let (m, n) = (m * step_m, n * step_n);
                let is_last = !below && n + 1 == S::N / 2;
                let beside = if below || is_last { 0 } else { odd * 4 };
                let (row, column) = (row + m as u32 * 4, column + n as u32 * 4 + beside);
                // SAFETY: the caller's contract.
                let [first, second] =
                    unsafe { self.words(row, column, odd.wrapping_neg(), is_last) };
                let mut fragments = |m: usize, n: usize, words: [u32; 2]| {
                    let [left, right] = self.masks(words);
                    f(m, 2 * n, left);
                    f(m, 2 * n + 1, right);
                };
                fragments(m, n, first);
                if below {
                    fragments(m + 1, n, second);
                } else if !is_last {
                    fragments(m, n + 1, second);
                }
            }
        }
    }

    /// This lane's words, one for each parity of a column, of two patches: its own and that of the lane four further on or before. Of one alone, for
    /// which both call the generator. All bits of `odd` are 1 in lanes of odd rows.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    unsafe fn words(self, row: u32, column: u32, odd: u32, alone: bool) -> [[u32; 2]; 2] {
        let (even_rows, odd_rows) = match self.rows {
            ScoreRows::Queries => {
                let [a, b, c, d] = self.head.words(row, column);
                ([a, b], [c, d])
            }
            ScoreRows::Keys => {
                let [a, b, c, d] = self.head.words(column, row);
                ([a, c], [b, d])
            }
        };
        let [own, other] = swapped_if(odd, even_rows, odd_rows);
        if alone {
            return [own; 2];
        }
        // SAFETY: the caller's contract.
        let given = other.map(|word| unsafe { shuffle_bfly_u32(word, 4) });
        swapped_if(odd, own, given)
    }

    /// The dropped weights of two adjacent fragments: of each its upper and its lower pair.
    #[inline(always)]
    fn masks(self, words: [u32; 2]) -> [[u32; 2]; 2] {
        let [even, odd] = words.map(|word| dropped(word, self.p.low, self.p.high));
        let bytes = [
            prmt_signs::<0xcc88>(even, odd),
            prmt_signs::<0xdd99>(even, odd),
            prmt_signs::<0xeeaa>(even, odd),
            prmt_signs::<0xffbb>(even, odd),
        ];
        match self.rows {
            ScoreRows::Queries => [[bytes[0], bytes[1]], [bytes[2], bytes[3]]],
            ScoreRows::Keys => [[bytes[0], bytes[2]], [bytes[1], bytes[3]]],
        }
    }

    /// Weights that a warp holds ← 0 where they are dropped.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub(crate) unsafe fn clear_held<E: Products, S: Accumulator>(self, weights: &mut E::Held<S>) {
        // SAFETY: the caller's contract.
        unsafe { self.for_each::<S>(|m, n, dropped| E::clear::<S>(weights, m, n, dropped)) };
    }

    /// Weights packed to 16 bits ← 0 where they are dropped.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub(crate) unsafe fn clear_packed<S: Accumulator>(self, weights: &mut S::Packed) {
        // SAFETY: the caller's contract. What is cleared is the same of both types.
        unsafe { self.clear_held::<Bf16, S>(weights) };
    }

    /// Values ← 0 where their weights are dropped.
    ///
    /// # Safety
    /// Warp-collective.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub(crate) unsafe fn clear<S: Accumulator>(self, values: &mut S) {
        // SAFETY: the caller's contract.
        unsafe { self.clear_held::<F32, S>(values) };
    }
}

/// Values · 1 / the share that is kept.
#[inline(always)]
pub(crate) fn divide_by_kept<A: Accumulator>(p: &DropoutParams, values: &mut A) {
    for m in 0..A::M {
        for n in 0..A::N {
            for x in values.fragment_mut(m, n) {
                *x *= p.inverse_keep;
            }
        }
    }
}
