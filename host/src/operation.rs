//! The steps of every operation other than attention: check, plan, then run or prepare.

use std::fmt;

use crate::arguments::{Arguments, Given, Operands, Operation};
#[cfg(feature = "emulator")]
use crate::backend::emulated;
use crate::backend::staging;
use crate::device::{Device, Kind};
use crate::error::{Error, PlanError, ProblemError};
use crate::plan::{Backend, DeviceInfo, OperationPlan, SpecialisedKernel};
use crate::prepared::{Layouts, Prepared};
use crate::tensor::Location;
use crate::validate::operation::CheckedOperation;
use crate::validate::unplaced;

/// What ran an operation, and why there.
///
/// [`Append::run`](crate::Append::run) returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// The operation: "merge", "append", "rotate", "quantize".
    pub verb: &'static str,
    /// The backend.
    pub backend: Backend,
    /// Why this device: asked for by name, or what [`Device::best`] found.
    pub why_device: String,
    /// The kernel; none on the CPU, or if there was nothing to do.
    pub kernel: Option<SpecialisedKernel>,
}

/// A call of an operation, by its steps.
pub(crate) struct Call<'a, P> {
    pub(crate) device: &'a Device,
    pub(crate) problem: &'a P,
    pub(crate) check: fn(&P, Arguments) -> Result<CheckedOperation<P>, Error>,
    /// Refuses lengths, on the host, that contradict each other.
    pub(crate) lengths: fn(&P, &Operands) -> Result<(), ProblemError>,
    pub(crate) plan: Planner<P>,
}

/// Plans for a device.
pub(crate) type Planner<P> =
    fn(&CheckedOperation<P>, &DeviceInfo, Backend) -> Result<OperationPlan<P>, PlanError>;

impl<P: Operation> Call<'_, P> {
    /// Runs it; returns when the results are ready. `cpu` runs it on the CPU.
    pub(crate) fn run(
        &self,
        operands: &mut Operands,
        cpu: impl FnOnce(&P, &mut Operands) -> Result<(), Error>,
    ) -> Result<Done, Error> {
        let given = operands.describe();
        let plan = self.plan(given)?;
        let of_host = given.get(P::FIRST).map(Given::location) == Some(Location::Host);
        if of_host && self.device.checks_lengths() {
            (self.lengths)(self.problem, operands)?;
        }
        let done = Done {
            verb: P::VERB,
            backend: plan.backend,
            why_device: self.device.why().to_owned(),
            kernel: plan.kernel(),
        };
        match self.device.kind() {
            Kind::Cuda(device) => staging::run(device, plan, operands)?,
            Kind::Cpu => cpu(self.problem, operands)?,
            #[cfg(feature = "emulator")]
            Kind::Emulated(options) => emulated::run(&plan, options, operands)?,
        }
        Ok(done)
    }

    /// Prepares it for tensors of these layouts.
    pub(crate) fn prepare(&self, layouts: &Layouts) -> Result<Prepared<OperationPlan<P>>, Error> {
        let device = self.device.as_cuda().ok_or(PlanError::NotAsynchronous {
            backend: self.device.backend(),
        })?;
        let need = |argument| self.problem.need(argument);
        let arguments =
            layouts.needed(need, |need| unplaced(need, None, self.device.location()))?;
        let plan = self.plan(arguments)?;
        Ok(Prepared::new(device, arguments, plan)?)
    }

    /// Plans it with its arguments as they are. If a GPU is given arguments on the host, plans once more with them as they will be in its memory.
    fn plan(&self, arguments: Arguments) -> Result<OperationPlan<P>, Error> {
        let mut checked = (self.check)(self.problem, arguments)?;
        let (given, needed) = (checked.location(), self.device.location());
        match (given, self.device.kind()) {
            (given, _) if given == needed => {}
            (Location::Host, Kind::Cuda(_)) => {
                checked = (self.check)(self.problem, arguments.moved_to(needed))?;
            }
            _ => return Err(ProblemError::OtherDevice { given, needed }.into()),
        }
        Ok((self.plan)(
            &checked,
            self.device.info(),
            self.device.backend(),
        )?)
    }
}

/// `merge on cuda (asked for by name)`, then the kernel.
impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Done {
            verb,
            backend,
            why_device,
            kernel,
        } = self;
        writeln!(f, "{verb} on {backend} ({why_device})")?;
        match kernel {
            Some(kernel) => writeln!(f, "  kernel {kernel}"),
            None => Ok(()),
        }
    }
}
