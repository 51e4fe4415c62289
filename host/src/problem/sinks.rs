//! Sinks: a learned term in the denominator of each head's softmax.

use super::{Problem, ProblemBuilder};

impl ProblemBuilder {
    /// The softmax of each query head has one term more in its denominator, exp of the head's *sink*, a learned number that
    /// [`Inputs::sinks`](crate::Inputs::sinks) gives:
    ///
    /// ```text
    /// o   = Σ exp(s_j) v_j / (Σ exp(s_j) + exp(sink))        s_j = q·k_j · softmax_scale
    /// lse = ln(Σ exp(s_j) + exp(sink))
    /// ```
    ///
    /// So a head's weights may add up to less than 1. A sink is finite or −∞, which makes no difference; it is not multiplied by the scale. A row
    /// of a sequence that sees no key has o = 0 and lse = sink. Gradients of q, k and v follow, and that of the sinks,
    ///
    /// ```text
    /// d_sink = Σ over rows of exp(sink − lse) (d_lse − rowsum(d_o ∘ o))
    /// ```
    ///
    /// is written where [`Gradients::d_sinks`](crate::Gradients::d_sinks) asks for it. On every backend, beside every mask, expressions, lengths, pages and
    /// split keys.
    ///
    /// GPT-OSS has such sinks (gpt-oss model card, OpenAI 2025, arXiv:2508.10925, section 2.2); the term goes back to Miller 2023, "Attention is off by one", and
    /// the word to StreamingLLM (Xiao et al. 2023, arXiv:2309.17453).
    ///
    /// ```
    /// use ferroflash::{Attention, Device, Dtype, Inputs, Outputs, Problem, Tensor, TensorMut};
    ///
    /// // One query, two keys whose scores are 0, and a sink of ln 2: half of the weight goes to the sink.
    /// let problem = Problem::builder(Dtype::F32).seqlen_q(1).seqlen_k(2).heads(1).head_dim(1).sinks().build()?;
    /// let (q, k, v) = ([0f32], [0f32; 2], [3f32, 5.]);
    /// let inputs = Inputs::new(
    ///     &Tensor::bshd(&q, problem.shape_q())?,
    ///     &Tensor::bshd(&k, problem.shape_k())?,
    ///     &Tensor::bshd(&v, problem.shape_v())?,
    /// );
    /// let sinks = [2f32.ln()];
    /// let (mut o, mut lse) = ([0f32], [0f32]);
    /// let mut outputs = Outputs::new(TensorMut::bshd(&mut o, problem.shape_o())?, &mut lse);
    /// Attention::new(&Device::cpu(), problem)?.forward(&inputs.sinks(&sinks), &mut outputs)?;
    /// assert!((o[0] - 2.0).abs() < 1e-6 && (lse[0] - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), ferroflash::Error>(())
    /// ```
    pub fn sinks(self) -> Self {
        ProblemBuilder {
            sinks: true,
            ..self
        }
    }
}

impl Problem {
    /// Whether heads have sinks: see [`ProblemBuilder::sinks`].
    pub fn has_sinks(&self) -> bool {
        self.sinks
    }
}
