//! Placeholder instructions where an expression edits scores: see [`ferroflash_expression`].
//!
//! No GPU has them. The host replaces them by an expression's code before the driver compiles the text, or removes them. One
//! thread has fragments of scores: two rows that stay for a tile, and two neighbouring columns of each. Where rows are queries, columns
//! are keys, or the other way round.

use crate::attention::score::{ScoreRows, ScoreTile};
use crate::params::{Scale, ScoreParams};

/// `ferroflash_score_tile`: the scores that follow lie in this tile.
///
/// Not of PTX.
#[inline(always)]
pub fn score_tile(params: &ScoreParams, scale: &Scale, rows: ScoreRows, tile: ScoreTile) {
    #[cfg(target_arch = "nvptx64")]
    {
        let _ = (params, scale, rows);
        ptx!(
            "ferroflash_score_tile {batch}, {head}, {kv_head}, {seqlen_q}, {seqlen_k}, {row}, {row_below};",
            batch = in(reg32) tile.batch, head = in(reg32) tile.head, kv_head = in(reg32) tile.kv_head,
            seqlen_q = in(reg32) tile.seqlen_q, seqlen_k = in(reg32) tile.seqlen_k,
            row = in(reg32) tile.rows[0], row_below = in(reg32) tile.rows[1],
            options(nomem, nostack)
        );
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::emu::score::begin_tile(params, scale, rows, tile);
    }
}

/// `ferroflash_score_block`: the scores that follow lie in columns from this one on, the thread's first.
///
/// Not of PTX.
#[inline(always)]
pub fn score_block(first_column: u32) {
    bodies! {
        ptx!("ferroflash_score_block {first};", first = in(reg32) first_column, options(nomem, nostack));
        cpu: crate::emu::score::begin_block(first_column)
    }
}

/// `ferroflash_score_block_apart`: the same; scores lack from here on what the expression makes the same for all of a row's columns.
///
/// Not of PTX.
#[inline(always)]
pub fn score_block_apart(first_column: u32) {
    bodies! {
        ptx!("ferroflash_score_block_apart {first};", first = in(reg32) first_column, options(nomem, nostack));
        cpu: crate::emu::score::begin_block_apart(first_column)
    }
}

/// `ferroflash_score_with_rows`: numbers of the thread's two rows, in the unit of the scores, with what the block's scores lack.
///
/// Not of PTX.
#[inline(always)]
pub fn with_row_terms(x: [f32; 2]) -> [f32; 2] {
    #[cfg(target_arch = "nvptx64")]
    {
        let [mut above, mut below] = x;
        ptx!(
            "ferroflash_score_with_rows {above}, {below};",
            above = inout(reg32) above, below = inout(reg32) below, options(nomem, nostack)
        );
        [above, below]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let [above, below] = crate::emu::score::row_terms();
        [x[0] + above, x[1] + below]
    }
}

/// `ferroflash_score_without_rows`: the other way round.
///
/// Not of PTX.
#[inline(always)]
pub fn without_row_terms(x: [f32; 2]) -> [f32; 2] {
    #[cfg(target_arch = "nvptx64")]
    {
        let [mut above, mut below] = x;
        ptx!(
            "ferroflash_score_without_rows {above}, {below};",
            above = inout(reg32) above, below = inout(reg32) below, options(nomem, nostack)
        );
        [above, below]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let [above, below] = crate::emu::score::row_terms();
        [x[0] - above, x[1] - below]
    }
}

/// `ferroflash_score_is_capped`: whether scores are measured in the size of a cap, so that each has cost a tanh: see
/// [`ferroflash_expression::ptx::Unit`]. The same in all threads of a launch.
///
/// Not of PTX.
#[inline(always)]
pub fn is_capped() -> bool {
    bodies! {
        capped: u32 = ptx!(
            "ferroflash_score_is_capped {capped};",
            capped = out(reg32) capped, options(pure, nomem, nostack)
        ) => capped != 0;
        cpu: crate::emu::score::is_capped()
    }
}

/// The most fragments across: each has a text of its own.
pub const MOST_FRAGMENTS: usize = 16;

/// Calls `$call` with the number of the fragment, less than [`MOST_FRAGMENTS`], as a literal, which the text needs.
#[cfg(target_arch = "nvptx64")]
macro_rules! for_fragment {
    ($n:expr, $call:ident: $($literal:literal)*) => {
        match $n {
            $($literal => $call!($literal),)*
            _ => {}
        }
    };
}

/// `ferroflash_score`: the scores of the `n`-th fragment of the block, before softmax_scale, become what the expression makes of them. The first
/// two are of the first row, in columns `8 n` and `8 n + 1` behind the thread's first.
///
/// Not of PTX.
#[inline(always)]
pub fn score(x: &mut [f32; 4], n: usize) {
    #[cfg(target_arch = "nvptx64")]
    {
        let [mut a, mut b, mut c, mut d] = *x;
        /// `ferroflash_score` of the `n`-th fragment.
        macro_rules! edit {
            ($n:literal) => {
                ptx!(
                    "ferroflash_score {a}, {b}, {c}, {d}, {column};",
                    a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d,
                    column = const 8 * $n,
                    options(nomem, nostack)
                )
            };
        }
        for_fragment!(n, edit: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        *x = [a, b, c, d];
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::emu::score::edit(x, n);
    }
}

/// Whether the mask shows the pairs of the `n`-th fragment, as [`score`] places them: `ferroflash_score` on zeros, in a kernel that is compiled for the
/// mask alone ([`crate::variants::Variant::mask_site`]).
///
/// Not of PTX.
#[inline(always)]
pub fn shows(n: usize) -> [bool; 4] {
    #[cfg(target_arch = "nvptx64")]
    {
        let mut x = [0.0; 4];
        score(&mut x, n);
        x.map(|x| x == 0.0)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::emu::score::shows(n)
    }
}

/// `ferroflash_score_gradient`: as [`score`]; gives the derivative of each by the score that it was. 0 where a score is masked.
///
/// Not of PTX.
#[inline(always)]
pub fn score_gradient(x: &mut [f32; 4], n: usize) -> [f32; 4] {
    #[cfg(target_arch = "nvptx64")]
    {
        let [mut a, mut b, mut c, mut d] = *x;
        let mut derivative = [0.0f32; 4];
        let [d_a, d_b, d_c, d_d] = &mut derivative;
        /// `ferroflash_score_gradient` of the `n`-th fragment.
        macro_rules! edit {
            ($n:literal) => {
                ptx!(
                    "ferroflash_score_gradient {a}, {b}, {c}, {d}, {d_a}, {d_b}, {d_c}, {d_d}, {column};",
                    a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d,
                    d_a = out(reg32) *d_a, d_b = out(reg32) *d_b, d_c = out(reg32) *d_c, d_d = out(reg32) *d_d,
                    column = const 8 * $n,
                    options(nomem, nostack)
                )
            };
        }
        for_fragment!(n, edit: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        *x = [a, b, c, d];
        derivative
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        crate::emu::score::edit_with_gradient(x, n)
    }
}
