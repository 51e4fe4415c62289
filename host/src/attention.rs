//! The calls: [`Attention::forward`], [`Attention::backward`], and the plans behind them. The first file to read.

use std::fmt;

use crate::arguments::{
    Argument, ArgumentSet, Arguments, ByArgument, Form, Given, Gradients, Inputs, Operands,
    OutputGradients, Outputs, Saved, need,
};
use crate::backend::cuda::memory::elements;
#[cfg(feature = "emulator")]
use crate::backend::emulated;
use crate::backend::{cpu, staging};
use crate::device::{Device, Kind};
use crate::dtype::ScalarType;
use crate::error::{Error, PlanError, ProblemError};
use crate::lengths;
use crate::plan::{self, Algorithm, Backend, Candidate, Plan, SpecialisedKernel};
use crate::prepared::{Layouts, Prepared, PreparedBackward, PreparedForward};
use crate::problem::Problem;
use crate::tensor::{Location, Memory, Vector};
use crate::validate::{self, Checked, Pass};

/// A problem on a device.
///
/// These calls return when the result is ready. On a GPU they take tensors in device memory, and tensors on the host, which they copy there and
/// back. On a GPU they allocate, free and wait for all work of the device; to enqueue work without waiting, see [`Attention::prepare_forward`].
/// While a thread captures a stream of the device into a graph, the driver may refuse such calls
/// ([`DriverError::Capture`](crate::error::DriverError::Capture)), and they may invalidate the capture: capture prepared calls instead.
#[derive(Clone, Debug)]
pub struct Attention {
    device: Device,
    problem: Problem,
    algorithm: Option<Algorithm>,
}

/// What ran, and why.
///
/// [`attend`](crate::attend()) has an example that prints it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// The backend.
    pub backend: Backend,
    /// Why this device: asked for by name, or what [`Device::best`] found.
    pub why_device: String,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The kernels, in launch order; empty on the CPU.
    pub kernels: Vec<SpecialisedKernel>,
    /// Bytes of memory used in addition to inputs and outputs.
    pub extra_bytes: u64,
    /// Bytes that the full matrices of scores and weights would take.
    pub standard_bytes: u64,
    /// For every algorithm, whether it was chosen or why not.
    pub candidates: Vec<Candidate>,
}

/// What would run a pass, and why.
///
/// [`Attention::explain`] makes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Description of the device.
    pub device: String,
    /// Why this device.
    pub why_device: String,
    /// The plan, or every candidate with the reason why it cannot run this call.
    pub plan: Result<Plan, PlanError>,
}

impl Attention {
    /// A problem on a device. The error names the size that is invalid.
    pub fn new(device: &Device, problem: Problem) -> Result<Attention, Error> {
        validate::sizes(&problem)?;
        Ok(Attention {
            device: device.clone(),
            problem,
            algorithm: None,
        })
    }

    /// The same with an algorithm chosen by name. If it cannot run a call, the call is an error; no other algorithm is taken.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Attention {
        Attention {
            algorithm: Some(algorithm),
            ..self
        }
    }

    /// The same for calls with these optional arguments.
    pub(crate) fn giving(&self, arguments: ArgumentSet) -> Attention {
        Attention {
            problem: self.problem.with_given(arguments),
            ..self.clone()
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

    /// o = softmax(q·kᵀ · softmax_scale, masked) · v, and lse, and the weights if [`Outputs::weights`] asks for them.
    pub fn forward(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<Ran, Error> {
        let pass = match outputs.weights {
            None => Pass::Forward,
            Some(_) => Pass::ForwardWithWeights,
        };
        self.run(pass, &mut Operands::forward(inputs, outputs))
    }

    /// Gradients of q, k and v from that of o and, if the loss depends on lse, that of lse. The probabilities are recomputed.
    pub fn backward(
        &self,
        inputs: &Inputs,
        saved: &Saved,
        of_output: &OutputGradients,
        gradients: &mut Gradients,
    ) -> Result<Ran, Error> {
        let mut operands = Operands::backward(inputs, saved, of_output, gradients);
        self.run(Pass::Backward, &mut operands)
    }

    /// Runs a pass; returns when the results are ready.
    pub(crate) fn run(&self, pass: Pass, operands: &mut Operands) -> Result<Ran, Error> {
        let problem = &self.problem.with_given(operands.which());
        validate::bind(problem, operands)?;
        let given = operands.describe();
        let plan = self.plan(pass, given)?;
        let of_host = given.get(Argument::Q).map(Given::location) == Some(Location::Host);
        if of_host && self.device.checks_lengths() {
            lengths::check(problem, |argument| operands.numbers(argument))?;
        }
        if of_host {
            validate::descales(problem, |argument| operands.numbers(argument))?;
        }
        let ran = self.ran(&plan);
        match self.device.kind() {
            Kind::Cuda(device) => staging::run(device, plan, operands)?,
            Kind::Cpu => cpu::run(problem, pass, operands)?,
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => emulated::run(&plan, options, operands)?,
        }
        Ok(ran)
    }

    /// Checks whether the lengths of the sequences fit each other and the problem. A call checks only lengths on the host. It does not look at
    /// lengths in device memory, and its results are meaningless if they do not fit; this function copies them to the host and checks them there. It
    /// waits for all work of the device, so do not call it during a capture.
    pub fn check_lengths(&self, inputs: &Inputs) -> Result<(), Error> {
        let operands = Operands::inputs(inputs);
        let described = operands.describe();
        let mut copied = ByArgument::<Option<Vec<i32>>>::default();
        for argument in Argument::ALL {
            let Some(given) = described.vector(argument) else {
                continue;
            };
            match need(&self.problem, Pass::Forward, argument).map(|need| need.form) {
                Some(Form::Vector { dtype, n_elems }) => {
                    validate::vector_fits(argument, given, dtype, n_elems)?;
                    if dtype == ScalarType::I32 {
                        copied[argument] = Some(self.numbers(argument, &operands)?);
                    }
                }
                _ => return Err(ProblemError::NotTaken { argument }.into()),
            }
        }
        let vector = |argument| copied[argument].as_deref();
        Ok(lengths::check(&self.problem, vector)?)
    }

    /// The numbers of a vector of lengths, on the host.
    fn numbers(&self, argument: Argument, operands: &Operands) -> Result<Vec<i32>, Error> {
        match (
            operands.vector(argument).map(Vector::memory),
            &self.device.kind(),
        ) {
            (Some(Memory::Host(_)), _) => {
                Ok(operands.numbers(argument).unwrap_or_default().to_vec())
            }
            (Some(Memory::Device(slice)), Kind::Cuda(device))
                if slice.ordinal() == device.ordinal() =>
            {
                Ok(elements(device, slice, 0..slice.n_elems())?)
            }
            (given, _) => Err(ProblemError::OtherDevice {
                given: given.map_or(Location::Host, Memory::location),
                needed: self.device.location(),
            }
            .into()),
        }
    }

    /// Prepares a forward pass for tensors of these layouts in device memory, to be enqueued on a [`Queue`](crate::Queue) without waiting. Only on a GPU.
    pub fn prepare_forward(&self, layouts: &Layouts) -> Result<PreparedForward, Error> {
        Ok(PreparedForward::new(self.prepare(Pass::Forward, layouts)?))
    }

    /// Prepares a backward pass as [`Attention::prepare_forward`] does a forward pass.
    pub fn prepare_backward(&self, layouts: &Layouts) -> Result<PreparedBackward, Error> {
        Ok(PreparedBackward::new(
            self.prepare(Pass::Backward, layouts)?,
        ))
    }

    fn prepare(&self, pass: Pass, layouts: &Layouts) -> Result<Prepared<Plan>, Error> {
        let device = self.device.as_cuda().ok_or(PlanError::NotAsynchronous {
            backend: self.device.backend(),
        })?;
        let arguments = layouts.arguments(&self.problem, pass, self.device.location())?;
        let checked = validate::check(&self.problem, pass, arguments)?;
        let plan = self.plan_checked(&checked)?;
        Ok(Prepared::new(device, *checked.arguments(), plan)?)
    }

    /// What would run a pass on contiguous tensors, and why every other candidate would not.
    pub fn explain(&self, pass: Pass) -> Result<Explanation, Error> {
        let checked = validate::without_tensors(&self.problem, pass, self.device.location())?;
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

    /// Plans a call with its arguments as they are. If a GPU is given arguments on the host, plans once more with them as they will be in its memory.
    fn plan(&self, pass: Pass, arguments: Arguments) -> Result<Plan, Error> {
        let checked = validate::check(&self.problem, pass, arguments)?;
        let (given, needed) = (checked.location(), self.device.location());
        match (given, self.device.kind()) {
            (given, _) if given == needed => self.plan_checked(&checked),
            (Location::Host, Kind::Cuda(_)) => {
                let moved = arguments.moved_to(needed);
                self.plan_checked(&validate::check(&self.problem, pass, moved)?)
            }
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
