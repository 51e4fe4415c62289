//! Problem × arguments → [`Checked`]: each rule is one function, each refusal one variant of [`ProblemError`].
//!
//! Looks at sizes, types and address spaces, never at memory contents or a device. A [`Checked`] is the proof that the rules hold.

#[doc(hidden)]
pub mod merge;
#[doc(hidden)]
pub mod operation;
pub mod quantize;
#[doc(hidden)]
pub mod rotary;
mod score;
mod sizes;
mod weights;

use ferroflash_expression::{Seqlens, WithoutBand};
use ferroflash_kernels::params::Window;
use ferroflash_kernels::spec::{Constant, Spec};

use crate::arguments::{Access, Argument, Arguments, Form, Given, Need, Operands, Presence, need};
use crate::dtype::ScalarType;
use crate::error::ProblemError;
use crate::problem::Problem;
use crate::tensor::{Description, Layout, Location, VectorDescription};
pub use crate::terms::Pass;

pub(crate) use sizes::descales;
use sizes::no_lengths_beside_a_block_mask;
pub use sizes::sizes;
pub(crate) use weights::weights;

/// The largest head_dim, and head_dim_v, that any backend takes.
///
/// The [module](mod@crate::plan) has an example.
pub const MAX_HEAD_DIM: usize = 576;

/// A problem with arguments that fit it.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    problem: Problem,
    pass: Pass,
    softmax_scale: f32,
    location: Location,
    arguments: Arguments,
}

impl Checked {
    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Which pass.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// The factor of the scores: finite, greater than 0.
    pub fn softmax_scale(&self) -> f32 {
        self.softmax_scale
    }

    /// The arguments: all that the pass needs, and nothing that it does not take.
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// The same with those terms of a mask expression that bound a band moved into the problem's mask; the rest of the expression stays. Not done
    /// with a block mask, whose full blocks show what the mask hides, nor with a prefix. Parameters and tensors keep their indices.
    pub(crate) fn with_band_in_mask(&self) -> Checked {
        let problem = &self.problem;
        let rows = |seqlen: usize| u32::try_from(seqlen).unwrap_or(u32::MAX);
        let seqlens = Seqlens {
            seqlen_q: rows(problem.seqlen_q()),
            seqlen_k: rows(problem.seqlen_k()),
            vary: self.has_lengths() || problem.pages().is_some(),
        };
        let is_plain = problem.block_mask().is_none() && problem.mask().prefix() == 0;
        let mask = problem.mask_expression().filter(|_| is_plain);
        match mask.and_then(|mask| mask.expression().without_band(seqlens)) {
            Some(WithoutBand { sides, rest }) => Checked {
                problem: problem.with_band(sides, rest),
                ..*self
            },
            None => *self,
        }
    }

    /// The same with q, k and v in the problem's type, side by side: what those in 8 bits stand for, rounded.
    pub(crate) fn dequantized(&self) -> Checked {
        let problem = self.problem.dequantized();
        let tensors = [Argument::Q, Argument::K, Argument::V];
        let scales = [Argument::QDescale, Argument::KDescale, Argument::VDescale];
        let arguments = Arguments::from_fn(|argument| {
            let given = *self.arguments.get(argument)?;
            match given {
                Given::Tensor(tensor) if tensors.contains(&argument) => {
                    Some(tensor.dense(problem.dtype().into()).into())
                }
                _ => Some(given).filter(|_| !scales.contains(&argument)),
            }
        });
        Checked {
            problem,
            arguments,
            ..*self
        }
    }

    /// The memory in which every argument is.
    pub fn location(&self) -> Location {
        self.location
    }

    /// Whether a kernel reads the lengths of sequences from memory.
    pub fn has_lengths(&self) -> bool {
        let is_length = |argument| match self.arguments.vector(argument) {
            Some(vector) => vector.dtype == ScalarType::I32,
            None => false,
        };
        let mut others = Argument::ALL.into_iter();
        others.any(|argument| is_length(argument) && !Argument::SCORE_TENSORS.contains(&argument))
    }

    /// The constants that kernels are compiled with for this call.
    pub(crate) fn spec(&self) -> Spec {
        match self.has_lengths() {
            true => self.problem.spec().with(Constant::Lengths),
            false => self.problem.spec(),
        }
    }

    /// The mask's sides, as kernels take them. If sequences have their own lengths, those of a sequence without rows.
    pub(crate) fn window(&self) -> Window {
        match self.has_lengths() {
            true => self.problem.window_of(0, 0),
            false => self.problem.window_of(
                self.problem.seqlen_q() as u32,
                self.problem.seqlen_k() as u32,
            ),
        }
    }

    /// Number of rows of the scores: batch · heads_q · seqlen_q.
    pub fn n_rows(&self) -> u64 {
        self.problem.n_rows()
    }
}

/// Checks what a call gives by value and by name, and adds it to the arguments where kernels expect it.
pub(crate) fn bind(problem: &Problem, operands: &mut Operands) -> Result<(), ProblemError> {
    let argument = Argument::DropoutState;
    match (problem.dropout().is_some(), operands.has_dropout_rng()) {
        (true, false) => return Err(ProblemError::Missing { argument }),
        (false, true) => return Err(ProblemError::NotTaken { argument }),
        _ => {}
    }
    Ok(score::bind(problem, operands)?)
}

/// Checks what a pass was given.
///
/// The [module](mod@crate::plan) has an example.
pub fn check(problem: &Problem, pass: Pass, arguments: Arguments) -> Result<Checked, ProblemError> {
    sizes(problem)?;
    let problem = problem.with_given(arguments.which());
    let location = fit(&problem, pass, &arguments)?;
    Ok(Checked {
        problem,
        pass,
        softmax_scale: problem.scale(),
        location,
        arguments,
    })
}

/// The rules for arguments, for a problem with valid sizes. Returns the memory they are in.
pub(crate) fn fit(
    problem: &Problem,
    pass: Pass,
    arguments: &Arguments,
) -> Result<Location, ProblemError> {
    if pass == Pass::Backward && problem.pages().is_some() {
        let what = "the backward pass";
        return Err(ProblemError::PagesWith { what });
    }
    if pass != Pass::Forward && problem.fp8_kv().is_some() {
        let what = "the backward pass or the weights";
        return Err(ProblemError::Fp8KvWith { what });
    }
    if pass == Pass::ForwardWithWeights && problem.fp8().is_some() {
        let what = "the weights";
        return Err(ProblemError::Fp8With { what });
    }
    if pass != Pass::Forward && problem.values_in_keys() {
        let what = "the backward pass or the weights";
        return Err(ProblemError::ValuesInKeysWith { what });
    }
    score::derivative(problem, pass)?;
    no_lengths_beside_a_block_mask(problem, arguments)?;
    let need = |argument| need(problem, pass, argument);
    all_fit(
        arguments,
        Argument::Q,
        need,
        |argument, need, given, location| fits(argument, need, given, Some(problem), location),
    )
}

/// Checks that a call is given all that it needs and nothing that it does not take, and that each argument passes `fits`. Returns the memory of the
/// first argument, in which the others must be, too.
fn all_fit(
    arguments: &Arguments,
    first: Argument,
    need: impl Fn(Argument) -> Option<Need>,
    fits: impl Fn(Argument, &Need, &Given, Location) -> Result<(), ProblemError>,
) -> Result<Location, ProblemError> {
    let missing = |argument| ProblemError::Missing { argument };
    let location = arguments.get(first).ok_or(missing(first))?.location();
    for argument in Argument::ALL {
        match (need(argument), arguments.get(argument)) {
            (Some(need), Some(given)) => fits(argument, &need, given, location)?,
            (Some(need), None) if need.presence == Presence::Required => {
                return Err(missing(argument));
            }
            (None, Some(_)) => return Err(ProblemError::NotTaken { argument }),
            (_, None) => {}
        }
    }
    Ok(location)
}

/// Checks a problem whose arguments do not exist yet: assumes the required ones, contiguous, aligned, in one memory. For plans made ahead.
///
/// The [module](mod@crate::plan) has an example.
pub fn without_tensors(
    problem: &Problem,
    pass: Pass,
    location: Location,
) -> Result<Checked, ProblemError> {
    check(problem, pass, needed(problem, pass, location)?)
}

/// The required arguments of a pass, contiguous and aligned, in one memory.
pub(crate) fn needed(
    problem: &Problem,
    pass: Pass,
    location: Location,
) -> Result<Arguments, ProblemError> {
    sizes(problem)?;
    let mut arguments = Arguments::default();
    for argument in Argument::ALL {
        match need(problem, pass, argument) {
            Some(need) if need.presence.is_expected() => {
                arguments = arguments.with(argument, unplaced(&need, Some(problem), location)?);
            }
            _ => {}
        }
    }
    Ok(arguments)
}

/// An argument without an address yet, of attention or of another operation.
pub(crate) fn unplaced(
    need: &Need,
    problem: Option<&Problem>,
    location: Location,
) -> Result<Given, ProblemError> {
    let tensor = |layout, dtype| Description {
        layout,
        dtype,
        location,
        address: 0,
    };
    Ok(match need.form {
        Form::Tensor { shape, dtype } => tensor(Layout::bshd(shape)?, dtype).into(),
        Form::Weights => {
            let argument = Argument::Weights;
            let problem = problem.ok_or(ProblemError::NotTaken { argument })?;
            tensor(problem.weights_layout()?, problem.dtype().into()).into()
        }
        Form::Vector { dtype, n_elems } => {
            VectorDescription::unplaced(n_elems, dtype, location).into()
        }
        // How many there are no plan asks.
        Form::Elements { dtype } => VectorDescription::unplaced(1, dtype, location).into(),
    })
}

/// Whether an argument is what a pass of attention, or another operation, needs.
fn fits(
    argument: Argument,
    need: &Need,
    given: &Given,
    problem: Option<&Problem>,
    location: Location,
) -> Result<(), ProblemError> {
    match (need.form, given) {
        (Form::Tensor { shape, dtype }, Given::Tensor(tensor)) => {
            tensor_fits(argument, tensor, shape, dtype)?;
        }
        (Form::Weights, Given::Tensor(tensor)) => {
            let problem = problem.ok_or(ProblemError::NotTaken { argument })?;
            weights_fit(argument, tensor, problem)?;
        }
        (Form::Vector { dtype, n_elems }, Given::Vector(vector)) => {
            vector_fits(argument, vector, dtype, n_elems)?;
        }
        (Form::Elements { dtype }, Given::Vector(vector)) => {
            vector_fits(argument, vector, dtype, vector.n_elems)?;
        }
        (Form::Tensor { .. } | Form::Weights, Given::Vector(_)) => {
            let needed = "tensor";
            return Err(ProblemError::OtherForm { argument, needed });
        }
        (Form::Vector { .. } | Form::Elements { .. }, Given::Tensor(_)) => {
            let needed = "vector";
            return Err(ProblemError::OtherForm { argument, needed });
        }
    }
    same_location(argument, given.location(), location)?;
    match given {
        Given::Tensor(tensor) if need.access != Access::Read => has_no_aliases(argument, tensor),
        _ => Ok(()),
    }
}

fn tensor_fits(
    argument: Argument,
    tensor: &Description,
    needed: [usize; 4],
    dtype: ScalarType,
) -> Result<(), ProblemError> {
    let given = tensor.layout.shape();
    if given != needed {
        return Err(ProblemError::ShapeMismatch {
            argument,
            given,
            needed,
        });
    }
    has_type(argument, tensor.dtype, dtype)?;
    // Elements that a stride of 0 repeats count each time: a walk over the tensor visits each.
    let n_elems = tensor.layout.extent_elems()?.max(tensor.layout.n_elems()?);
    n_elems
        .checked_mul(dtype.size_bytes())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .map(|_| ())
        .ok_or(ProblemError::SizeOverflow {
            what: "the bytes of a tensor",
        })
}

/// The kernels write whole rows of the weights, so their layout is fixed.
fn weights_fit(
    argument: Argument,
    weights: &Description,
    problem: &Problem,
) -> Result<(), ProblemError> {
    let needed = problem.weights_layout()?;
    tensor_fits(argument, weights, needed.shape(), problem.dtype().into())?;
    if weights.layout == needed {
        Ok(())
    } else {
        Err(ProblemError::WeightsLayout {
            given: weights.layout,
            needed,
        })
    }
}

/// A vector of this many numbers of this type, in any memory.
pub(crate) fn vector_fits(
    argument: Argument,
    given: &VectorDescription,
    dtype: ScalarType,
    needed: u64,
) -> Result<(), ProblemError> {
    if given.n_elems != needed {
        return Err(ProblemError::ElementCount {
            argument,
            given: given.n_elems,
            needed,
        });
    }
    has_type(argument, given.dtype, dtype)?;
    let alignment = dtype.size_bytes() as u64;
    if needed > 0 && !given.address.is_multiple_of(alignment) {
        return Err(ProblemError::Misaligned {
            argument,
            address: given.address,
            alignment,
        });
    }
    Ok(())
}

fn has_type(argument: Argument, given: ScalarType, needed: ScalarType) -> Result<(), ProblemError> {
    if given == needed {
        Ok(())
    } else {
        Err(ProblemError::DtypeMismatch {
            argument,
            given,
            needed,
        })
    }
}

fn same_location(
    argument: Argument,
    given: Location,
    needed: Location,
) -> Result<(), ProblemError> {
    if given == needed {
        Ok(())
    } else {
        Err(ProblemError::MixedPlaces {
            argument,
            given,
            needed,
        })
    }
}

fn has_no_aliases(argument: Argument, tensor: &Description) -> Result<(), ProblemError> {
    if tensor.layout.nests() {
        Ok(())
    } else {
        Err(ProblemError::OutputAliases {
            argument,
            layout: tensor.layout,
        })
    }
}
