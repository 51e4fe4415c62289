//! Tensors other than q, k and v that have gradients: sinks, and biases that a score reads.
//!
//! candle's operations have at most three inputs. So a chain of nodes precedes attention, one for each of these tensors and one for v. Their results
//! are tokens: a meaningless number each. The last token is attention's third input. Its backward pass computes all gradients and leaves those of
//! the chain in [`Passed`]; each node returns its own when candle visits it, which is after attention. No tensor is copied, and there is one backward pass.

use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor};
use ferroflash::Problem;
use ferroflash::arguments::Argument;

use crate::given::{Given, Source};

/// A tensor that has a gradient and requires it.
#[derive(Clone)]
pub(crate) struct Carried {
    /// Its role.
    pub(crate) of: Of,
    /// The tensor.
    pub(crate) tensor: Tensor,
    /// The shape of the gradient from the backward pass: smaller than the tensor, if the tensor has spare rows or columns.
    pub(crate) shape: Vec<usize>,
}

/// The role of a tensor in a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// An optional input of ferroflash, by its gradient.
    Input(Argument),
    /// A tensor that the score reads: its name, and its index in the score.
    Tensor(&'static str, usize),
}

/// Gradients that attention has computed for the chain's nodes, in its order.
#[derive(Default)]
pub(crate) struct Passed(Mutex<Vec<Option<Tensor>>>);

/// A tensor and the previous token → a token.
struct Link {
    passed: Arc<Passed>,
    at: usize,
}

impl Carried {
    /// Those that require a gradient, and have one.
    pub(crate) fn all(problem: &Problem, given: &Given) -> Vec<Carried> {
        let inputs = given.read.iter().filter_map(|(argument, source)| {
            let gradient = argument.optional_input()?.gradient?;
            let Source::Tensor(tensor) = source else {
                return None;
            };
            Some(Carried {
                of: Of::Input(gradient),
                tensor: tensor.clone(),
                shape: tensor.dims().to_vec(),
            })
        });
        let tensors = given.edit.tensors().filter_map(|(name, tensor)| {
            Some(Carried {
                of: Of::Tensor(name, given.edit.place(name)?),
                tensor: tensor.clone(),
                shape: problem.score_gradient_shape(name).ok()?,
            })
        });
        let all = inputs.chain(tensors);
        all.filter(|carried| carried.tensor.track_op()).collect()
    }

    /// The gradient of the whole tensor, from the backward pass's: 0 beyond it.
    pub(crate) fn whole(&self, mut gradient: Tensor) -> Result<Tensor> {
        for (dim, (&n, &given)) in self.tensor.dims().iter().zip(&self.shape).enumerate() {
            if given < n {
                gradient = gradient.pad_with_zeros(dim, 0, n - given)?;
            }
        }
        Ok(gradient)
    }
}

impl Passed {
    /// A chain of these tensors on a device: returns its last token.
    pub(crate) fn chain(tensors: &[&Tensor], device: &Device) -> Result<(Arc<Passed>, Tensor)> {
        let passed = Arc::new(Passed::default());
        let mut token = Tensor::zeros((), DType::F32, device)?;
        for (at, tensor) in tensors.iter().enumerate() {
            let passed = Arc::clone(&passed);
            token = tensor.apply_op2(&token, Link { passed, at })?;
        }
        Ok((passed, token))
    }

    /// Leaves the gradients of the chain's tensors.
    pub(crate) fn put(&self, gradients: Vec<Option<Tensor>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gradients;
    }

    fn take(&self, at: usize) -> Option<Tensor> {
        let mut gradients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gradients.get_mut(at)?.take()
    }
}

impl CustomOp2 for Link {
    fn name(&self) -> &'static str {
        "ferroflash-carried"
    }

    fn cpu_fwd(
        &self,
        _tensor: &CpuStorage,
        _tensor_layout: &Layout,
        _token: &CpuStorage,
        _token_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        _tensor: &CudaStorage,
        _tensor_layout: &Layout,
        token: &CudaStorage,
        token_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;

        Ok((token.try_clone(token_layout)?, Shape::from(())))
    }

    fn bwd(
        &self,
        _tensor: &Tensor,
        _token: &Tensor,
        _result: &Tensor,
        d_token: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.passed.take(self.at), Some(d_token.clone())))
    }
}
