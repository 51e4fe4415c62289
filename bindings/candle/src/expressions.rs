//! Custom scores and masks: [`Expressions`].

use candle_core::{DType, Tensor};
use ferroflash::error::ScoreError;
use ferroflash::expression::{self, ElementType, ParamValue};
use ferroflash::{MaskExpression, ProblemBuilder, Score};

use crate::error::Error;
use crate::rules::{has_type, same_device};

/// The score and the mask of a call, and the values of their parameters and tensors.
///
/// Plain data: nothing is checked before a function takes it.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_ferroflash::{Expressions, Mask, Score, flash_attn_with_expressions};
///
/// // ALiBi, within documents. Make each once: it is traced once.
/// let alibi = Score::new(|s, at| {
///     let slope = at.tensor_f32("slopes", [at.head]);
///     s + slope * (at.k - at.q).to_f32()
/// }).map_err(candle_ferroflash::Error::from)?;
/// let same_document = Mask::new(|at| {
///     let document = |place| at.tensor_i32("document", [at.batch, place]);
///     document(at.q).eq(document(at.k))
/// }).map_err(candle_ferroflash::Error::from)?;
///
/// let device = Device::Cpu;
/// let q = Var::randn(0f32, 1f32, (1, 6, 2, 16), &device)?;
/// let slopes = Tensor::new(&[0.5f32, 0.25], &device)?;
/// let document = Tensor::new(&[[0i32, 0, 0, 1, 1, 1]], &device)?;
/// let expressions = Expressions::new()
///     .score(alibi)
///     .mask(same_document)
///     .tensor("slopes", &slopes)
///     .tensor("document", &document);
/// let o = flash_attn_with_expressions(&q, &q, &q, &expressions, 0.25, None, Some(0))?;
/// assert!(o.sum_all()?.backward()?.get(&q).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Expressions<'a> {
    score: Option<Score>,
    mask: Option<MaskExpression>,
    params: Vec<(&'a str, ParamValue)>,
    tensors: Vec<(&'a str, &'a Tensor)>,
}

/// The inputs of a checked call's expressions, by name.
#[derive(Default)]
pub(crate) struct Edit {
    params: Vec<(String, ParamValue)>,
    tensors: Vec<(&'static str, Tensor)>,
    /// The names of the score's tensors, in its order.
    of_score: Vec<&'static str>,
}

impl<'a> Expressions<'a> {
    /// No expressions: scores and masks are unchanged.
    pub fn new() -> Expressions<'a> {
        Expressions::default()
    }

    /// A replacement for every score before the softmax: see [`ProblemBuilder::score`].
    #[must_use]
    pub fn score(self, score: Score) -> Expressions<'a> {
        let score = Some(score);
        Expressions { score, ..self }
    }

    /// Which keys a query sees, of those that windows show: see [`ProblemBuilder::mask_expression`].
    #[must_use]
    pub fn mask(self, mask: MaskExpression) -> Expressions<'a> {
        let mask = Some(mask);
        Expressions { mask, ..self }
    }

    /// The value of a parameter that they name: an `f32` or an `i32`. A new value does not compile a new kernel.
    #[must_use]
    pub fn param(mut self, name: &'a str, value: impl Into<ParamValue>) -> Expressions<'a> {
        self.params.push((name, value.into()));
        self
    }

    /// A tensor that they name: f32, f16, bf16 or i32, of any strides, on the device of q. It has a gradient if the score reads it at one place,
    /// indexed by batch, head or kv_head, q and k, each once, the last two always, or 0: a bias, or one that batch entries and heads share. If
    /// another tensor requires a gradient, the backward pass is an error that says why it has none.
    #[must_use]
    pub fn tensor(mut self, name: &'a str, tensor: &'a Tensor) -> Expressions<'a> {
        self.tensors.push((name, tensor));
        self
    }

    /// The problem with them.
    pub(crate) fn put(&self, problem: ProblemBuilder) -> ProblemBuilder {
        let problem = match self.score {
            Some(score) => problem.score(score),
            None => problem,
        };
        match self.mask {
            Some(mask) => problem.mask_expression(mask),
            None => problem,
        }
    }

    /// The inputs, checked against q as far as candle's tensors go; ferroflash checks the shapes.
    pub(crate) fn checked(&self, q: &Tensor) -> Result<Edit, Error> {
        let of_score = self
            .score
            .map_or(&[][..], |score| score.expression().tensors());
        let mut edit = Edit {
            of_score: of_score.iter().map(|tensor| &*tensor.name).collect(),
            ..Edit::default()
        };
        for &(name, value) in &self.params {
            edit.params.push((name.to_owned(), value));
        }
        for &(name, tensor) in &self.tensors {
            let named = self.named(name)?;
            let element = match named.element {
                ElementType::F32 => DType::F32,
                ElementType::F16 => DType::F16,
                ElementType::Bf16 => DType::BF16,
                ElementType::I32 => DType::I32,
            };
            same_device(&named.name, tensor, q)?;
            has_type(&named.name, tensor, &[element])?;
            edit.tensors.push((&named.name, tensor.clone()));
        }
        Ok(edit)
    }

    /// The tensor of this name.
    fn named(&self, name: &str) -> Result<&'static expression::Tensor, Error> {
        let score = self.score.map(Score::expression);
        let mask = self.mask.map(MaskExpression::expression);
        let tensors = || {
            [score, mask]
                .into_iter()
                .flatten()
                .flat_map(|of| of.tensors())
        };
        tensors().find(|tensor| tensor.name == name).ok_or_else(|| {
            let error = ScoreError::Unknown {
                what: "tensor",
                name: name.to_owned(),
                taken: tensors().map(|tensor| tensor.name.clone()).collect(),
            };
            Error::Ferroflash(error.into())
        })
    }
}

impl Edit {
    /// Tensors, with their names.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (*name, tensor))
    }

    /// Its index in the score, if the score names it.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.of_score.iter().position(|&known| known == name)
    }

    /// Parameters, with their names.
    pub(crate) fn params(&self) -> Vec<(&str, ParamValue)> {
        let params = self.params.iter();
        params.map(|(name, value)| (&**name, *value)).collect()
    }
}
