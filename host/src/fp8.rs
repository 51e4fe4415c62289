//! A tensor to 8 bits on a device: [`Quantize::run`].
//!
//! [`Fp8`](crate::Fp8) problems take q, k and v in e4m3 with scales. Here a device makes both of a tensor in bf16, f16 or f32; [`quantize`](crate::quantize) has more
//! remedies against the error, on the CPU alone.
//!
//! ```
//! use ferroflash::{Device, Dtype, Fp8, Quantize, QuantizeInputs, QuantizeOutputs, QuantizeProblem, Tensor, TensorMut};
//! use float8::F8E4M3;
//!
//! // Two rows of two heads of one column; each head has a scale.
//! let (shape, x) = ([1, 2, 2, 1], [896f32, 1.0, -2.0, -448.0]);
//! let quantize = Quantize::new(&Device::cpu(), QuantizeProblem::new(Dtype::F32, shape, Fp8::PerHead))?;
//! let (mut rounded, mut descale, mut amax) = ([F8E4M3::ZERO; 4], [0f32; 2], [0f32; 2]);
//! let mut outputs = QuantizeOutputs::new(TensorMut::bshd(&mut rounded, shape)?, &mut descale).amax(&mut amax);
//! quantize.run(&QuantizeInputs::new(&Tensor::bshd(&x, shape)?), &mut outputs)?;
//! assert_eq!((descale, amax), ([2.0, 1.0], [896.0, 448.0]));
//! assert_eq!(rounded.map(|x| x.to_f32()), [448.0, 1.0, -1.0, -448.0]);
//! # Ok::<(), ferroflash::Error>(())
//! ```

use crate::arguments::{Operands, QuantizeInputs, QuantizeOutputs};
use crate::backend::cpu;
use crate::device::Device;
use crate::error::Error;
use crate::operation::{Call, Done};
use crate::plan::plan_quantize;
use crate::prepared::{Layouts, PreparedQuantize};
use crate::problem::quantize::QuantizeProblem;
use crate::validate::quantize::{check_quantize, quantize_sizes, quantize_values};

/// Roundings of one shape and type on a device.
///
/// ```text
/// amax    = max |x|                      of the tensor, of each sequence and head of keys, or of each of its blocks: see `Fp8`
/// descale = amax / 448                   1 if amax is 0; at least 2^-60; a power of 2 if the problem says so
/// rounded = e4m3(x · (1 / descale))      nearest, ties to even; ±448 for what is beyond
/// ```
///
/// - An infinity or a NaN makes all numbers that share its scale NaN, with a scale of 1 and an amax that says so. With given scales an infinity becomes ±448, and a NaN a NaN.
/// - With given scales amax is that of x all the same, for [`DelayedScaling::update`](crate::quantize::DelayedScaling::update): of the numbers before any becomes ±448.
/// - A GPU reads x twice to find scales, and once with given ones, whether amax is wanted or not.
/// - x and the result have any strides whose last dimension is contiguous. Rows of no packed sequence are not written.
/// - Every call checks lengths and scales on the host. The host does not look at those in device memory: of a sequence longer than the problem says, the rows beyond
///   are not written.
/// - Equal inputs give equal bits.
///
/// GPUs of compute capability 8.9 on take a head_dim of up to 256, a multiple of 16, in tensors that begin at multiples of 16 bytes, with such strides. The CPU takes any head_dim up to 576.
///
/// The [module](crate::fp8) has an example.
#[derive(Clone, Debug)]
pub struct Quantize {
    device: Device,
    problem: QuantizeProblem,
}

impl Quantize {
    /// Roundings of this shape and type.
    ///
    /// # Errors
    /// A size makes no sense: head_dim is 0 or above 576, heads are no multiple of heads_k.
    pub fn new(device: &Device, problem: QuantizeProblem) -> Result<Quantize, Error> {
        quantize_sizes(&problem)?;
        Ok(Quantize {
            device: device.clone(),
            problem,
        })
    }

    /// The problem.
    pub fn problem(&self) -> &QuantizeProblem {
        &self.problem
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Rounds x. Returns when the results are written. On a GPU it takes tensors on the host and in device memory, as [`Attention`](crate::Attention)'s calls do.
    ///
    /// # Errors
    /// [`ProblemError`](crate::error::ProblemError), [`PlanError`](crate::error::PlanError): an argument does not fit, a length on the host contradicts another, or a
    /// scale on the host is none. Nothing was written.
    pub fn run(
        &self,
        inputs: &QuantizeInputs,
        outputs: &mut QuantizeOutputs,
    ) -> Result<Done, Error> {
        self.compute(&mut Operands::quantize(inputs, outputs))
    }

    /// Prepares roundings of tensors of these layouts in device memory, to be enqueued on a [`Queue`](crate::Queue) without waiting. Only on a GPU. Calls give amax if
    /// [`Layouts::giving`] names [`Amax`](crate::error::Argument::Amax).
    pub fn prepare(&self, layouts: &Layouts) -> Result<PreparedQuantize, Error> {
        Ok(PreparedQuantize::new(self.call().prepare(layouts)?))
    }

    pub(crate) fn compute(&self, operands: &mut Operands) -> Result<Done, Error> {
        self.call().run(operands, |problem, operands| {
            Ok(cpu::quantize::run(problem, operands)?)
        })
    }

    fn call(&self) -> Call<'_, QuantizeProblem> {
        Call {
            device: &self.device,
            problem: &self.problem,
            check: |problem, arguments| Ok(check_quantize(problem, arguments)?),
            lengths: quantize_values,
            plan: plan_quantize,
        }
    }
}
