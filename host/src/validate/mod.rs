//! Problem × tensors → [`Checked`]: every rule one function, every refusal one variant of [`ProblemError`].
//!
//! Looks at sizes, types and places, never at memory or a device. Holding a [`Checked`] is the proof that the rules hold.

mod tensors;

pub use tensors::{ForwardTensors, GradientTensors};

use crate::dtype::Dtype;
use crate::error::{Argument, ProblemError};
use crate::problem::Problem;
use crate::tensor::{Description, LseDescription, Place};

/// The largest head_dim that any backend takes.
pub const MAX_HEAD_DIM: usize = 256;

/// Which pass is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// o and lse.
    Forward,
    /// o, lse and the weights.
    ForwardWithWeights,
    /// d_q, d_k and d_v.
    Backward,
}

/// A problem with tensors that fit it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    problem: Problem,
    pass: Pass,
    softmax_scale: f32,
    forward: ForwardTensors,
    weights: Option<Description>,
    gradients: Option<GradientTensors>,
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

    /// q, k, v, o and lse.
    pub fn forward(&self) -> &ForwardTensors {
        &self.forward
    }

    /// The weights, in a pass that gives them.
    pub fn weights(&self) -> Option<&Description> {
        self.weights.as_ref()
    }

    /// d_o, d_lse, d_q, d_k and d_v, in a backward pass.
    pub fn gradients(&self) -> Option<&GradientTensors> {
        self.gradients.as_ref()
    }

    /// In whose memory every tensor lies.
    pub fn place(&self) -> Place {
        self.forward.q.place
    }

    /// Number of rows of the scores: batch · heads_q · seqlen_q.
    pub fn n_rows(&self) -> u64 {
        self.forward.lse.n_elems
    }
}

/// Checks a forward pass.
pub fn forward(problem: &Problem, tensors: ForwardTensors) -> Result<Checked, ProblemError> {
    check(problem, Pass::Forward, tensors, None, None)
}

/// Checks a forward pass that gives the weights too: a tensor as [`Problem::weights_layout`] says.
pub fn forward_with_weights(
    problem: &Problem,
    tensors: ForwardTensors,
    weights: Description,
) -> Result<Checked, ProblemError> {
    check(
        problem,
        Pass::ForwardWithWeights,
        tensors,
        Some(weights),
        None,
    )
}

/// Checks a backward pass.
pub fn backward(
    problem: &Problem,
    saved: ForwardTensors,
    gradients: GradientTensors,
) -> Result<Checked, ProblemError> {
    check(problem, Pass::Backward, saved, None, Some(gradients))
}

/// Checks a problem whose tensors do not exist yet: contiguous, aligned, in one place. For plans made ahead.
pub fn without_tensors(
    problem: &Problem,
    pass: Pass,
    place: Place,
) -> Result<Checked, ProblemError> {
    sizes(problem)?;
    let like_q = Description::contiguous(problem.shape_q(), problem.dtype, place)?;
    let like_k = Description::contiguous(problem.shape_k(), problem.dtype, place)?;
    let lse = LseDescription::contiguous(n_rows(problem)?, place);
    let tensors = ForwardTensors {
        q: like_q,
        k: like_k,
        v: like_k,
        o: like_q,
        lse,
    };
    let with_gradients = GradientTensors {
        d_o: like_q,
        d_lse: None,
        d_q: like_q,
        d_k: like_k,
        d_v: like_k,
    };
    match pass {
        Pass::Forward => forward(problem, tensors),
        Pass::Backward => backward(problem, tensors, with_gradients),
        Pass::ForwardWithWeights => {
            let layout = problem.weights_layout()?;
            let weights = Description { layout, ..like_q };
            forward_with_weights(problem, tensors, weights)
        }
    }
}

fn check(
    problem: &Problem,
    pass: Pass,
    forward: ForwardTensors,
    weights: Option<Description>,
    gradients: Option<GradientTensors>,
) -> Result<Checked, ProblemError> {
    sizes(problem)?;
    let place = forward.q.place;
    let q_like = [(Argument::Q, forward.q), (Argument::O, forward.o)];
    let k_like = [(Argument::K, forward.k), (Argument::V, forward.v)];
    for (argument, tensor) in q_like {
        fits(argument, &tensor, problem.shape_q(), problem.dtype, place)?;
    }
    for (argument, tensor) in k_like {
        fits(argument, &tensor, problem.shape_k(), problem.dtype, place)?;
    }
    rows(Argument::Lse, &forward.lse, problem, place)?;
    if let Some(weights) = &weights {
        weights_fit(weights, problem, place)?;
    }
    match &gradients {
        None => output(Argument::O, &forward.o)?,
        Some(gradients) => {
            for (argument, tensor) in [(Argument::DO, gradients.d_o), (Argument::DQ, gradients.d_q)]
            {
                fits(argument, &tensor, problem.shape_q(), problem.dtype, place)?;
            }
            for (argument, tensor) in [(Argument::DK, gradients.d_k), (Argument::DV, gradients.d_v)]
            {
                fits(argument, &tensor, problem.shape_k(), problem.dtype, place)?;
                output(argument, &tensor)?;
            }
            output(Argument::DQ, &gradients.d_q)?;
            if let Some(d_lse) = &gradients.d_lse {
                rows(Argument::DLse, d_lse, problem, place)?;
            }
        }
    }
    Ok(Checked {
        problem: *problem,
        pass,
        softmax_scale: problem.scale(),
        forward,
        weights,
        gradients,
    })
}

/// The rules that concern the problem alone.
pub fn sizes(problem: &Problem) -> Result<(), ProblemError> {
    head_dim(problem)?;
    heads(problem)?;
    softmax_scale(problem)?;
    n_rows(problem)?;
    n_keys(problem)?;
    Ok(())
}

fn head_dim(problem: &Problem) -> Result<(), ProblemError> {
    let (min, max) = (1, MAX_HEAD_DIM);
    if (min..=max).contains(&problem.head_dim) {
        Ok(())
    } else {
        Err(ProblemError::HeadDimOutOfRange {
            given: problem.head_dim,
            min,
            max,
        })
    }
}

fn heads(problem: &Problem) -> Result<(), ProblemError> {
    let (heads_q, heads_k) = (problem.heads_q, problem.heads_k);
    let both_none = heads_q == 0 && heads_k == 0;
    if both_none || (heads_q > 0 && heads_k > 0 && heads_q.is_multiple_of(heads_k)) {
        Ok(())
    } else {
        Err(ProblemError::HeadsNotMultiple { heads_q, heads_k })
    }
}

fn softmax_scale(problem: &Problem) -> Result<(), ProblemError> {
    // Exponentials are computed to base 2, so the scale times log₂ e has to be finite as well.
    let usable = |given: f32| given > 0.0 && (given * std::f32::consts::LOG2_E).is_finite();
    match problem.softmax_scale {
        Some(given) if !usable(given) => Err(ProblemError::SoftmaxScale { given }),
        _ => Ok(()),
    }
}

/// batch · heads_q · seqlen_q.
pub(crate) fn n_rows(problem: &Problem) -> Result<u64, ProblemError> {
    let what = "batch · heads_q · seqlen_q";
    count([problem.batch, problem.heads_q, problem.seqlen_q], what)
}

/// batch · heads_k · seqlen_k.
fn n_keys(problem: &Problem) -> Result<u64, ProblemError> {
    let what = "batch · heads_k · seqlen_k";
    count([problem.batch, problem.heads_k, problem.seqlen_k], what)
}

/// The product of three sizes. Where one is 0 the others' product has to be countable all the same.
fn count(sizes: [usize; 3], what: &'static str) -> Result<u64, ProblemError> {
    let product = sizes
        .iter()
        .filter(|&&size| size > 0)
        .try_fold(1u64, |product, &size| product.checked_mul(size as u64))
        .filter(|&product| product <= (isize::MAX / 4) as u64)
        .ok_or(ProblemError::SizeOverflow { what })?;
    Ok(if sizes.contains(&0) { 0 } else { product })
}

fn fits(
    argument: Argument,
    tensor: &Description,
    shape: [usize; 4],
    dtype: Dtype,
    place: Place,
) -> Result<(), ProblemError> {
    let given = tensor.layout.shape();
    if given != shape {
        return Err(ProblemError::ShapeMismatch {
            argument,
            given,
            needed: shape,
        });
    }
    if tensor.dtype != dtype {
        return Err(ProblemError::DtypeMismatch {
            argument,
            given: tensor.dtype,
            needed: dtype,
        });
    }
    same_place(argument, tensor.place, place)?;
    // Elements that a stride of 0 repeats count each time: whoever walks over the tensor counts them.
    let n_elems = tensor.layout.extent_elems()?.max(tensor.layout.n_elems()?);
    n_elems
        .checked_mul(dtype.size_bytes())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or(ProblemError::SizeOverflow {
            what: "the bytes of a tensor",
        })?;
    Ok(())
}

/// The kernels write whole rows of the weights, so their layout is fixed.
fn weights_fit(weights: &Description, problem: &Problem, place: Place) -> Result<(), ProblemError> {
    let argument = Argument::Weights;
    let needed = problem.weights_layout()?;
    fits(argument, weights, needed.shape(), problem.dtype, place)?;
    if weights.layout == needed {
        Ok(())
    } else {
        Err(ProblemError::WeightsLayout {
            given: weights.layout,
            needed,
        })
    }
}

fn same_place(argument: Argument, given: Place, needed: Place) -> Result<(), ProblemError> {
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

fn output(argument: Argument, tensor: &Description) -> Result<(), ProblemError> {
    if tensor.layout.nests() {
        Ok(())
    } else {
        Err(ProblemError::OutputAliases {
            argument,
            layout: tensor.layout,
        })
    }
}

/// Statistics of the problem's rows, or their gradient.
fn rows(
    argument: Argument,
    given: &LseDescription,
    problem: &Problem,
    place: Place,
) -> Result<(), ProblemError> {
    rows_fit(argument, given, n_rows(problem)?)?;
    same_place(argument, given.place, place)
}

/// Statistics of as many rows, wherever they lie.
pub(crate) fn rows_fit(
    argument: Argument,
    given: &LseDescription,
    needed: u64,
) -> Result<(), ProblemError> {
    if given.n_elems != needed {
        return Err(ProblemError::ElementCount {
            argument,
            given: given.n_elems,
            needed,
        });
    }
    if given.dtype != Dtype::F32 {
        return Err(ProblemError::DtypeMismatch {
            argument,
            given: given.dtype,
            needed: Dtype::F32,
        });
    }
    let alignment = Dtype::F32.size_bytes() as u64;
    if needed > 0 && !given.address.is_multiple_of(alignment) {
        return Err(ProblemError::Misaligned {
            argument,
            address: given.address,
            alignment,
        });
    }
    Ok(())
}
