//! What a run takes beside tensors and lengths.

use std::iter::zip;

use ferroflash::arguments::Argument;
use ferroflash::error::ProblemError;
use ferroflash::expression::ElementType;
use ferroflash::prepared::Layouts;
use ferroflash::{Error, Gradients, Inputs, Problem};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::memory::Location;
use super::score::{Taken, Values};

/// What a run takes beside tensors and lengths, all of which may be left out: of memory its address, 0 where there is none.
#[derive(Default)]
pub(crate) struct Beside {
    /// Of k and v, where these are in 8 bits.
    pub(super) scales: [u64; 2],
    /// What expressions take.
    pub(super) values: Values,
    /// The sinks of the heads.
    pub(super) sinks: u64,
    /// Seed and offset of dropout.
    pub(super) dropout: Option<Rng>,
    /// The gradient of the sinks, which is written.
    d_sinks: u64,
    /// Gradients of tensors that expressions read, which are written: in the order of the values.
    d_tensors: Vec<u64>,
}

/// Seed and offset of dropout.
#[derive(FromPyObject)]
pub(super) enum Rng {
    /// Numbers.
    Values(u64, u64),
    /// The address of two u64.
    State(u64),
}

/// A dict of these names.
impl<'py> FromPyObject<'_, 'py> for Beside {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Beside> {
        let mut beside = Beside::default();
        for (name, value) in &*given.cast::<PyDict>()? {
            match name.extract::<&str>()? {
                "scales" => beside.scales = value.extract()?,
                "values" => beside.values = value.extract()?,
                "sinks" => beside.sinks = value.extract()?,
                "dropout" => beside.dropout = Some(value.extract()?),
                "d_sinks" => beside.d_sinks = value.extract()?,
                "d_tensors" => beside.d_tensors = value.extract()?,
                name => {
                    let allowed = "scales, values, sinks, dropout, d_sinks, d_tensors";
                    let text = format!("beside has {name}; allowed: {allowed}");
                    return Err(PyTypeError::new_err(text));
                }
            }
        }
        Ok(beside)
    }
}

impl Beside {
    /// The inputs with sinks, seed and offset, and what expressions take.
    ///
    /// # Safety
    /// As for [`Location::tensor`], of every address.
    pub(super) unsafe fn give<'a>(
        &self,
        inputs: Inputs<'a>,
        location: Location<'a>,
        problem: &Problem,
        taken: &Taken,
    ) -> Result<Inputs<'a>, Error> {
        // SAFETY: as the caller promises.
        let mut inputs = unsafe { taken.give(inputs, location, &self.values)? };
        if problem.has_sinks() {
            let argument = Argument::Sinks;
            // SAFETY: as the caller promises.
            let sinks = unsafe { location.statistics(argument, self.sinks, problem.heads_q())? };
            inputs = inputs.sinks(sinks);
        }
        Ok(match self.dropout {
            None => inputs,
            Some(Rng::Values(seed, offset)) => inputs.dropout_rng(seed, offset),
            // SAFETY: as the caller promises.
            Some(Rng::State(address)) => inputs.dropout_state(unsafe { location.state(address)? }),
        })
    }
}

/// Which gradients a backward pass gives beside those of q, k and v.
pub(super) struct Wanted {
    sinks: bool,
    /// In the order of the tensors that expressions take.
    tensors: Vec<Option<WantedTensor>>,
}

/// The gradient of a tensor that the score reads.
struct WantedTensor {
    name: &'static str,
    element: ElementType,
    n_elems: usize,
}

impl Wanted {
    /// Of the sinks, and of these of the tensors; an error says which of them has none.
    pub(super) fn of(
        problem: &Problem,
        taken: &Taken,
        sinks: bool,
        tensors: &[bool],
    ) -> Result<Wanted, Error> {
        let of_tensor = |(&(name, element), &wanted): (&(&'static str, ElementType), &bool)| {
            if !wanted {
                return Ok(None);
            }
            let shape = problem.score_gradient_shape(name);
            let shape = shape.map_err(ProblemError::Score)?;
            let what = "the gradient of a tensor that the score reads";
            let n_elems = shape.iter().try_fold(1, |n: usize, &m| n.checked_mul(m));
            let n_elems = n_elems.ok_or(ProblemError::SizeOverflow { what })?;
            Ok(Some(WantedTensor {
                name,
                element,
                n_elems,
            }))
        };
        let tensors = zip(taken.tensors(), tensors).map(of_tensor);
        Ok(Wanted {
            sinks,
            tensors: tensors.collect::<Result<_, Error>>()?,
        })
    }

    /// The layouts of a prepared call that gives these.
    pub(super) fn asked(&self, problem: &Problem, layouts: Layouts) -> Layouts {
        let layouts = match problem.has_sinks() && !self.sinks {
            true => layouts.without(Argument::DSinks),
            false => layouts,
        };
        let arguments = zip(Argument::SCORE_TENSOR_GRADIENTS, &self.tensors);
        let wanted = arguments.filter(|(_, wanted)| wanted.is_some());
        wanted.fold(layouts, |layouts, (argument, _)| layouts.giving(argument))
    }

    /// The gradients with these, too.
    ///
    /// # Safety
    /// As for [`Location::tensor_mut`], of every address of a gradient.
    pub(super) unsafe fn give<'a>(
        &self,
        mut gradients: Gradients<'a>,
        location: Location<'a>,
        problem: &Problem,
        beside: &Beside,
    ) -> Result<Gradients<'a>, Error> {
        if self.sinks {
            let (argument, address) = (Argument::DSinks, beside.d_sinks);
            // SAFETY: as the caller promises.
            let d_sinks = unsafe { location.statistics_mut(argument, address, problem.heads_q())? };
            gradients = gradients.d_sinks(d_sinks);
        }
        for (wanted, &address) in zip(&self.tensors, &beside.d_tensors) {
            let Some(of) = wanted else {
                continue;
            };
            // SAFETY: as the caller promises.
            let gradient =
                unsafe { location.elements_mut(of.name, address, of.n_elems, of.element)? };
            gradients = gradients.d_score_tensor(of.name, gradient);
        }
        Ok(gradients)
    }
}
