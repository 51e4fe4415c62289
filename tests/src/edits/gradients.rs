//! Gradients of the tensors that a score reads: what they should be, and what their errors are measured against.

use ferroflash::Problem;
use ferroflash_expression::{ElementType, Evaluator, Index};

use super::{Bound, Edits, Precision, Sequence};
use crate::oracle::{PairGradient, Terms};

/// A tensor that has a gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Differentiable {
    /// By which the score names it.
    pub name: &'static str,
    /// Its place among the problem's tensors.
    pub place: usize,
    /// Of its elements, and of the gradient's.
    pub element: ElementType,
    /// The gradient's.
    pub shape: Vec<usize>,
}

/// The gradient of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorGradient {
    /// Of which.
    pub of: Differentiable,
    /// Its elements.
    pub values: Vec<f64>,
    /// What their errors are measured against.
    pub terms: Terms,
}

impl TensorGradient {
    /// Of no pair.
    pub fn zero(of: Differentiable) -> TensorGradient {
        let n = of.shape.iter().product();
        TensorGradient {
            of,
            values: vec![0.0; n],
            terms: Terms::uniform(n, 0.0, 0.0),
        }
    }
}

impl Edits {
    /// The tensors that have a gradient and are as large as it is: a call can ask for these. `problem` has the edits.
    pub fn differentiable(&self, problem: &Problem) -> Vec<Differentiable> {
        let names = self.score.iter().flat_map(|score| score.tensors());
        let all = names.enumerate().filter_map(|(place, tensor)| {
            let shape = problem.score_gradient_shape(&tensor.name).ok()?;
            let given = self
                .tensors
                .iter()
                .find(|given| given.name == tensor.name)?;
            let is_as_large = given
                .extents
                .iter()
                .zip(&shape)
                .all(|(given, needed)| given >= needed);
            is_as_large.then_some(Differentiable {
                name: given.name,
                place,
                element: given.element,
                shape,
            })
        });
        all.collect()
    }

    /// Adds what the scores of a sequence give.
    pub fn add_gradients(
        &self,
        sequence: Sequence,
        precision: Precision,
        pairs: &[PairGradient],
        gradients: &mut [TensorGradient],
    ) {
        for gradient in gradients {
            let place = gradient.of.place as u8;
            let score = self.score.as_ref().expect("a tensor of a score");
            let read = score.read_dims(place).expect("a tensor with a gradient");
            let derivative = score.derivative_by_tensor(place).expect("a derivative");
            let bound = self.bound(Some(&derivative)).expect("an expression");
            let mut evaluator: Evaluator<f64> = Bound::evaluator(&bound);
            let group = sequence.sizes.heads_q / sequence.sizes.heads_k;
            let mut errors = Vec::new();
            let mut squares = vec![[0.0; 2]; gradient.values.len()];
            for of_pair in pairs {
                let pair = of_pair.pair;
                let dims = read.dims().iter().zip(&gradient.of.shape);
                let at = dims.fold(0, |at, (index, extent)| {
                    let index = match index {
                        None => 0,
                        Some(Index::Batch) => sequence.first + pair.batch,
                        Some(Index::Head) => pair.head,
                        Some(Index::KvHead) => pair.head / group,
                        Some(Index::Query) => pair.query,
                        Some(Index::Key) => pair.key,
                        Some(Index::SeqlenQ | Index::SeqlenK) => unreachable!("no place"),
                    };
                    at * extent + index
                });
                let slope = evaluator.score(&sequence.place(pair), of_pair.old);
                let size = precision.slope_size(slope, &derivative, &evaluator, &mut errors);
                gradient.values[at] += of_pair.d_score * slope;
                squares[at][0] += (of_pair.size * size).powi(2);
                squares[at][1] += (of_pair.lost * size).powi(2);
            }
            let terms = Terms {
                relative: squares.iter().map(|squares| squares[0].sqrt()).collect(),
                absolute: squares.iter().map(|squares| squares[1].sqrt()).collect(),
            };
            gradient.terms.add(&terms);
        }
    }
}
