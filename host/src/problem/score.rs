//! Scores and masks that are expressions, in addition to a problem's [`Mask`].

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use ferroflash_expression::{
    At, Cond, Expression, ExpressionError, Kept, Num, Operand, Pool, Sides, Type,
};

use super::edit::EditParts;
use super::{Mask, Problem, ProblemBuilder};

/// A replacement for every score before the softmax: an expression, traced once from a closure.
///
/// It lives as long as the process, as do the kernels compiled for it. Equal expressions are stored once, and a copy is as cheap as that of a
/// number. Make each expression once; values that change from call to call are parameters and tensors. See [`ProblemBuilder::score`].
///
/// ```
/// use ferroflash::Score;
///
/// let capped = Score::new(|s, at| s.soft_cap(at.f32("cap")))?;
/// assert_eq!(capped.to_string(), "cap * tanh(score / cap)");
/// # Ok::<(), ferroflash::expression::ExpressionError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Score(&'static Expression);

/// Which keys a query sees: an expression, traced once from a closure. It lives as long as the process, as a [`Score`] does. See
/// [`ProblemBuilder::mask_expression`].
///
/// ```
/// use ferroflash::Mask;
///
/// let of_document = Mask::new(|at| {
///     let document = |place| at.tensor_i32("document", [at.batch, place]);
///     document(at.q).eq(document(at.k)) & at.k.le(at.q)
/// })?;
/// assert_eq!(of_document.expression().tensors().len(), 1);
/// # Ok::<(), ferroflash::expression::ExpressionError>(())
/// ```
#[derive(Clone, Copy)]
pub struct MaskExpression(&'static Expression);

/// All expressions that are kept.
static KEPT: Pool<Expression> = Pool::new();

impl Score {
    /// Traces a closure of the score, q · k times softmax_scale, and its position.
    pub fn new<R: Operand<Handle = Num>>(
        f: impl FnOnce(Num, At) -> R,
    ) -> Result<Score, ExpressionError> {
        Score::from_expression(Expression::score(f)?)
    }

    /// From an expression whose value is a number.
    pub fn from_expression(expression: Expression) -> Result<Score, ExpressionError> {
        if expression.is_mask() {
            let (given, wanted) = (Type::Bool, Type::F32);
            return Err(ExpressionError::Value { given, wanted });
        }
        Ok(Score(KEPT.keep(expression)))
    }

    /// The expression.
    pub fn expression(self) -> &'static Expression {
        self.0
    }
}

impl MaskExpression {
    /// Traces a closure of the position of a score: whether the query sees the key.
    pub fn new<R: Operand<Handle = Cond>>(
        f: impl FnOnce(At) -> R,
    ) -> Result<MaskExpression, ExpressionError> {
        MaskExpression::from_expression(Expression::mask(f)?)
    }

    /// From an expression whose value is a truth value.
    pub fn from_expression(expression: Expression) -> Result<MaskExpression, ExpressionError> {
        if !expression.is_mask() {
            let (given, wanted) = (Type::F32, Type::Bool);
            return Err(ExpressionError::Value { given, wanted });
        }
        Ok(MaskExpression(KEPT.keep(expression)))
    }

    /// The expression.
    pub fn expression(self) -> &'static Expression {
        self.0
    }
}

impl Mask {
    /// A mask that is an expression: [`MaskExpression::new`].
    #[expect(
        clippy::new_ret_no_self,
        reason = "a mask of the user's own stands beside this one"
    )]
    pub fn new<R: Operand<Handle = Cond>>(
        f: impl FnOnce(At) -> R,
    ) -> Result<MaskExpression, ExpressionError> {
        MaskExpression::new(f)
    }
}

macro_rules! handle {
    ($handle:ident) => {
        impl PartialEq for $handle {
            fn eq(&self, other: &$handle) -> bool {
                std::ptr::eq(self.0, other.0)
            }
        }

        impl Eq for $handle {}

        impl Hash for $handle {
            fn hash<H: Hasher>(&self, state: &mut H) {
                std::ptr::from_ref(self.0).hash(state);
            }
        }

        impl fmt::Display for $handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($handle), "({})"), self.0)
            }
        }
    };
}
handle!(Score);
handle!(MaskExpression);

/// The expressions of a problem.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Expressions {
    score: Option<Score>,
    mask: Option<MaskExpression>,
    /// Their combined edit; none without expressions.
    edit: Option<&'static EditParts>,
}

/// The edits of expressions.
type Edits = HashMap<(Option<Score>, Option<MaskExpression>), &'static EditParts>;

/// All edits so far. There are no more of them than kernels compiled for them.
static EDITS: Mutex<Option<Edits>> = Mutex::new(None);

impl Expressions {
    /// A score and a mask.
    fn new(score: Option<Score>, mask: Option<MaskExpression>) -> Expressions {
        let make = || {
            let mut edits = EDITS.lock().unwrap_or_else(PoisonError::into_inner);
            let edits = edits.get_or_insert_default();
            let entry = edits.entry((score, mask));
            *entry.or_insert_with(|| {
                let [score, mask] = [
                    score.map(Score::expression),
                    mask.map(MaskExpression::expression),
                ];
                Box::leak(Box::new(EditParts::new(score.cloned(), mask.cloned())))
            })
        };
        Expressions {
            score,
            mask,
            edit: (score.is_some() || mask.is_some()).then(make),
        }
    }
}

impl fmt::Debug for Expressions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expressions")
            .field("score", &self.score)
            .field("mask", &self.mask)
            .finish()
    }
}

/// `, score cap * tanh(score / cap), mask k <= q`; empty without expressions.
impl fmt::Display for Expressions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(score) = self.score {
            write!(f, ", score {score}")?;
        }
        match self.mask {
            Some(mask) => write!(f, ", mask {mask}"),
            None => Ok(()),
        }
    }
}

impl ProblemBuilder {
    /// An expression that replaces every score before the softmax.
    ///
    /// The closure of [`Score::new`] gets the score `s`, q · k times softmax_scale, in natural units: the softmax takes `exp` of what it
    /// returns. It also gets the position of the score: `at.q` and `at.k` count from the first query and key of the sequence, which has
    /// `at.seqlen_q` queries and `at.seqlen_k` keys; `at.batch` is the sequence, `at.head` the query head and `at.kv_head` the KV head. Values that
    /// change from call to call are parameters (`at.f32("cap")`) and tensors (`at.tensor_f32("bias", [at.head, at.q, at.k])`),
    /// which [`Inputs::score_param`](crate::Inputs::score_param) and [`Inputs::score_tensor`](crate::Inputs::score_tensor) give by name.
    ///
    /// The masks and the block mask hide keys as without the expression. Rows whose keys are all hidden give o = 0, lse = −∞. The backward pass
    /// multiplies the gradient of a score by the derivative of the expression. A tensor with an element for every query and key, such as a bias,
    /// gets a gradient if a call asks for it ([`Gradients::d_score_tensor`](crate::Gradients::d_score_tensor) lists such tensors). Parameters and
    /// other tensors, such as slopes or a table of distances, get none, nor do tensors that a mask reads. An expression that
    /// gives NaN or +∞ gives NaN results.
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Mask, Outputs, Problem, ReadTensor, Score, Tensor, TensorMut};
    ///
    /// // ALiBi (Press et al. 2021): a penalty for distance, by a slope for each head.
    /// let alibi = Score::new(|s, at| s - at.tensor_f32("slopes", [at.head]) * at.distance().to_f32())?;
    /// let problem = Problem::builder(Dtype::F32)
    ///     .seqlen(3)
    ///     .heads(2)
    ///     .head_dim(1)
    ///     .mask(Mask::Causal)
    ///     .score(alibi)
    ///     .build()?;
    ///
    /// let (q, k) = ([0.5f32, -1., 0.2, 0.7, 1.5, -0.3], [1f32, 0.3, -0.8, 0.9, 0.1, -1.2]);
    /// let v = [1f32, 2., 3., 4., 5., 6.];
    /// let slopes = [0.5f32, 0.25];
    /// let shape = problem.shape_q();
    /// let inputs = Inputs::new(&Tensor::bshd(&q, shape)?, &Tensor::bshd(&k, shape)?, &Tensor::bshd(&v, shape)?)
    ///     .score_tensor("slopes", ReadTensor::new(&slopes, [2]));
    /// let (mut o, mut lse) = ([0f32; 6], [0f32; 6]);
    /// let mut outputs = Outputs::new(TensorMut::bshd(&mut o, shape)?, &mut lse);
    /// Attention::new(&Device::cpu(), problem)?.forward(&inputs, &mut outputs)?;
    ///
    /// for head in 0..2 {
    ///     for i in 0..3 {
    ///         let weight = |j: usize| (q[2 * i + head] * k[2 * j + head] - slopes[head] * (i - j) as f32).exp();
    ///         let sum: f32 = (0..=i).map(weight).sum();
    ///         let right: f32 = (0..=i).map(|j| weight(j) / sum * v[2 * j + head]).sum();
    ///         assert!((o[2 * i + head] - right).abs() < 1e-5);
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn score(self, score: Score) -> Self {
        self.with(|problem| {
            problem.expressions = Expressions::new(Some(score), problem.expressions.mask);
        })
    }

    /// An expression that says which keys a query sees: of the keys that the problem's [`Mask`] and its block mask show, those for which it is true.
    /// Terms that bound a band around the diagonal, such as `k <= q`, run as the built-in mask does. For the rest, on a GPU `flash3` and `flash2`
    /// skip blocks of 128 queries and 128 keys that the expression hides. A kernel finds these blocks before the pass, if that pays; a
    /// [`Plan`](crate::plan::Plan) says whether it does, and why not. The CPU and `standard` compute the hidden scores, too.
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Mask, Outputs, Problem, Tensor, TensorMut};
    ///
    /// // Every second key.
    /// let dilated = Mask::new(|at| (at.distance() % at.i32("step")).eq(0))?;
    /// let problem = Problem::builder(Dtype::F32).seqlen(4).heads(1).head_dim(1).mask_expression(dilated).build()?;
    /// let (q, v) = ([0f32; 4], [1f32, 2., 3., 4.]);
    /// let shape = problem.shape_q();
    /// let inputs = Inputs::new(&Tensor::bshd(&q, shape)?, &Tensor::bshd(&q, shape)?, &Tensor::bshd(&v, shape)?)
    ///     .score_param("step", 2);
    /// let (mut o, mut lse) = ([0f32; 4], [0f32; 4]);
    /// let mut outputs = Outputs::new(TensorMut::bshd(&mut o, shape)?, &mut lse);
    /// Attention::new(&Device::cpu(), problem)?.forward(&inputs, &mut outputs)?;
    /// assert!(o.iter().zip([2., 3., 2., 3.]).all(|(o, right)| (o - right).abs() < 1e-6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mask_expression(self, mask: MaskExpression) -> Self {
        self.with(|problem| {
            problem.expressions = Expressions::new(problem.expressions.score, Some(mask));
        })
    }
}

impl Problem {
    /// The expression that replaces every score.
    pub fn score(&self) -> Option<Score> {
        self.expressions.score
    }

    /// The expression that hides keys in addition to the mask.
    pub fn mask_expression(&self) -> Option<MaskExpression> {
        self.expressions.mask
    }

    /// The same problem with a band in its mask, and the rest of the mask expression.
    pub(crate) fn with_band(&self, sides: Sides, rest: Option<Expression>) -> Problem {
        let side = |side: Option<u32>| side.map(|places| places as usize);
        let mask = rest.map(|rest| MaskExpression(KEPT.keep(rest)));
        Problem {
            mask: self.mask.within(side(sides.left), side(sides.right)),
            expressions: Expressions::new(self.expressions.score, mask),
            ..*self
        }
    }

    /// Both, as plans print them.
    pub(crate) fn expressions(&self) -> Expressions {
        self.expressions
    }

    /// The combined edit of its expressions.
    pub(crate) fn edit_parts(&self) -> Option<&'static EditParts> {
        self.expressions.edit
    }

    /// What kernels do to the scores.
    pub(crate) fn edit(&self) -> Option<Kept> {
        Some(self.edit_parts()?.kept())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn builder() -> ProblemBuilder {
        Problem::builder(Dtype::F32).seqlen(4).heads(1).head_dim(1)
    }

    fn capped() -> Score {
        Score::new(|s, at| (s / at.f32("cap")).tanh() * at.f32("cap")).unwrap()
    }

    #[test]
    fn equal_expressions_are_one() {
        let window = || Mask::new(|at| (at.q - at.k).lt(at.i32("window"))).unwrap();
        assert_eq!(capped(), capped());
        assert_eq!(window(), window());
        let plain = builder().build().unwrap();
        let problem = || builder().score(capped()).mask_expression(window()).build();
        let problem = || problem().unwrap();
        assert_eq!(problem(), problem());
        assert_eq!(problem(), problem());
        assert_ne!(problem(), plain);
        assert_ne!(problem(), plain);
        assert_eq!(problem().edit(), problem().edit());
        assert_eq!(plain.edit(), None);
        let of_score = builder().score(capped()).build().unwrap();
        assert_ne!(of_score, problem());
        let again = of_score.to_builder().mask_expression(window()).build();
        assert_eq!(again.unwrap(), problem());
    }

    #[test]
    fn a_mask_is_no_score() {
        let mask = Expression::mask(|at| at.q.ge(at.k)).unwrap();
        let score = Expression::score(|s, _| s).unwrap();
        assert!(Score::from_expression(mask.clone()).is_err());
        assert!(MaskExpression::from_expression(score.clone()).is_err());
        assert!(Score::from_expression(score).is_ok());
        assert_eq!(
            MaskExpression::from_expression(mask).map(|mask| mask.to_string()),
            Mask::new(|at| at.q.ge(at.k)).map(|mask| mask.to_string())
        );
    }

    #[test]
    fn only_a_score_has_a_derivative() {
        let edit = |builder: ProblemBuilder| builder.build().unwrap().edit().unwrap().edit();
        let of_score = edit(builder().score(capped()));
        assert!(of_score.score.is_some() && of_score.derivative.is_some());
        assert!(of_score.mask.is_none());
        let mask = Mask::new(|at| at.q.ge(at.k)).unwrap();
        let of_mask = edit(builder().mask_expression(mask));
        assert!(of_mask.mask.is_some());
        assert!(of_mask.score.is_none() && of_mask.derivative.is_none());
    }
}
