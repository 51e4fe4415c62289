//! The calls: [`Attention::forward`], [`Attention::backward`], and what would run them. The first file to read.

use std::fmt;

use crate::backend::cpu;
#[cfg(feature = "emulator")]
use crate::backend::emulated;
use crate::device::{Device, Kind};
use crate::error::{Error, PlanError, ProblemError};
use crate::plan::{self, Algorithm, Backend, Candidate, Plan};
use crate::problem::Problem;
use crate::tensor::{Gradients, LseMut, Place, Saved, Tensor, TensorMut};
use crate::validate::{self, Checked, ForwardTensors, GradientTensors, Pass};

/// A problem on a device.
///
/// The calls here return when the result is there. On a GPU they take host tensors (copied there and back) as well as
/// tensors of its memory; to enqueue work without waiting for it, see [`Attention::prepare_forward`].
#[derive(Clone, Debug)]
pub struct Attention {
    device: Device,
    problem: Problem,
    algorithm: Option<Algorithm>,
}

/// What ran, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The backend.
    pub backend: Backend,
    /// Why this device: asked for by name, or what [`Device::best`] found.
    pub why_device: String,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The kernels, in launch order; empty on the CPU.
    pub kernels: Vec<&'static str>,
    /// Bytes of memory used beside inputs and outputs.
    pub extra_bytes: u64,
    /// Bytes that holding the scores and the weights would take.
    pub standard_bytes: u64,
    /// What became of every algorithm.
    pub candidates: Vec<Candidate>,
}

/// What would run a pass, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The device, in words.
    pub device: String,
    /// Why this device.
    pub why_device: String,
    /// The plan, or every candidate with the reason why it cannot serve.
    pub plan: Result<Plan, PlanError>,
}

impl Attention {
    /// A problem on a device; an error says which size makes no sense.
    pub fn new(device: &Device, problem: Problem) -> Result<Attention, Error> {
        validate::sizes(&problem)?;
        Ok(Attention { device: device.clone(), problem, algorithm: None })
    }

    /// The same with an algorithm chosen by name: where it cannot serve, calls give an error instead of another one.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Attention {
        Attention { algorithm: Some(algorithm), ..self }
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// o = softmax(q·kᵀ · softmax_scale, masked) · v, and lse.
    pub fn forward(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &mut TensorMut,
        lse: &mut LseMut,
    ) -> Result<Ran, Error> {
        let tensors = ForwardTensors::of(q, k, v, o, lse);
        let plan = self.plan(&validate::forward(&self.problem, tensors)?)?;
        match self.device.kind() {
            Kind::Cpu => {
                let lse = lse.host().ok_or_else(|| self.elsewhere(&plan))?;
                cpu::forward(&self.problem, q, k, v, o, lse)?;
            }
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => emulated::forward(&plan, options, q, k, v, o, lse)?,
        }
        Ok(self.ran(plan))
    }

    /// Gradients of q, k and v from the gradient of o, with the probabilities worked out again.
    pub fn backward(&self, saved: &Saved, d_o: &Tensor, gradients: &mut Gradients) -> Result<Ran, Error> {
        let tensors = GradientTensors::of(d_o, gradients);
        let checked = validate::backward(&self.problem, ForwardTensors::saved(saved), tensors)?;
        let plan = self.plan(&checked)?;
        match self.device.kind() {
            Kind::Cpu => cpu::backward(&self.problem, saved, d_o, gradients)?,
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => emulated::backward(&plan, options, saved, d_o, gradients)?,
        }
        Ok(self.ran(plan))
    }

    /// What would run a pass on contiguous tensors, and what became of every other candidate.
    pub fn explain(&self, pass: Pass) -> Result<Explanation, Error> {
        let checked = validate::without_tensors(&self.problem, pass, self.device.place())?;
        Ok(Explanation {
            device: self.device.to_string(),
            why_device: self.device.why().to_owned(),
            plan: plan::plan(&checked, &self.device.info(), self.device.backend(), self.algorithm),
        })
    }

    fn plan(&self, checked: &Checked) -> Result<Plan, Error> {
        let (given, needed) = (checked.place(), self.device.place());
        if given != needed {
            return Err(ProblemError::OtherDevice { given, needed }.into());
        }
        let plan = plan::plan(checked, &self.device.info(), self.device.backend(), self.algorithm)?;
        Ok(plan)
    }

    fn ran(&self, plan: Plan) -> Ran {
        Ran {
            backend: plan.backend,
            why_device: self.device.why().to_owned(),
            algorithm: plan.algorithm,
            kernels: plan.kernels().collect(),
            extra_bytes: plan.workspace.n_bytes(),
            standard_bytes: plan.standard_bytes,
            candidates: plan.candidates,
        }
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}), algorithm {}", self.backend, self.why_device, self.algorithm)?;
        for kernel in &self.kernels {
            writeln!(f, "  kernel {kernel}")?;
        }
        for candidate in &self.candidates {
            writeln!(f, "  {candidate}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.device, self.why_device)?;
        match &self.plan {
            Ok(plan) => write!(f, "{plan}"),
            Err(error) => writeln!(f, "{error}"),
        }
    }
}
