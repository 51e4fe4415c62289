//! The options of a call in addition to a mask: expressions, sinks, dropout ([`Options`]).

use candle_core::{DType, Tensor};
use ferroflash::arguments::{Argument, ByArgument};
use ferroflash::dtype::ScalarType;
use ferroflash::error::ProblemError;
use ferroflash::{Problem, ProblemBuilder};

use crate::error::Error;
use crate::expressions::Expressions;
use crate::given::{Given, Source};
use crate::rules::{beside, has_shape};

/// Expressions, sinks and dropout of a call, in any combination.
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
    inputs: ByArgument<Option<&'a Tensor>>,
    dropout: Option<Dropout>,
}

/// Which weights are dropped.
#[derive(Clone, Copy, Debug)]
struct Dropout {
    p: f32,
    /// Seed and offset.
    rng: [u64; 2],
}

impl<'a> Options<'a> {
    /// No options: plain attention.
    pub fn new() -> Options<'a> {
        Options::default()
    }

    /// A custom score and mask. Tensors that a score reads at its own position have gradients: see [`Expressions::tensor`].
    #[must_use]
    pub fn expressions(self, expressions: &'a Expressions<'a>) -> Options<'a> {
        let expressions = Some(expressions);
        Options {
            expressions,
            ..self
        }
    }

    /// An additional term in the sum of exponentials of each row of a head: a score without a value, as in GPT-OSS. It has the unit of scores after
    /// `softmax_scale`. A row that sees no key still gives o = 0. It has a gradient.
    ///
    /// * `sinks`: f32 `[heads_q]`, on the device of q.
    #[must_use]
    pub fn sinks(self, sinks: &'a Tensor) -> Options<'a> {
        self.input(Argument::Sinks, sinks)
    }

    /// One of ferroflash's optional inputs ([`Argument::optional_input`] describes it and says whether it has a gradient): a vector of the type and
    /// length that [`ferroflash::Inputs`] gives, on the device of q.
    #[must_use]
    pub fn input(mut self, argument: Argument, vector: &'a Tensor) -> Options<'a> {
        self.inputs[argument] = Some(vector);
        self
    }

    /// Drops weights at random, and divides the others by the probability of being kept. The backward pass drops the same weights.
    ///
    /// * `p`: the probability that a weight is dropped, at least 0 (no dropout) and less than 1; rounded to a multiple of 1/256.
    /// * `seed`, `offset`: they decide, with batch entry, head, query and key, which weights are dropped. Use different numbers at every step and in
    ///   every layer: see [`ProblemBuilder::dropout`].
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
        match self.dropout {
            Some(dropout) => problem.dropout(dropout.p),
            None => problem,
        }
    }

    /// The arguments of these options, checked against q as far as candle's tensors go.
    pub(crate) fn given(&self, q: &Tensor, problem: &Problem) -> candle_core::Result<Given> {
        let mut given = Given::default();
        if let Some(expressions) = self.expressions {
            given.edit = expressions.checked(q)?;
        }
        for (argument, vector) in self.inputs.iter() {
            if let Some(vector) = vector {
                given = given.with(argument, input(argument, vector, q, problem)?);
            }
        }
        let dropout = self.dropout.filter(|dropout| dropout.p > 0.0);
        given.rng = dropout.map(|dropout| dropout.rng);
        Ok(given)
    }
}

/// A vector that is one of the optional inputs of a problem.
fn input(
    argument: Argument,
    vector: &Tensor,
    q: &Tensor,
    problem: &Problem,
) -> candle_core::Result<Source> {
    let name = argument.name();
    let needed = problem.optional_input(argument);
    let (dtype, n_elems) =
        needed.ok_or_else(|| Error::from(ProblemError::NotTaken { argument }))?;
    let source = match dtype {
        ScalarType::I32 => Source::lengths(name, vector, q)?,
        _ => {
            beside(name, vector, 1, q, DType::F32)?;
            Source::Tensor(vector.contiguous()?)
        }
    };
    has_shape(name, vector, &[n_elems])?;
    Ok(source)
}
