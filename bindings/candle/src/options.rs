//! What a call may do beside a mask: expressions, sinks, dropout ([`Options`]).

use candle_core::{DType, Tensor};
use ferroflash::{Inputs, ProblemBuilder};

use crate::error::Error;
use crate::expressions::{Edit, Expressions};
use crate::rules::{beside, has_shape};

/// Expressions, sinks and dropout of a call, any of them together.
///
/// Plain data: nothing is checked before a function takes it.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_ferroflash::{Expressions, Options, Score, flash_attn_with_options};
///
/// // A bias of all batch entries and a sink for each head, both with gradients; one weight of ten is dropped.
/// let biased = Score::new(|s, at| s + at.tensor_f32("bias", [at.head, at.q, at.k]))
///     .map_err(candle_ferroflash::Error::from)?;
/// let device = Device::Cpu;
/// let q = Var::randn(0f32, 1f32, (2, 6, 4, 16), &device)?;
/// let (bias, sinks) = (Var::zeros((4, 6, 6), candle_core::DType::F32, &device)?, Var::new(&[0.5f32; 4], &device)?);
/// let expressions = Expressions::new().score(biased).tensor("bias", &bias);
/// let options = Options::new().expressions(&expressions).sinks(&sinks).dropout(0.1, 7, 0);
///
/// let o = flash_attn_with_options(&q, &q, &q, &options, 0.25, None, Some(0))?;
/// let gradients = o.sqr()?.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&bias).map(Tensor::dims), Some([4, 6, 6].as_slice()));
/// assert_eq!(gradients.get(&sinks).map(Tensor::dims), Some([4].as_slice()));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    expressions: Option<&'a Expressions<'a>>,
    sinks: Option<&'a Tensor>,
    dropout: Option<Dropout>,
}

/// Which weights are dropped.
#[derive(Clone, Copy, Debug)]
struct Dropout {
    p: f32,
    /// Seed and offset.
    rng: [u64; 2],
}

/// What a checked call is given of its options.
#[derive(Default)]
pub(crate) struct Beside {
    /// For expressions.
    pub(crate) edit: Edit,
    /// f32 `[heads_q]`, contiguous.
    pub(crate) sinks: Option<Tensor>,
    /// Seed and offset of dropout.
    rng: Option<[u64; 2]>,
}

impl<'a> Options<'a> {
    /// None: plain attention.
    pub fn new() -> Options<'a> {
        Options::default()
    }

    /// A score and a mask of the caller's own. Tensors that a score reads at its own place have gradients: see [`Expressions::tensor`].
    #[must_use]
    pub fn expressions(self, expressions: &'a Expressions<'a>) -> Options<'a> {
        let expressions = Some(expressions);
        Options {
            expressions,
            ..self
        }
    }

    /// A term more in the sum of exponentials of each row of a head: a score without a value, as GPT-OSS has them. It is measured as scores are after
    /// `softmax_scale`. Of a row that sees no key o is 0 all the same. It has a gradient.
    ///
    /// * `sinks`: f32 `[heads_q]`, on the device of q.
    #[must_use]
    pub fn sinks(self, sinks: &'a Tensor) -> Options<'a> {
        let sinks = Some(sinks);
        Options { sinks, ..self }
    }

    /// Drops weights at random, and divides the others by the probability that they are kept. The backward pass drops the same ones.
    ///
    /// * `p`: the probability that a weight is dropped, at least 0, which is none, and less than 1; rounded to a multiple of 1/256.
    /// * `seed`, `offset`: which ones, with batch entry, head, query and key. Other numbers at every step and in every layer drop others:
    ///   [`ProblemBuilder::dropout`] says more.
    #[must_use]
    pub fn dropout(self, p: f32, seed: u64, offset: u64) -> Options<'a> {
        let rng = [seed, offset];
        let dropout = Some(Dropout { p, rng });
        Options { dropout, ..self }
    }

    /// The problem with them.
    pub(crate) fn put(&self, problem: ProblemBuilder) -> ProblemBuilder {
        let problem = match self.expressions {
            Some(expressions) => expressions.put(problem),
            None => problem,
        };
        let problem = match self.sinks {
            Some(_) => problem.sinks(),
            None => problem,
        };
        match self.dropout {
            Some(dropout) => problem.dropout(dropout.p),
            None => problem,
        }
    }

    /// What is given, checked beside q as far as candle's tensors go.
    pub(crate) fn checked(&self, q: &Tensor) -> candle_core::Result<Beside> {
        let edit = match self.expressions {
            Some(expressions) => expressions.checked(q)?,
            None => Edit::default(),
        };
        let heads = q.dims().iter().rev().nth(1).copied().unwrap_or(0);
        let sinks = match self.sinks {
            Some(sinks) => Some(checked_sinks(sinks, q, heads)?.contiguous()?),
            None => None,
        };
        let dropout = self.dropout.filter(|dropout| dropout.p > 0.0);
        let rng = dropout.map(|dropout| dropout.rng);
        Ok(Beside { edit, sinks, rng })
    }
}

fn checked_sinks<'a>(sinks: &'a Tensor, q: &Tensor, heads: usize) -> Result<&'a Tensor, Error> {
    beside("sinks", sinks, 1, q, DType::F32)?;
    has_shape("sinks", sinks, &[heads])?;
    Ok(sinks)
}

impl Beside {
    /// The inputs with numbers: parameters of expressions, seed and offset.
    pub(crate) fn numbers<'a>(&'a self, inputs: Inputs<'a>) -> Inputs<'a> {
        let inputs = self.edit.params(inputs);
        match self.rng {
            Some([seed, offset]) => inputs.dropout_rng(seed, offset),
            None => inputs,
        }
    }
}
