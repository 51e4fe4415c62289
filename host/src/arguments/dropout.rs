//! The seed and the offset of a call's dropout.

use super::declare::Put;
use super::{Argument, Inputs, Operands};
use crate::tensor::Vector;

/// The source of dropout's random bytes: see [`ProblemBuilder::dropout`](crate::ProblemBuilder::dropout).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DropoutRng<'a> {
    /// Numbers that the call gives.
    Values {
        /// The seed.
        seed: u64,
        /// The offset.
        offset: u64,
    },
    /// Memory: u64 `[2]`, the seed and the offset. Kernels read it, so a captured graph drops other weights when these numbers change.
    State(Vector<'a>),
}

impl<'a> Inputs<'a> {
    /// With the seed and the offset of dropout: [`DropoutRng::Values`]. The backward pass takes those of its forward pass; every other call should
    /// have a different offset or seed.
    #[must_use]
    pub fn dropout_rng(self, seed: u64, offset: u64) -> Inputs<'a> {
        Inputs {
            dropout: Some(DropoutRng::Values { seed, offset }),
            ..self
        }
    }

    /// The same from memory: [`DropoutRng::State`].
    #[must_use]
    pub fn dropout_state(self, state: impl Into<Vector<'a>>) -> Inputs<'a> {
        Inputs {
            dropout: Some(DropoutRng::State(state.into())),
            ..self
        }
    }
}

impl<'o> Put<'o> for Option<DropoutRng<'o>> {
    fn put(self, operands: &mut Operands<'o>) {
        match self {
            Some(DropoutRng::Values { seed, offset }) => operands.put_dropout([seed, offset]),
            Some(DropoutRng::State(state)) => operands.put(Argument::DropoutState, state),
            None => {}
        }
    }
}

impl Operands<'_> {
    /// Adds seed and offset, as numbers.
    pub(crate) fn put_dropout(&mut self, seed_and_offset: [u64; 2]) {
        self.has_dropout_values = true;
        self.values.dropout = seed_and_offset;
    }

    /// Whether seed and offset were given, as numbers or in memory.
    pub(crate) fn has_dropout_rng(&self) -> bool {
        self.has_dropout_values || self.vector(Argument::DropoutState).is_some()
    }
}
