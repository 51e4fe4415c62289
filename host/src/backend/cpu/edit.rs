//! Panels of scores that an expression edits, pair by pair.
//!
//! Panels hold q · k. After the edit they hold the new scores, already times softmax_scale, and −∞ where an expression hides the key. A mask
//! expression alone changes no other score, so that none is rounded twice. The problem's own mask comes later: its −∞ would not stay.

use std::ops::Range;

use ferroflash_expression::ptx::Edit;
use ferroflash_expression::{
    Evaluator, Expression, Index, MAX_RANK, ParamValue, ScoreIndices, Tensors, Type,
};
use ferroflash_kernels::params::ScoreParams;

use super::buffer::Panel;
use super::sizes::Location;
use crate::arguments::{Argument, Operands};
use crate::dtype::HostData;
use crate::error::{ProblemError, ScoreError};
use crate::problem::Problem;
use crate::tensor::Memory;

/// The expressions of a call, shared by all threads.
#[derive(Debug)]
pub(super) struct Edits<'m> {
    edit: &'static Edit,
    score: Given<'m>,
    mask: Given<'m>,
    derivative: Given<'m>,
    /// Of each tensor whose gradient is wanted: its edit, and what the derivative by its elements is given.
    of_tensors: Vec<Option<(&'static Edit, Given<'m>)>>,
}

/// The inputs of one expression, in the expression's own order.
#[derive(Debug, Default)]
struct Given<'m> {
    params: Vec<ParamValue>,
    tensors: HostTensors<'m>,
}

/// The tensors that an expression reads.
#[derive(Debug, Default)]
struct HostTensors<'m>(Vec<HostTensor<'m>>);

/// One of them.
#[derive(Clone, Copy)]
struct HostTensor<'m> {
    data: HostData<'m>,
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl std::fmt::Debug for HostTensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTensor({:?}, {:?})", self.shape, self.strides)
    }
}

impl HostTensor<'_> {
    fn offset(&self, indices: [usize; MAX_RANK]) -> usize {
        let pairs = indices.into_iter().zip(self.strides);
        pairs.map(|(index, stride)| index * stride).sum()
    }
}

impl Tensors for HostTensors<'_> {
    fn shape(&self, tensor: usize) -> [usize; MAX_RANK] {
        self.0[tensor].shape
    }

    fn f32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> f32 {
        let tensor = &self.0[tensor];
        let offset = tensor.offset(indices);
        match tensor.data {
            HostData::F32(data) => data[offset],
            HostData::F16(data) => data[offset].to_f32(),
            HostData::Bf16(data) => data[offset].to_f32(),
            HostData::I32(data) => data[offset] as f32,
            // Validation has refused it.
            HostData::E4m3(_) | HostData::U8(_) | HostData::U64(_) => 0.0,
        }
    }

    fn i32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> i32 {
        let tensor = &self.0[tensor];
        match tensor.data {
            HostData::I32(data) => data[tensor.offset(indices)],
            _ => 0,
        }
    }
}

impl<'m> Edits<'m> {
    /// The expressions of a call, if the problem has any.
    pub(super) fn of(
        problem: &Problem,
        operands: &Operands<'m>,
    ) -> Result<Option<Edits<'m>>, ProblemError> {
        let Some(parts) = problem.edit_parts() else {
            return Ok(None);
        };
        let edit = parts.kept().edit();
        let values = &operands.values().score;
        let mut tensors = Vec::with_capacity(parts.tensors().len());
        for (place, argument) in Argument::SCORE_TENSORS.into_iter().enumerate() {
            if place < parts.tensors().len() {
                tensors.push(host_tensor(values, place, argument, operands)?);
            }
        }
        let param = |place: usize, ty: Type| match ty {
            Type::I32 => ParamValue::I32(values.values[place] as i32),
            Type::F32 | Type::Bool => ParamValue::F32(f32::from_bits(values.values[place])),
        };
        let given = |expression: &Option<Expression>| match expression {
            None => Given::default(),
            Some(expression) => {
                let params = expression.params().iter();
                let place = |name: &str| parts.params().iter().position(|of| of.name == name);
                let params = params.filter_map(|of| Some(param(place(&of.name)?, of.ty)));
                let own = expression.tensors().iter().filter_map(|tensor| {
                    let all = parts.tensors().iter();
                    let all = all.zip(&tensors);
                    let mut own = all.filter(|(read, _)| read.tensor.name == tensor.name);
                    own.next().map(|(_, tensor)| *tensor)
                });
                Given {
                    params: params.collect(),
                    tensors: HostTensors(own.collect()),
                }
            }
        };
        let edits = Edits {
            edit,
            score: given(&edit.score),
            mask: given(&edit.mask),
            derivative: given(&edit.derivative),
            of_tensors: Argument::SCORE_TENSOR_GRADIENTS
                .into_iter()
                .enumerate()
                .map(|(place, argument)| {
                    let gradient = operands.has(argument).then(|| parts.gradient_of(place));
                    let edit = gradient?.ok()?.1.edit();
                    Some((edit, given(&edit.derivative)))
                })
                .collect(),
        };
        edits.check()?;
        Ok(Some(edits))
    }

    /// Whether every expression takes what it is given.
    fn check(&self) -> Result<(), ProblemError> {
        let of_tensors = self.of_tensors.iter().flatten();
        let of_tensors = of_tensors.map(|(edit, given)| (&edit.derivative, given));
        let of_pass = [
            (&self.edit.score, &self.score),
            (&self.edit.mask, &self.mask),
            (&self.edit.derivative, &self.derivative),
        ];
        for (expression, given) in of_pass.into_iter().chain(of_tensors) {
            if let Some(expression) = expression {
                let evaluator = Evaluator::<f32>::new(expression, &given.params, &given.tensors);
                evaluator.map_err(|error| ScoreError::Together { error })?;
            }
        }
        Ok(())
    }

    /// The same with the derivative by the elements of a tensor, which has a gradient.
    pub(super) fn editor_of_tensor(&self, place: usize) -> Editor<'_> {
        let of_tensor = self.of_tensors.get(place).and_then(Option::as_ref);
        Editor {
            derivative: of_tensor.and_then(|(edit, given)| evaluator(&edit.derivative, given)),
            ..self.editor()
        }
    }

    /// One thread's state for evaluating them.
    pub(super) fn editor(&self) -> Editor<'_> {
        Editor {
            score: evaluator(&self.edit.score, &self.score),
            mask: evaluator(&self.edit.mask, &self.mask),
            derivative: evaluator(&self.edit.derivative, &self.derivative),
        }
    }
}

/// That it can be made has been checked.
fn evaluator<'e>(
    expression: &'e Option<Expression>,
    given: &'e Given<'_>,
) -> Option<Evaluator<'e, f32>> {
    Evaluator::new(expression.as_ref()?, &given.params, &given.tensors).ok()
}

/// A tensor of a call.
fn host_tensor<'m>(
    values: &ScoreParams,
    place: usize,
    argument: Argument,
    operands: &Operands<'m>,
) -> Result<HostTensor<'m>, ProblemError> {
    let vector = operands.vector(argument);
    let Some(Memory::Host(data)) = vector.map(|vector| *vector.memory()) else {
        return Err(ProblemError::Missing { argument });
    };
    let tensor = &values.tensors[place];
    Ok(HostTensor {
        data,
        shape: tensor.len.map(|len| len as usize),
        strides: tensor
            .stride
            .map(|stride| usize::try_from(stride).unwrap_or(0)),
    })
}

/// The side of the scores that is in the lanes of a panel; the other side is in its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lanes {
    Queries,
    Keys,
}

/// Edits scores, in one thread.
pub(super) struct Editor<'e> {
    score: Option<Evaluator<'e, f32>>,
    mask: Option<Evaluator<'e, f32>>,
    derivative: Option<Evaluator<'e, f32>>,
}

impl Editor<'_> {
    /// Edits the scores of some rows of a group and some keys, which begin at lane 0 and row 0 of the panel. `gradient` gets the derivatives.
    pub(super) fn edit(
        &mut self,
        at: &Location,
        lanes: Lanes,
        (rows, keys): (&Range<usize>, &Range<usize>),
        s: &mut Panel,
        mut gradient: Option<&mut Panel>,
    ) {
        let sizes = &at.sequence.sizes;
        let mut place = ScoreIndices::default();
        place.set(Index::Batch, int(at.sequence_idx));
        place.set(Index::KvHead, int(at.head_k));
        place.set(Index::SeqlenQ, int(sizes.seqlen_q));
        place.set(Index::SeqlenK, int(sizes.seqlen_k));
        if let Some(gradient) = &mut gradient {
            gradient.set_lanes(s.lanes());
        }
        for (row_idx, row) in rows.clone().enumerate() {
            let head = at.first_head + row % sizes.group_size;
            place.set(Index::Head, int(head));
            place.set(Index::Query, int(row / sizes.group_size));
            for (key_idx, key) in keys.clone().enumerate() {
                place.set(Index::Key, int(key));
                let (panel_row, lane) = match lanes {
                    Lanes::Queries => (key_idx, row_idx),
                    Lanes::Keys => (row_idx, key_idx),
                };
                let x = &mut s.row_mut(panel_row)[lane];
                let score = *x * sizes.softmax_scale;
                let is_visible = match &mut self.mask {
                    Some(mask) => mask.mask(&place),
                    None => true,
                };
                *x = match &mut self.score {
                    _ if !is_visible => f32::NEG_INFINITY,
                    Some(edited) => edited.score(&place, score),
                    None => *x,
                };
                if let (Some(gradient), Some(derivative)) = (&mut gradient, &mut self.derivative) {
                    gradient.row_mut(panel_row)[lane] = derivative.score(&place, score);
                }
            }
        }
    }
}

/// An index as expressions count it.
fn int(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

/// dS ← dS ∘ the derivatives, in the first `n_rows` rows. Where P is 0, and the derivative may be anything, dS stays.
pub(super) fn multiply_by_derivatives(p: &Panel, gradient: &Panel, d_s: &mut Panel, n_rows: usize) {
    let n = n_rows * p.lanes();
    let factors = p.all()[..n].iter().zip(&gradient.all()[..n]);
    for (d_s, (&p, gradient)) in d_s.all_mut()[..n].iter_mut().zip(factors) {
        if p != 0.0 {
            *d_s *= gradient;
        }
    }
}
