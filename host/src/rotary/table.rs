//! Cosines and sines by position, and the rotation itself.

use super::{Direction, Pairs, Positions, Turns};
use crate::backend::cpu::rotary::{self, Turn};
use crate::error::{Error, ProblemError, RotaryError};
use crate::tensor::{Location, Tensor, TensorMut};
use crate::validate::rotary::check_dim;

/// Cosines and sines of pairs at positions: each f32 `[n_positions, rotary_dim / 2]`, row-major.
///
/// The [module](crate::rotary) has an example.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryTable {
    rotary_dim: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RotaryTable {
    /// A table of the model's own: `cos` and `sin` are `[n_positions, rotary_dim / 2]`.
    ///
    /// # Errors
    /// rotary_dim is 0, odd, or greater than [`MAX_ROTARY_DIM`](super::MAX_ROTARY_DIM); the tables do not have whole rows, or not the same number of rows.
    pub fn new(
        rotary_dim: usize,
        cos: Vec<f32>,
        sin: Vec<f32>,
    ) -> Result<RotaryTable, RotaryError> {
        check_dim(rotary_dim)?;
        if cos.len() != sin.len() || !cos.len().is_multiple_of(rotary_dim / 2) {
            return Err(RotaryError::Tables {
                cos: cos.len(),
                sin: sin.len(),
                n_pairs: rotary_dim / 2,
            });
        }
        Ok(RotaryTable {
            rotary_dim,
            cos,
            sin,
        })
    }

    /// How many elements of a row are rotated.
    pub fn rotary_dim(&self) -> usize {
        self.rotary_dim
    }

    /// The number of positions.
    pub fn n_positions(&self) -> usize {
        self.cos.len() / (self.rotary_dim / 2)
    }

    /// All cosines.
    pub fn cos(&self) -> &[f32] {
        &self.cos
    }

    /// All sines.
    pub fn sin(&self) -> &[f32] {
        &self.sin
    }

    /// The description of this table for [`Rotate`](crate::Rotate) and [`Append`](crate::Append).
    pub fn turns(&self, pairs: Pairs) -> Turns {
        Turns {
            pairs,
            rotary_dim: self.rotary_dim,
            n_positions: self.n_positions(),
        }
    }

    /// Rotates the rows of x into y, in f32 and rounded once; elements from rotary_dim on are copied. x and y are
    /// `[batch, seqlen, heads, head_dim]`, or packed, `[total, heads, head_dim]`, in host memory.
    ///
    /// # Errors
    /// x and y differ in shape or type; rotary_dim is greater than head_dim; a position is negative or beyond the table; the number of positions is
    /// not that of rows or batch entries; the tensors are on a device ([`Rotate`](crate::Rotate) takes those); rows of y overlap.
    pub fn rotate(
        &self,
        pairs: Pairs,
        positions: Positions,
        x: &Tensor,
        y: &mut TensorMut,
    ) -> Result<(), Error> {
        self.turn(Direction::Forth, pairs, positions, x, y)
    }

    /// The gradient of x from that of y, of the same shape: the rows rotated back.
    ///
    /// # Errors
    /// As [`RotaryTable::rotate`].
    pub fn rotate_back(
        &self,
        pairs: Pairs,
        positions: Positions,
        d_y: &Tensor,
        d_x: &mut TensorMut,
    ) -> Result<(), Error> {
        self.turn(Direction::Back, pairs, positions, d_y, d_x)
    }

    fn turn(
        &self,
        direction: Direction,
        pairs: Pairs,
        positions: Positions,
        x: &Tensor,
        y: &mut TensorMut,
    ) -> Result<(), Error> {
        let (from, to) = (x.describe(), y.describe());
        let (given, needed) = (to.layout.shape(), from.layout.shape());
        if given != needed {
            return Err(RotaryError::Shape { given, needed }.into());
        }
        if to.dtype != from.dtype {
            let (given, needed) = (to.dtype, from.dtype);
            return Err(RotaryError::Dtype { given, needed }.into());
        }
        for given in [from.location, to.location] {
            if given != Location::Host {
                let needed = Location::Host;
                return Err(ProblemError::OtherDevice { given, needed }.into());
            }
        }
        if self.rotary_dim > from.layout.head_dim {
            return Err(RotaryError::HeadDim {
                rotary_dim: self.rotary_dim,
                head_dim: from.layout.head_dim,
            }
            .into());
        }
        if !to.layout.nests() {
            return Err(RotaryError::Overlapping { given: to.layout }.into());
        }
        self.check_positions(positions, needed)?;
        let turn = Turn {
            cos: &self.cos,
            sin: &self.sin,
            n_pairs: self.rotary_dim / 2,
            pairs,
            direction,
        };
        Ok(rotary::turn(turn, positions, x, y)?)
    }

    fn check_positions(
        &self,
        positions: Positions,
        [batch, seqlen, ..]: [usize; 4],
    ) -> Result<(), RotaryError> {
        let n_positions = self.n_positions();
        let limit = i64::try_from(n_positions).unwrap_or(i64::MAX);
        // So many rows, from this position on.
        let in_table = |first: i64, n: usize| {
            let last = first.saturating_add(i64::try_from(n).unwrap_or(i64::MAX) - 1);
            if n == 0 || first >= 0 && last < limit {
                return Ok(());
            }
            let given = if first < 0 { first } else { last };
            Err(RotaryError::Position { given, n_positions })
        };
        let count = |what, given: usize, needed: usize| match given == needed {
            true => Ok(()),
            false => Err(RotaryError::Positions {
                what,
                given,
                needed,
            }),
        };
        match positions {
            Positions::From(first) if batch > 0 => {
                in_table(i64::try_from(first).unwrap_or(i64::MAX), seqlen)
            }
            Positions::From(_) => Ok(()),
            Positions::FromEach(firsts) => {
                count("batch entries", firsts.len(), batch)?;
                firsts
                    .iter()
                    .try_for_each(|&first| in_table(first.into(), seqlen))
            }
            Positions::OfRows(rows) => {
                count("rows", rows.len(), batch.saturating_mul(seqlen))?;
                rows.iter().try_for_each(|&row| in_table(row.into(), 1))
            }
        }
    }
}
