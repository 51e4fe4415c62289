//! The combined expressions of a problem: what kernels are given, and what calls have to give.

use std::hash::{Hash, Hasher};

use ferroflash_expression::ptx::{Edit, ParamOffsets, Program, ScoreRows, Unit};
use ferroflash_expression::{
    Expression, ExpressionError, Index, Kept, MAX_PARAMS, MAX_TENSORS, MaskMapping, NoReadDims,
    Param, ReadDims, Tensor, Use, mask_mapping,
};

/// An edit with its parameters and tensors. It lives as long as the process.
#[derive(Debug)]
pub(crate) struct EditParts {
    kept: Kept,
    params: Vec<Param>,
    tensors: Vec<ReadOf>,
    unit: Unit,
    /// What finds blocks that the mask hides.
    mask_mapping: Option<MaskMapping>,
    /// Why the expressions cannot be combined, if they cannot.
    fault: Option<ExpressionError>,
    /// Why the score has no derivative, if it has none.
    no_derivative: Option<ExpressionError>,
    /// The edit for the gradient of each tensor, or why it has none.
    gradients: Vec<Result<(ReadDims, Kept), NoReadDims>>,
}

/// A tensor that expressions read.
#[derive(Debug)]
pub(crate) struct ReadOf {
    /// Its name and type.
    pub(crate) tensor: Tensor,
    /// How its dimensions are indexed.
    pub(crate) dims: Vec<DimUse>,
}

/// How a dimension is indexed.
#[derive(Clone, Debug, Default)]
pub(crate) struct DimUse {
    /// Whether kernels clamp some index into the tensor, and compute its offset from the first element in 32 bits.
    pub(crate) is_clamped: bool,
    /// Sequences or heads that index the dimension directly: it has to have as many elements.
    pub(crate) unclamped: Vec<Index>,
}

impl EditParts {
    /// The edit of a score and a mask, at least one of which is given.
    pub(crate) fn new(score: Option<Expression>, mask: Option<Expression>) -> EditParts {
        let derivative = score.as_ref().map(Expression::derivative_by_score);
        let (derivative, no_derivative) = match derivative {
            Some(Ok(derivative)) => (Some(derivative), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let edit = Edit {
            score,
            mask,
            derivative,
        };
        let params = edit.params();
        let mask = edit.mask.as_ref();
        let mask_mapping = mask.map(|mask| mask_mapping(mask, &params, &edit.tensors()));
        let tensors = edit.tensors();
        let gradients = (0..tensors.len()).map(|place| gradient(&edit, place as u8));
        let gradients = gradients.collect();
        let tensors = tensors.into_iter().map(|tensor| ReadOf {
            dims: vec![DimUse::default(); usize::from(tensor.rank)],
            tensor,
        });
        let mut parts = EditParts {
            gradients,
            fault: None,
            no_derivative,
            mask_mapping,
            tensors: tensors.collect(),
            unit: edit.unit(),
            params,
            kept: Kept::new(edit),
        };
        parts.fault = parts.conflict().or_else(|| parts.too_many());
        if parts.fault.is_none() {
            parts.note_index_uses();
        }
        parts
    }

    /// What kernels do to the scores.
    pub(crate) fn kept(&self) -> Kept {
        self.kept
    }

    /// Whether gradients of scores change beyond the mask: the derivative is not 1 everywhere.
    pub(crate) fn has_gradient(&self) -> bool {
        self.kept.edit().has_gradient()
    }

    /// What finds blocks that the mask hides, if there is a mask.
    pub(crate) fn mask_mapping(&self) -> Option<&MaskMapping> {
        self.mask_mapping.as_ref()
    }

    /// The unit of edited scores.
    pub(crate) fn unit(&self) -> Unit {
        self.unit
    }

    /// Parameters that calls give, in the order of their indices.
    pub(crate) fn params(&self) -> &[Param] {
        &self.params
    }

    /// Tensors that calls give, in the order of their indices.
    pub(crate) fn tensors(&self) -> &[ReadOf] {
        &self.tensors
    }

    /// Why the expressions cannot be combined, if they cannot.
    pub(crate) fn fault(&self) -> Option<&ExpressionError> {
        self.fault.as_ref()
    }

    /// Why there is no backward pass, if there is none.
    pub(crate) fn no_derivative(&self) -> Option<&ExpressionError> {
        self.no_derivative.as_ref()
    }

    /// How the score reads the tensor with this index, and the edit with the derivative by the element that it reads; or why the tensor has no gradient.
    pub(crate) fn gradient_of(&self, place: usize) -> Result<&(ReadDims, Kept), NoReadDims> {
        let gradient = self.gradients.get(place).ok_or(NoReadDims::NotRead)?;
        gradient.as_ref().map_err(|&why| why)
    }

    /// A name with different meanings in the score and in the mask.
    fn conflict(&self) -> Option<ExpressionError> {
        let params = self.params.iter();
        let params = params.map(|param| (&param.name, Use::Param(param.ty)));
        let tensors = self.tensors.iter().map(|ReadOf { tensor, .. }| {
            let (element, rank) = (tensor.element, usize::from(tensor.rank));
            (&tensor.name, Use::Tensor { element, rank })
        });
        let all: Vec<_> = params.chain(tensors).collect();
        all.iter().enumerate().find_map(|(at, &(name, second))| {
            let (_, first) = *all[..at].iter().find(|(other, _)| *other == name)?;
            Some(ExpressionError::Conflict {
                name: name.clone(),
                first,
                second,
            })
        })
    }

    fn too_many(&self) -> Option<ExpressionError> {
        let (n_params, n_tensors) = (self.params.len(), self.tensors.len());
        if n_params > MAX_PARAMS {
            return Some(ExpressionError::Params {
                given: n_params,
                allowed: MAX_PARAMS,
            });
        }
        (n_tensors > MAX_TENSORS).then_some(ExpressionError::Tensors {
            given: n_tensors,
            allowed: MAX_TENSORS,
        })
    }

    /// Asks the kernels' program, as only that knows what it clamps.
    fn note_index_uses(&mut self) {
        // Where values lie makes no difference to it.
        let places = ParamOffsets {
            scale: 0,
            inverse_unit: 0,
            params: 0,
            tensors: 0,
        };
        for rows in [ScoreRows::Queries, ScoreRows::Keys] {
            // What cannot be written no kernel reads by; loading it says why.
            let Ok(program) = Program::new(self.kept.edit(), rows, places) else {
                continue;
            };
            for of_index in program.index_uses() {
                let tensor = self.tensors.get_mut(of_index.tensor);
                let Some(dim) = tensor.and_then(|tensor| tensor.dims.get_mut(of_index.dim)) else {
                    continue;
                };
                match of_index.unclamped {
                    Some(index) if !dim.unclamped.contains(&index) => dim.unclamped.push(index),
                    Some(_) => {}
                    None => dim.is_clamped = true,
                }
            }
        }
    }
}

/// The edit for the gradient of a tensor: with the derivative by its elements.
fn gradient(edit: &Edit, place: u8) -> Result<(ReadDims, Kept), NoReadDims> {
    // Tensors of the score are the first of all.
    let score = edit.score.as_ref().ok_or(NoReadDims::NotRead)?;
    let dims = score.read_dims(place)?;
    let derivative = score.derivative_by_tensor(place);
    let edit = Edit {
        derivative: Some(derivative.map_err(|_| NoReadDims::NoDerivative)?),
        ..edit.clone()
    };
    Ok((dims, Kept::new(edit)))
}

/// Each is made once.
impl PartialEq for EditParts {
    fn eq(&self, other: &EditParts) -> bool {
        self.kept == other.kept
    }
}

impl Eq for EditParts {}

impl Hash for EditParts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kept.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_which_indices_are_not_clamped() {
        let score = Expression::score(|s, at| {
            let bias = at.tensor_f32("bias", [at.batch, at.head + 1 - 1, at.k]);
            s + bias + at.tensor_f32("other", [at.kv_head + at.q])
        });
        let parts = EditParts::new(score.ok(), None);
        let of = |tensor: usize, dim: usize| {
            let DimUse {
                is_clamped,
                unclamped,
            } = &parts.tensors()[tensor].dims[dim];
            (*is_clamped, unclamped.clone())
        };
        assert_eq!(of(0, 0), (false, vec![Index::Batch]));
        assert_eq!(of(0, 1), (false, vec![Index::Head]));
        assert_eq!(of(0, 2), (true, vec![]));
        assert_eq!(of(1, 0), (true, vec![]));
    }

    #[test]
    fn what_is_added_to_a_score_is_no_gradient() {
        let has = |score: Result<Expression, ExpressionError>| {
            EditParts::new(score.ok(), None).has_gradient()
        };
        assert!(!has(Expression::score(|s, at| {
            s + at.tensor_f32("bias", [at.q, at.k])
        })));
        assert!(has(Expression::score(|s, at| s * at.f32("factor"))));
        assert!(has(Expression::score(|_, at| at.k.to_f32())));
        let mask = Expression::mask(|at| at.k.le(at.q)).ok();
        assert!(!EditParts::new(None, mask).has_gradient());
    }

    #[test]
    fn names_mean_one_thing() {
        let score = Expression::score(|s, at| s * at.f32("x")).ok();
        let fault = |mask: Expression| EditParts::new(score.clone(), Some(mask)).fault;
        let same = Expression::mask(|at| at.k.to_f32().lt(at.f32("x"))).unwrap();
        assert_eq!(fault(same), None);
        let number = Expression::mask(|at| at.k.lt(at.i32("x"))).unwrap();
        let tensor = Expression::mask(|at| at.k.lt(at.tensor_i32("x", [at.q]))).unwrap();
        for mask in [number, tensor] {
            assert!(matches!(
                fault(mask),
                Some(ExpressionError::Conflict { name, .. }) if name == "x"
            ));
        }
    }
}
