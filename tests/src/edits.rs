//! Expressions beside a case: what takes the place of its scores and which of them count, with what a call gives them.

mod errors;
pub mod gradients;
pub mod memory;

use std::cell::{Cell, RefCell};

use ferroflash::error::ProblemError;
use ferroflash::{Inputs, MaskExpression, Problem, Score};
use ferroflash_expression::{
    Contiguous, Elements, Evaluator, Expression, Index, MAX_RANK, ParamValue, ScoreIndices, Tensors,
};

use crate::oracle::{Edited, Pair, ScoreError, Sizes};
use memory::{Given, Memory};

/// Scores and masks of the user's own.
#[derive(Clone, Debug)]
pub struct Edits {
    /// What takes a score's place.
    pub score: Option<Expression>,
    /// Whether a score counts.
    pub mask: Option<Expression>,
    /// The values of parameters.
    pub params: Vec<(&'static str, ParamValue)>,
    /// The tensors.
    pub tensors: Vec<Given>,
}

/// A sequence whose scores are edited.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Its number, where the sizes are of one sequence; batch entries count from here on.
    pub first: usize,
    /// Its sizes.
    pub sizes: Sizes,
}

/// What a score may be off, and what that is measured with.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    /// What a score may be off before it is edited.
    pub product: ScoreError,
    /// One rounding to the element type.
    pub unit: f64,
}

impl Precision {
    /// What a score may be off before it is edited.
    fn of_product(&self) -> f64 {
        F32_UNIT * self.product.rounding
    }

    /// What the rounding errors of a gradient scale with that is multiplied by a derivative, which the evaluator has just worked out.
    fn slope_size(
        &self,
        slope: f64,
        derivative: &Expression,
        evaluator: &Evaluator<f64>,
        errors: &mut Vec<errors::NodeError>,
    ) -> f64 {
        let (nodes, values) = (derivative.nodes(), evaluator.values());
        let off = errors::of_expression(nodes, values, self.of_product(), errors);
        slope.abs() + (off.rounding + off.approximation) / self.unit
    }
}

/// One rounding to f32.
const F32_UNIT: f64 = 1.0 / (1u64 << 24) as f64;

impl Edits {
    /// The problem with the expressions.
    pub fn edit(&self, problem: &Problem) -> Result<Problem, ProblemError> {
        let mut builder = problem.to_builder();
        if let Some(score) = &self.score {
            let score = Score::from_expression(score.clone());
            builder = builder.score(score.expect("a number"));
        }
        if let Some(mask) = &self.mask {
            let mask = MaskExpression::from_expression(mask.clone());
            builder = builder.mask_expression(mask.expect("a truth value"));
        }
        builder.build()
    }

    /// The tensors in memory of their own.
    pub fn memory(&self) -> Vec<Memory> {
        self.tensors.iter().map(Given::memory).collect()
    }

    /// A call's arguments with what the expressions read: by name, so in any order.
    pub fn give<'a>(&'a self, inputs: Inputs<'a>, memory: &'a [Memory]) -> Inputs<'a> {
        let params = self.params.iter().rev();
        let inputs = params.fold(inputs, |inputs, &(name, value)| {
            inputs.score_param(name, value)
        });
        memory.iter().rev().fold(inputs, |inputs, memory| {
            inputs.score_tensor(memory.name, memory.view())
        })
    }

    /// Gives `f` what the oracle takes of them.
    pub fn with_edit<R>(
        &self,
        sequence: Sequence,
        precision: Precision,
        f: impl FnOnce(&dyn Fn(Pair, f64) -> Option<Edited>) -> R,
    ) -> R {
        let derivative = self.score.as_ref().map(|score| {
            let derivative = score.derivative_by_score();
            derivative.expect("a score has a derivative")
        });
        let (of_score, of_mask) = (
            self.bound(self.score.as_ref()),
            self.bound(self.mask.as_ref()),
        );
        let of_derivative = self.bound(derivative.as_ref());
        let score = RefCell::new(of_score.as_ref().map(Bound::evaluator));
        let slope = RefCell::new(of_derivative.as_ref().map(Bound::evaluator));
        let mask = RefCell::new(of_mask.as_ref().map(Bound::evaluator));
        let errors = RefCell::new(Vec::new());
        let of_product = precision.of_product();
        let edit = |pair: Pair, old: f64| {
            let place = sequence.place(pair);
            if let Some(mask) = &mut *mask.borrow_mut()
                && !mask.mask(&place)
            {
                return None;
            }
            let (Some(score), Some(slope)) = (&mut *score.borrow_mut(), &mut *slope.borrow_mut())
            else {
                return Some(Edited {
                    score: old,
                    slope: 1.0,
                    slope_size: 1.0,
                    error: precision.product,
                });
            };
            let errors = &mut *errors.borrow_mut();
            let new = score.score(&place, old);
            let nodes = of_score.as_ref()?.expression.nodes();
            let error = errors::of_expression(nodes, score.values(), of_product, errors);
            let value = slope.score(&place, old);
            let derivative = of_derivative.as_ref()?.expression;
            let slope_size = precision.slope_size(value, derivative, slope, errors);
            Some(Edited {
                score: new,
                slope: value,
                slope_size,
                error: ScoreError {
                    rounding: error.rounding / F32_UNIT,
                    approximation: error.approximation,
                },
            })
        };
        // The oracle asks several times.
        let known = RefCell::new(vec![None; sequence.n_pairs()]);
        f(&|pair, old| {
            let known = &mut known.borrow_mut()[sequence.number(pair)];
            match *known {
                Some((of, edited)) if of == old.to_bits() => edited,
                _ => {
                    let edited = edit(pair, old);
                    *known = Some((old.to_bits(), edited));
                    edited
                }
            }
        })
    }

    fn bound<'a>(&'a self, expression: Option<&'a Expression>) -> Option<Bound<'a>> {
        let expression = expression?;
        let params = expression.params().iter().map(|param| {
            let mut params = self.params.iter();
            let (_, value) = params.find(|(name, _)| *name == param.name)?;
            Some(*value)
        });
        let tensors = expression.tensors().iter().map(|tensor| {
            let mut tensors = self.tensors.iter();
            let given = tensors.find(|given| given.name == tensor.name)?;
            Some(given.dense())
        });
        Some(Bound {
            expression,
            params: params
                .collect::<Option<_>>()
                .expect("a value for every parameter"),
            tensors: tensors.collect::<Option<_>>().expect("every tensor"),
        })
    }

    /// Makes every element NaN that no score reads which counts, by `counts` of a sequence's number and a pair and by the mask of the user's own. Of
    /// whole numbers they become others. A mask reads what it needs of all pairs.
    pub fn spoil(&mut self, sequences: &[Sequence], counts: impl Fn(usize, Pair) -> bool) {
        let mut read: Vec<Vec<bool>> = Vec::new();
        let tensors = self.tensors.iter();
        read.extend(tensors.map(|given| vec![false; given.values.len()]));
        let of_mask = self.bound(self.mask.as_ref()).map(Recording::new);
        let of_score = self.bound(self.score.as_ref()).map(Recording::new);
        {
            let mut mask = of_mask.as_ref().map(Recording::evaluator);
            let mut score = of_score.as_ref().map(Recording::evaluator);
            for (number, sequence) in sequences.iter().enumerate() {
                sequence.each_pair(|pair| {
                    let place = sequence.place(pair);
                    let is_shown = mask.as_mut().is_none_or(|mask| mask.mask(&place));
                    if let Some(score) = &mut score
                        && is_shown
                        && counts(number, pair)
                    {
                        score.score(&place, 0.0);
                    }
                });
            }
        }
        for recording in of_mask.iter().chain(&of_score) {
            let list = recording.bound.expression.tensors().iter();
            for (tensor, seen) in list.zip(&recording.read) {
                let at = self
                    .tensors
                    .iter()
                    .position(|given| given.name == tensor.name);
                let Some(at) = at else { continue };
                for (read, seen) in read[at].iter_mut().zip(seen) {
                    *read |= seen.get();
                }
            }
        }
        for (given, read) in self.tensors.iter_mut().zip(read) {
            let unread = (0..read.len()).filter(|&at| !read[at]);
            unread.for_each(|at| given.spoil(at));
        }
    }
}

impl Edits {
    /// Whether each row of a sequence, in the order of lse, sees a key, by `counts` and by the mask of the user's own.
    pub fn rows_that_see(&self, sequence: &Sequence, counts: impl Fn(Pair) -> bool) -> Vec<bool> {
        let bound = self.bound(self.mask.as_ref());
        let mut mask = bound.as_ref().map(Bound::evaluator);
        let mut sees = vec![false; sequence.sizes.row_elems()];
        sequence.each_pair(|pair| {
            let mut shown = |mask: &mut Evaluator<f64>| mask.mask(&sequence.place(pair));
            sees[sequence.row(pair)] |= counts(pair) && mask.as_mut().is_none_or(&mut shown);
        });
        sees
    }
}

impl Sequence {
    fn n_pairs(&self) -> usize {
        self.sizes.row_elems() * self.sizes.seqlen_k
    }

    /// The row of a pair's query, in the order of lse.
    fn row(&self, pair: Pair) -> usize {
        let Sizes {
            heads_q, seqlen_q, ..
        } = self.sizes;
        (pair.batch * heads_q + pair.head) * seqlen_q + pair.query
    }

    /// The number of a pair among all.
    fn number(&self, pair: Pair) -> usize {
        self.row(pair) * self.sizes.seqlen_k + pair.key
    }

    /// Where a pair lies, as an expression is told.
    fn place(&self, pair: Pair) -> ScoreIndices {
        let sizes = self.sizes;
        let group = sizes.heads_q.checked_div(sizes.heads_k).unwrap_or(1);
        [
            (Index::Batch, self.first + pair.batch),
            (Index::Head, pair.head),
            (Index::KvHead, pair.head / group.max(1)),
            (Index::Query, pair.query),
            (Index::Key, pair.key),
            (Index::SeqlenQ, sizes.seqlen_q),
            (Index::SeqlenK, sizes.seqlen_k),
        ]
        .into_iter()
        .fold(ScoreIndices::default(), |place, (index, value)| {
            place.with(index, value as i32)
        })
    }

    fn each_pair(&self, mut f: impl FnMut(Pair)) {
        let sizes = self.sizes;
        for batch in 0..sizes.batch {
            for head in 0..sizes.heads_q {
                for query in 0..sizes.seqlen_q {
                    for key in 0..sizes.seqlen_k {
                        f(Pair {
                            batch,
                            head,
                            query,
                            key,
                        });
                    }
                }
            }
        }
    }
}

/// An expression with what it reads.
struct Bound<'a> {
    expression: &'a Expression,
    params: Vec<ParamValue>,
    tensors: Vec<Contiguous>,
}

impl Bound<'_> {
    fn evaluator(&self) -> Evaluator<'_, f64> {
        Evaluator::new(self.expression, &self.params, &self.tensors).expect("what it reads")
    }
}

/// Notes which elements an expression reads.
struct Recording<'a> {
    bound: Bound<'a>,
    read: Vec<Vec<Cell<bool>>>,
}

impl<'a> Recording<'a> {
    fn new(bound: Bound<'a>) -> Recording<'a> {
        let n_elems = |tensor: &Contiguous| match tensor.elements() {
            Elements::F32(elements) => elements.len(),
            Elements::I32(elements) => elements.len(),
        };
        let unread = |tensor| vec![Cell::new(false); n_elems(tensor)];
        Recording {
            read: bound.tensors.iter().map(unread).collect(),
            bound,
        }
    }

    fn evaluator(&self) -> Evaluator<'_, f64> {
        let Bound {
            expression, params, ..
        } = &self.bound;
        Evaluator::new(expression, params, self).expect("what it reads")
    }

    fn note(&self, tensor: usize, indices: [usize; MAX_RANK]) {
        let shape = self.bound.tensors.shape(tensor);
        let pairs = indices.into_iter().zip(shape);
        let at = pairs.fold(0, |at, (index, extent)| at * extent + index);
        self.read[tensor][at].set(true);
    }
}

impl Tensors for Recording<'_> {
    fn shape(&self, tensor: usize) -> [usize; MAX_RANK] {
        self.bound.tensors.shape(tensor)
    }

    fn f32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> f32 {
        self.note(tensor, indices);
        self.bound.tensors.f32(tensor, indices)
    }

    fn i32(&self, tensor: usize, indices: [usize; MAX_RANK]) -> i32 {
        self.note(tensor, indices);
        self.bound.tensors.i32(tensor, indices)
    }
}
