//! What a backward pass starts from.

use super::{Lse, Tensor};

/// Gradients of a loss with respect to what the forward pass gave: what the backward pass starts from.
///
/// Most losses depend on o alone, and `&d_o` will do where a call asks for this. Where lse enters the loss too (sinks,
/// merged parts of attention, ring attention), its gradient is added; it costs one subtraction per row.
///
/// ```
/// use ferroflash::{
///     Attention, Device, Dtype, Gradients, Lse, LseMut, OutputGradients, Problem, Saved, Tensor, TensorMut,
/// };
///
/// // One row that sees two keys, all of one column; the loss is lse.
/// let problem = Problem::builder(Dtype::F32).seqlen_q(1).seqlen_k(2).heads(1).head_dim(1).softmax_scale(1.0).build()?;
/// let attention = Attention::new(&Device::cpu(), problem)?;
/// let (q, k, v) = ([1f32], [0f32, 3f32.ln()], [5f32, 7f32]);
/// let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
/// let (q, k, v) = (Tensor::bshd(&q, shape_q)?, Tensor::bshd(&k, shape_k)?, Tensor::bshd(&v, shape_k)?);
/// let (mut o, mut lse) = ([0f32], [0f32]);
/// attention.forward(&q, &k, &v, &mut TensorMut::bshd(&mut o, shape_q)?, &mut LseMut::Host(&mut lse))?;
///
/// let (mut d_q, mut d_k, mut d_v) = ([0f32], [0f32; 2], [0f32; 2]);
/// attention.backward(
///     &Saved { q, k, v, o: Tensor::bshd(&o, shape_q)?, lse: Lse::Host(&lse) },
///     OutputGradients { d_o: Tensor::bshd(&[0f32], shape_q)?, d_lse: Some(Lse::Host(&[1.0])) },
///     &mut Gradients {
///         d_q: TensorMut::bshd(&mut d_q, shape_q)?,
///         d_k: TensorMut::bshd(&mut d_k, shape_k)?,
///         d_v: TensorMut::bshd(&mut d_v, shape_k)?,
///     },
/// )?;
/// // The gradient of lse by a score is its weight: 1/4 and 3/4 here.
/// assert!((d_k[0] - 0.25).abs() < 1e-6 && (d_k[1] - 0.75).abs() < 1e-6);
/// assert!((d_q[0] - 0.75 * 3f32.ln()).abs() < 1e-6);
/// assert_eq!(d_v, [0.0; 2]);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OutputGradients<'a> {
    /// Gradient of the output.
    pub d_o: Tensor<'a>,
    /// Gradient of lse; `None` where the loss does not depend on it. What it says of a row that sees no key is ignored.
    pub d_lse: Option<Lse<'a>>,
}

impl<'a> From<&Tensor<'a>> for OutputGradients<'a> {
    fn from(d_o: &Tensor<'a>) -> OutputGradients<'a> {
        OutputGradients {
            d_o: *d_o,
            d_lse: None,
        }
    }
}
