//! The forward pass: O = softmax(scale · Q Kᵀ, masked) V, and L = log-sum-exp of the rows.
//!
//! FlashAttention-2 (Dao 2023), Algorithm 1, for one tile of queries:
//!
//! ```text
//! load Q;  O ← 0,  m ← −∞,  l ← 0
//! for each KV block j that the mask leaves, from the last one down:
//!     S ← scale · Q K_jᵀ                   tensor cores; the scale is folded into the exponential
//!     mask S, where the block is an edge
//!     P ← exp(S − m),  l ← l + rowsum P    m, l, O rescaled where a maximum grew
//!     O ← O + P V_j                        tensor cores
//! O ← diag(l)⁻¹ O,  L ← m + log l
//! ```
//!
//! Where heads have sinks, each row's l has one term more, exp(sink); it enters when O and L are there (`partial.rs`).
//!
//! The last blocks come first because the edges of the mask lie there: they are done with while the pipeline fills.

pub mod decode;

pub mod mla;

pub mod sm80;

pub mod sm90;

use crate::attention::batch_and_head;
use crate::kernels::common::sequence::StatisticRows;
use crate::kernels::merge::partial::{sink_of, with_sink};
use crate::ptx::{global, special};
use crate::tile::fragment;
use crate::tile::register::Accumulator;
use crate::tile::softmax::{RowValues, scale_rows};

/// O and L ← those with sinks; `sink_of_row` says that of a row.
#[inline(always)]
pub(in crate::kernels) fn add_sinks<O: Accumulator>(
    first_row: u32,
    lse: RowValues,
    o: &mut O,
    sink_of_row: impl Fn(u32) -> f32,
) -> RowValues {
    let place = fragment::accumulator(special::lane_idx(), 0);
    let (mut all, mut factors) = (lse, lse);
    for m in 0..O::M {
        for half in 0..2 {
            let sink = sink_of_row(first_row + m as u32 * 16 + half as u32 * 8 + place.row);
            (all[m][half], factors[m][half]) = with_sink(lse[m][half], sink);
        }
    }
    scale_rows(o, factors);
    all
}

/// The element of a vector of query heads, such as sinks, for one head, if heads of all batch entries are counted together.
///
/// # Safety
/// The vector has one for each of the `heads_q` heads of a batch entry.
#[inline(always)]
pub(in crate::kernels) unsafe fn value_of_head(vector: u64, heads_q: u32, head: u32) -> f32 {
    let (_, head_idx) = batch_and_head(head, heads_q);
    // SAFETY: the caller's contract.
    unsafe { sink_of(vector, head_idx) }
}

/// A statistic of the rows, which have been padded; `place_of` as in [`store_statistic`].
///
/// # Safety
/// It has been written, and the warp has met since.
#[inline(always)]
pub(in crate::kernels) unsafe fn load_statistic<O: Accumulator>(
    rows: StatisticRows,
    first_row: u32,
    place_of: impl Fn(u32) -> (u32, u32),
) -> RowValues {
    let mut values = RowValues::default();
    let place = fragment::accumulator(special::lane_idx(), 0);
    for m in 0..O::M {
        for half in 0..2 {
            let (head, query) = place_of(first_row + m as u32 * 16 + half as u32 * 8 + place.row);
            let address = rows.address(head, query);
            // SAFETY: the caller's contract.
            values[m][half] = unsafe { global::ld_global_f32(address) };
        }
    }
    values
}

/// Writes a statistic of the rows; one lane of the four that share a row writes it. `place_of` says which (batch, head) and which query
/// a row is.
///
/// # Safety
/// `rows` are those of the tile's sequence.
#[inline(always)]
pub(in crate::kernels) unsafe fn store_statistic<O: Accumulator>(
    rows: StatisticRows,
    first_row: u32,
    values: RowValues,
    place_of: impl Fn(u32) -> (u32, u32),
) {
    let place = fragment::accumulator(special::lane_idx(), 0);
    for m in 0..O::M {
        for half in 0..2 {
            let (head, query) = place_of(first_row + m as u32 * 16 + half as u32 * 8 + place.row);
            let address = rows.address(head, query);
            // SAFETY: the query is one of the sequence's, or nothing is written.
            unsafe {
                global::st_global_f32_if(
                    address,
                    values[m][half],
                    place.col == 0 && query < rows.seqlen_q,
                );
            }
        }
    }
}
