//! Weights that are dropped, pair by pair.

use std::ops::Range;

use super::buffer::Panel;
use super::edit::Lanes;
use super::sizes::Location;
use crate::arguments::{Argument, Operands};
use crate::error::ProblemError;
use crate::problem::Problem;
use crate::problem::philox::Dropper;

/// Which weights a call drops, if it has dropout.
pub(super) fn of(problem: &Problem, operands: &Operands) -> Result<Option<Dropper>, ProblemError> {
    let Some(dropout) = problem.dropout() else {
        return Ok(None);
    };
    let argument = Argument::DropoutState;
    let state = match operands.vector(argument) {
        None => operands.values().dropout,
        Some(state) => match state.host() {
            Some(&[seed, offset]) => [seed, offset],
            _ => return Err(ProblemError::Missing { argument }),
        },
    };
    Ok(Some(Dropper::new(dropout, state)))
}

/// What belongs to weights that are dropped, of some rows of a group and some keys, ← 0. Both begin at lane 0 and row 0 of the panel.
pub(super) fn clear(
    at: &Location,
    lanes: Lanes,
    (rows, keys): (&Range<usize>, &Range<usize>),
    panel: &mut Panel,
) {
    let Some(dropper) = at.dropper else {
        return;
    };
    let sizes = &at.sequence.sizes;
    let heads_q = sizes.heads_k * sizes.group_size;
    for row in rows.clone() {
        let in_group = at.head_k * sizes.group_size + row % sizes.group_size;
        let head = at.sequence_idx * heads_q + in_group;
        dropper.dropped_keys(head, row / sizes.group_size, keys.clone(), |key| {
            let (row, key) = (row - rows.start, key - keys.start);
            let (panel_row, lane) = match lanes {
                Lanes::Queries => (key, row),
                Lanes::Keys => (row, key),
            };
            panel.row_mut(panel_row)[lane] = 0.0;
        });
    }
}

/// 1 / the probability of being kept: 1 without dropout.
pub(super) fn inverse_keep(at: &Location) -> f32 {
    at.dropper.map_or(1.0, |dropper| dropper.inverse_keep())
}

/// Gradients of weights, as [`clear`] does; the others are divided by the share that is kept.
pub(super) fn clear_and_scale(
    at: &Location,
    lanes: Lanes,
    (rows, keys): (&Range<usize>, &Range<usize>),
    d_p: &mut Panel,
) {
    let Some(dropper) = at.dropper else {
        return;
    };
    let n_rows = match lanes {
        Lanes::Queries => keys.len(),
        Lanes::Keys => rows.len(),
    };
    let n = n_rows * d_p.lanes();
    for x in &mut d_p.all_mut()[..n] {
        *x *= dropper.inverse_keep();
    }
    clear(at, lanes, (rows, keys), d_p);
}
