//! Rows turned by a rotary position embedding.

use half::{bf16, f16};
use rayon::prelude::*;

use super::rows::rows_mut;
use crate::dtype::{Dtype, Element, ScalarType};
use crate::error::RotaryError;
use crate::tensor::{Tensor, TensorMut};
use crate::terms::{Pairs, Positions};

/// Which rows are turned by how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    /// `[positions, n_pairs]`.
    pub(crate) cos: &'a [f32],
    /// The same.
    pub(crate) sin: &'a [f32],
    /// Pairs of a row.
    pub(crate) n_pairs: usize,
    /// Which elements form them.
    pub(crate) pairs: Pairs,
    /// Where rows stand: at rows of the table.
    pub(crate) positions: Positions<'a>,
    /// Whether they are turned by the negative angle.
    pub(crate) back: bool,
}

/// Turns the rows of x into y: tensors of the host, of one shape and type, with as many elements in a row as form pairs.
pub(crate) fn turn(turn: Turn, x: &Tensor, y: &mut TensorMut) -> Result<(), RotaryError> {
    match x.describe().dtype {
        ScalarType::Float(Dtype::Bf16) => typed::<bf16>(turn, x, y),
        ScalarType::Float(Dtype::F16) => typed::<f16>(turn, x, y),
        _ => typed::<f32>(turn, x, y),
    }
}

fn typed<T: Element>(turn: Turn, x: &Tensor, y: &mut TensorMut) -> Result<(), RotaryError> {
    let (from, to) = (x.layout(), y.layout());
    let overlapping = RotaryError::Overlapping { given: to };
    let (Some(x), Some(y)) = (x.host::<T>(), y.host::<T>()) else {
        return Ok(());
    };
    let rows = rows_mut(y, to, 1).ok_or(overlapping)?;
    // In the order (batch entry, head, position).
    rows.into_par_iter().enumerate().for_each(|(at, y)| {
        let (batch_head, row) = (at / from.seqlen, at % from.seqlen);
        let (batch_idx, head) = (batch_head / from.heads, batch_head % from.heads);
        let start = batch_idx * from.batch_stride + row * from.row_stride + head * from.head_stride;
        let position = match turn.positions {
            Positions::From(first) => first + row,
            Positions::FromEach(firsts) => firsts[batch_idx] as usize + row,
            Positions::OfRows(rows) => rows[batch_idx * from.seqlen + row] as usize,
        };
        turn.row(position, &x[start..][..from.head_dim], y);
    });
    Ok(())
}

impl Turn<'_> {
    /// One row, at a position.
    fn row<T: Element>(&self, position: usize, x: &[T], y: &mut [T]) {
        let n_pairs = self.n_pairs;
        let of_position = position * n_pairs..(position + 1) * n_pairs;
        let angles = self.cos[of_position.clone()]
            .iter()
            .zip(&self.sin[of_position]);
        y[2 * n_pairs..].copy_from_slice(&x[2 * n_pairs..]);
        for (i, (&cos, &sin)) in angles.enumerate() {
            let (first, second) = match self.pairs {
                Pairs::Halves => (i, i + n_pairs),
                Pairs::Interleaved => (2 * i, 2 * i + 1),
            };
            let sin = if self.back { -sin } else { sin };
            let (a, b) = (x[first].to_f32(), x[second].to_f32());
            y[first] = T::from_f32(a * cos - b * sin);
            y[second] = T::from_f32(a * sin + b * cos);
        }
    }
}
