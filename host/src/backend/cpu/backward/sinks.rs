//! Gradients of sinks: the weight of a head's sink in a row is exp(sink − lse), and its value is 0, so that
//! `d_sink = −Σ over rows of exp(sink − lse) Δ`.

use rayon::prelude::*;

use super::RowStatistics;
use crate::backend::cpu::sequences::Sequences;

/// Writes them, a head after the other: rows in the order of the sequences, and of their positions.
pub(super) fn d_sinks(
    sequences: &Sequences,
    sinks: &[f32],
    rows: &RowStatistics,
    d_sinks: &mut [f32],
) {
    let group_size = sequences.longest.group_size;
    d_sinks
        .par_iter_mut()
        .zip(sinks)
        .enumerate()
        .for_each(|(head, (d_sink, sink))| {
            let (head_k, in_group) = (head / group_size, head % group_size);
            let sink_log2 = sink * std::f32::consts::LOG2_E;
            let mut sum = 0.0;
            for sequence_idx in 0..sequences.len() {
                let at = sequences.location(sequence_idx, head_k);
                let first = rows.first(at) + in_group;
                for position in 0..at.sequence.sizes.seqlen_q {
                    let row = first + position * group_size;
                    let weight = (sink_log2 - rows.lse_log2[row]).exp2();
                    sum += weight * rows.delta[row];
                }
            }
            // 0 and not −0 where there is no row.
            *d_sink = 0.0 - sum;
        });
}
