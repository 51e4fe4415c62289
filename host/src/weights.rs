//! Chosen rows of the weights: [`Attention::weights`].

use std::fmt;

use crate::arguments::{Argument, ByArgument, Inputs, Operands};
use crate::attention::Attention;
use crate::backend::cpu;
use crate::backend::fetch::{Fetch, Fetched};
use crate::error::{Error, ProblemError};
use crate::plan::Backend;
use crate::tensor::Location;
pub use crate::terms::WeightsOf;
use crate::validate;

/// What computed the weights.
///
/// [`Attention::weights`](crate::Attention::weights) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsRan {
    /// The backend: the CPU's, whatever the device is.
    pub backend: Backend,
    /// Bytes that were copied from GPU memory: the rows of q and the head of k, each with the memory between its rows, and the vectors and tensors
    /// of expressions as a whole.
    pub copied_bytes: u64,
    /// Keys of the sequence: the number of elements of each row that are weights. The elements after them are 0.
    pub seqlen_k: usize,
}

/// `cpu`, `cpu, 4096 bytes copied from the GPU`.
impl fmt::Display for WeightsRan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.backend)?;
        match self.copied_bytes {
            0 => Ok(()),
            n => write!(f, ", {n} bytes copied from the GPU"),
        }
    }
}

impl Attention {
    /// Some rows of the weights, `softmax(q·kᵀ · softmax_scale, masked)`, of one head, in f32: `out` is `[rows, seqlen_k]`, with the problem's
    /// seqlen_k. Nothing else is kept: memory in addition to `out` grows with the rows and with the keys, not with their product, and not with batch
    /// entries or heads.
    ///
    /// Masks, expressions, block masks, sinks, lengths and pages apply as in a forward pass; v is not read and may be left out ([`Inputs::latent`]).
    /// A row adds up to 1, or to less if its head has a sink; a row that sees no key is 0. Key 0 is the first key of the sequence, after any left
    /// padding. If a sequence has fewer keys than the longest, the rest of a row is 0.
    ///
    /// The CPU computes them for every device, in f32; an algorithm asked for by name has no effect ([`WeightsRan`]). From GPU memory it copies the
    /// rows of q and the head of k, and lengths, tables, sinks, block masks and tensors of expressions as a whole. It waits for all work of the
    /// device, so do not call it during a capture.
    ///
    /// [`Outputs::weights`](crate::Outputs::weights) gives the weights of all heads and rows, if `standard` runs.
    ///
    /// Errors: those of [`Attention::forward`] about the inputs; a batch entry, a head or rows that do not exist; a wrong length of `out`.
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Mask, Problem, Tensor, WeightsOf};
    ///
    /// // Three tokens whose scores are all 0: each row is spread over the keys that it sees.
    /// let problem = Problem::builder(Dtype::F32).seqlen(3).heads(1).head_dim(1).mask(Mask::Causal).build()?;
    /// let (q, k) = ([0f32; 3], [1f32; 3]);
    /// let inputs = Inputs::latent(&Tensor::bshd(&q, problem.shape_q())?, &Tensor::bshd(&k, problem.shape_k())?);
    /// let mut weights = [0f32; 6];
    /// let of = WeightsOf { batch: 0, head: 0, rows: 1..3 };
    /// Attention::new(&Device::cpu(), problem)?.weights(&inputs, &of, &mut weights)?;
    /// assert_eq!(weights, [0.5, 0.5, 0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn weights(
        &self,
        inputs: &Inputs,
        of: &WeightsOf,
        out: &mut [f32],
    ) -> Result<WeightsRan, Error> {
        let mut operands = Operands::inputs(inputs);
        let problem = &self.problem().with_given(operands.which());
        validate::bind(problem, &mut operands)?;
        let given = validate::weights(problem, &operands.describe(), of, out.len() as u64)?;
        let needed = self.device().location();
        if given != needed && given != Location::Host {
            return Err(ProblemError::OtherDevice { given, needed }.into());
        }
        let fetch = Fetch::new(self.device().as_cuda());
        let mut copies = ByArgument::<Option<Fetched>>::default();
        for argument in Argument::ALL {
            if let Some(vector) = operands.vector(argument) {
                copies[argument] = fetch.vector(vector)?;
            }
        }
        let mut operands =
            operands.with_vectors(|argument| Some(copies[argument].as_ref()?.vector()));
        let seqlen_k = cpu::weights::run(problem, &mut operands, of, &fetch, out)?;
        Ok(WeightsRan {
            backend: Backend::Cpu,
            copied_bytes: fetch.copied_bytes(),
            seqlen_k,
        })
    }
}
