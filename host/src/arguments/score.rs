//! What a call gives the expressions of its scores, by name.

use ferroflash_kernels::expression::{MAX_PARAMS, MAX_TENSORS, ParamValue};
use ferroflash_kernels::params::ScoreParams;

use super::{Argument, Inputs, Operands};
use crate::tensor::{ReadTensor, Vector};

/// Parameters and tensors of the expressions of a problem, by name, in any order: see [`Inputs::score_param`] and [`Inputs::score_tensor`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ScoreInputs<'a> {
    pub(crate) params: Named<'a, ParamValue, MAX_PARAMS>,
    pub(crate) tensors: Named<'a, ReadTensor<'a>, MAX_TENSORS>,
}

/// Values with names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a, T, const N: usize> {
    values: [Option<(&'a str, T)>; N],
    n_given: usize,
}

impl<T, const N: usize> Default for Named<'_, T, N> {
    fn default() -> Self {
        Named {
            values: [const { None }; N],
            n_given: 0,
        }
    }
}

impl<'a, T, const N: usize> Named<'a, T, N> {
    /// One more. Those for which there is no room are counted: the call refuses them.
    fn push(&mut self, name: &'a str, value: T) {
        if let Some(place) = self.values.get_mut(self.n_given) {
            *place = Some((name, value));
        }
        self.n_given += 1;
    }

    /// How many were given.
    pub(crate) fn n_given(&self) -> usize {
        self.n_given
    }

    /// Those for which there was room.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(&'a str, T)> {
        self.values.iter().flatten()
    }

    /// The value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        let found = self.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| value)
    }
}

impl<'a> Inputs<'a> {
    /// With the value of a parameter that an expression of the problem names. It may be another in each call: kernels are not compiled anew,
    /// and a prepared call takes any.
    #[must_use]
    pub fn score_param(mut self, name: &'a str, value: impl Into<ParamValue>) -> Inputs<'a> {
        self.score.params.push(name, value.into());
        self
    }

    /// With a tensor that an expression of the problem names. It may be another in each call, of another shape too.
    #[must_use]
    pub fn score_tensor(mut self, name: &'a str, tensor: ReadTensor<'a>) -> Inputs<'a> {
        self.score.tensors.push(name, tensor);
        self
    }
}

impl<'a> Operands<'a> {
    /// Puts what the call gives by name there.
    pub(super) fn put_score_inputs(&mut self, given: ScoreInputs<'a>) {
        self.score_inputs = given;
    }

    /// What the call gives by name.
    pub(crate) fn score_inputs(&self) -> &ScoreInputs<'a> {
        &self.score_inputs
    }

    /// Puts what validation made of it there; the tensors in the order in which expressions take them.
    pub(crate) fn put_score(
        &mut self,
        params: ScoreParams,
        tensors: impl IntoIterator<Item = Vector<'a>>,
    ) {
        self.values.score = params;
        for (argument, tensor) in Argument::SCORE_TENSORS.into_iter().zip(tensors) {
            self.put(argument, tensor);
        }
    }
}
