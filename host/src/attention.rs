//! The calls: [`Attention::forward`], [`Attention::backward`], and what would run them. The first file to read.

use std::fmt;

#[cfg(feature = "emulator")]
use crate::backend::emulated;
use crate::backend::{cpu, staging};
use crate::device::{Device, Kind};
use crate::error::{Error, PlanError, ProblemError};
use crate::plan::{self, Algorithm, Backend, Candidate, Plan};
use crate::prepared::{ForwardLayouts, GradientLayouts, PreparedBackward, PreparedForward};
use crate::problem::Problem;
use crate::tensor::{Gradients, LseMut, OutputGradients, Place, Saved, Tensor, TensorMut};
use crate::validate::{self, Checked, ForwardTensors, GradientTensors, Pass};

/// The lse of a call whose q lies on the host; validation has refused it already.
const NOT_ON_HOST: ProblemError = ProblemError::OtherDevice {
    given: Place::Cuda(0),
    needed: Place::Host,
};

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
        Ok(Attention {
            device: device.clone(),
            problem,
            algorithm: None,
        })
    }

    /// The same with an algorithm chosen by name: where it cannot serve, calls give an error instead of another one.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Attention {
        Attention {
            algorithm: Some(algorithm),
            ..self
        }
    }

    /// The algorithm that was asked for by name.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
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
        let plan = self.plan(tensors.q.place, |moved| {
            let tensors = moved.map_or(tensors, |place| tensors.moved_to(place));
            validate::forward(&self.problem, tensors)
        })?;
        let ran = self.ran(&plan);
        match self.device.kind() {
            Kind::Cuda(device) => staging::forward(device, plan, [q, k, v], o, lse, None)?,
            Kind::Cpu => cpu::forward(&self.problem, q, k, v, o, lse.host().ok_or(NOT_ON_HOST)?)?,
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => emulated::forward(&plan, options, [q, k, v], o, lse, None)?,
        }
        Ok(ran)
    }

    /// As [`Attention::forward`], and the weights: softmax(q·kᵀ · softmax_scale, masked), a tensor as
    /// [`Problem::weights_layout`] says. Only `standard` holds them, so a device without it gives an error.
    pub fn forward_with_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &mut TensorMut,
        lse: &mut LseMut,
        weights: &mut TensorMut,
    ) -> Result<Ran, Error> {
        let tensors = ForwardTensors::of(q, k, v, o, lse);
        let described = weights.describe();
        let plan = self.plan(tensors.q.place, |moved| match moved {
            None => validate::forward_with_weights(&self.problem, tensors, described),
            Some(place) => {
                let (tensors, weights) = (tensors.moved_to(place), described.moved_to(place));
                validate::forward_with_weights(&self.problem, tensors, weights)
            }
        })?;
        let ran = self.ran(&plan);
        match self.device.kind() {
            Kind::Cuda(device) => staging::forward(device, plan, [q, k, v], o, lse, Some(weights))?,
            // Planning has refused: the CPU's algorithm does not hold the weights.
            Kind::Cpu => {}
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => {
                emulated::forward(&plan, options, [q, k, v], o, lse, Some(weights))?
            }
        }
        Ok(ran)
    }

    /// Gradients of q, k and v from that of o (`&d_o`) and, where the loss depends on it, that of lse
    /// ([`OutputGradients`]), with the probabilities worked out again.
    pub fn backward<'a>(
        &self,
        saved: &Saved,
        of_output: impl Into<OutputGradients<'a>>,
        gradients: &mut Gradients,
    ) -> Result<Ran, Error> {
        let of_output = of_output.into();
        let tensors = ForwardTensors::saved(saved);
        let others = GradientTensors::of(&of_output, gradients);
        let plan = self.plan(tensors.q.place, |moved| match moved {
            None => validate::backward(&self.problem, tensors, others),
            Some(place) => validate::backward(
                &self.problem,
                tensors.moved_to(place),
                others.moved_to(place),
            ),
        })?;
        let ran = self.ran(&plan);
        match self.device.kind() {
            Kind::Cuda(device) => staging::backward(device, plan, saved, &of_output, gradients)?,
            Kind::Cpu => cpu::backward(&self.problem, saved, &of_output, gradients)?,
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => {
                emulated::backward(&plan, options, saved, &of_output, gradients)?
            }
        }
        Ok(ran)
    }

    /// Prepares a forward pass for tensors of these layouts in the device's memory: to be enqueued on streams, without
    /// waiting. Only on a GPU.
    pub fn prepare_forward(&self, layouts: &ForwardLayouts) -> Result<PreparedForward, Error> {
        let device = self.device.as_cuda().ok_or(PlanError::NotAsynchronous {
            backend: self.device.backend(),
        })?;
        let tensors = layouts.tensors(&self.problem, self.device.place())?;
        let checked = validate::forward(&self.problem, tensors)?;
        let plan = self.plan_checked(&checked)?;
        PreparedForward::new(device, &checked, plan)
    }

    /// Prepares a backward pass as [`Attention::prepare_forward`] does a forward pass.
    pub fn prepare_backward(
        &self,
        layouts: &ForwardLayouts,
        gradients: &GradientLayouts,
    ) -> Result<PreparedBackward, Error> {
        let device = self.device.as_cuda().ok_or(PlanError::NotAsynchronous {
            backend: self.device.backend(),
        })?;
        let place = self.device.place();
        let tensors = layouts.tensors(&self.problem, place)?;
        let gradients = gradients.tensors(&self.problem, place);
        let checked = validate::backward(&self.problem, tensors, gradients)?;
        let plan = self.plan_checked(&checked)?;
        PreparedBackward::new(device, &checked, gradients, plan)
    }

    /// What would run a pass on contiguous tensors, and what became of every other candidate.
    pub fn explain(&self, pass: Pass) -> Result<Explanation, Error> {
        let checked = validate::without_tensors(&self.problem, pass, self.device.place())?;
        Ok(Explanation {
            device: self.device.to_string(),
            why_device: self.device.why().to_owned(),
            plan: plan::plan(
                &checked,
                self.device.info(),
                self.device.backend(),
                self.algorithm,
            ),
        })
    }

    /// Plans a call whose tensors lie in `given`: as they are, and for a GPU that is given tensors of the host once
    /// more as they will lie in its memory.
    fn plan(
        &self,
        given: Place,
        check: impl Fn(Option<Place>) -> Result<Checked, ProblemError>,
    ) -> Result<Plan, Error> {
        let checked = check(None)?;
        let needed = self.device.place();
        match (given, self.device.kind()) {
            (given, _) if given == needed => self.plan_checked(&checked),
            (Place::Host, Kind::Cuda(_)) => self.plan_checked(&check(Some(needed))?),
            _ => Err(ProblemError::OtherDevice { given, needed }.into()),
        }
    }

    fn plan_checked(&self, checked: &Checked) -> Result<Plan, Error> {
        Ok(plan::plan(
            checked,
            self.device.info(),
            self.device.backend(),
            self.algorithm,
        )?)
    }

    fn ran(&self, plan: &Plan) -> Ran {
        Ran {
            backend: plan.backend,
            why_device: self.device.why().to_owned(),
            algorithm: plan.algorithm,
            kernels: plan.kernels().collect(),
            extra_bytes: plan.extra_bytes(),
            standard_bytes: plan.standard_bytes,
            candidates: plan.candidates.clone(),
        }
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}), algorithm {}",
            self.backend, self.why_device, self.algorithm
        )?;
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
