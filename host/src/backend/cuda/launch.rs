//! The kernels of a plan, enqueued: the only launch of the list's kernels.

use std::sync::Arc;

use super::context::Current;
use super::device::CudaDevice;
use super::marks::Marks;
use super::stream::StreamRef;
use crate::arguments::{Argument, ByArgument, Values};
use crate::error::DriverError;
use crate::plan::{Lies, Planned, PlannedLaunch, give};
use ferroflash_driver::extra::function::{self, LaunchSize};
use ferroflash_kernels::params::bind;

/// A plan with its kernels loaded on a device, so that [`Launches::enqueue`] looks nothing up and allocates nothing.
#[derive(Debug)]
pub(crate) struct Launches<P> {
    plan: P,
    kernels: Box<[Ready]>,
    lie: ByArgument<Lies>,
    device: Arc<CudaDevice>,
}

/// The kernel of one launch.
#[derive(Debug)]
struct Ready {
    function: ferroflash_driver::sys::CUfunction,
    size: LaunchSize,
}

// SAFETY: the driver lets every thread launch a function; `device`, held beside it, keeps the function loaded.
unsafe impl Send for Ready {}
// SAFETY: as above; nothing changes after it is made.
unsafe impl Sync for Ready {}

impl<P: Planned> Launches<P> {
    /// Finds the kernels of a plan, loading those that are not yet.
    pub(crate) fn new(device: &Arc<CudaDevice>, plan: P) -> Result<Launches<P>, DriverError> {
        let ready = |launch: &PlannedLaunch| {
            let kernel = device.edited_kernel(launch.variant, launch.spec, launch.edit)?;
            let tile_config = &launch.variant.tile_config;
            let size = LaunchSize {
                grid: launch.grid,
                threads: tile_config.threads,
                shared_bytes: tile_config.shared_bytes,
            };
            Ok(Ready {
                function: kernel.function(),
                size,
            })
        };
        let kernels = plan
            .planned_launches()
            .iter()
            .map(ready)
            .collect::<Result<_, DriverError>>()?;
        Ok(Launches {
            lie: ByArgument::from_fn(|argument| plan.lies(argument)),
            plan,
            kernels,
            device: Arc::clone(device),
        })
    }

    /// The plan.
    pub(crate) fn plan(&self) -> &P {
        &self.plan
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Enqueues the kernels on a stream of the device and returns; the memory at the addresses is in use until they
    /// are done.
    ///
    /// The caller has checked that each argument of the call is at its address with the plan's strides, that the workspace has
    /// `plan.workspace_layout()`, that all are in memory of this device, and that the counters are 0. Events of `marks` are
    /// recorded between the launches. The device's context is current.
    pub(super) fn enqueue(
        &self,
        workspace: u64,
        address: impl Fn(Argument) -> u64,
        values: &Values,
        marks: Option<&Marks>,
        on: StreamRef<'_>,
        _current: &Current,
    ) -> Result<(), DriverError> {
        let stream = on.as_raw();
        let dtype = self.plan.dtype();
        let launches = self.plan.planned_launches();
        for (idx, (launch, ready)) in launches.iter().zip(&self.kernels).enumerate() {
            self.mark(marks, idx, on)?;
            let (function, size) = (ready.function, ready.size);
            let mut params = launch.params;
            give(&mut params, launch, Some(values));
            bind(&mut params, workspace, |argument| {
                self.lie[argument].at(workspace, || address(argument))
            });
            self.device.tensor_maps().encode(&mut params, dtype)?;
            let params = params.bytes();
            // SAFETY: at `params` lies a struct of the type that the kernel of `launch.variant` takes: a plan pairs them. With
            // `launch.grid`, which covers the shape in them, the kernel stays inside the arguments and the workspace,
            // which the caller has checked to lie where the addresses say. The context is current; a stream of another is
            // refused.
            unsafe {
                match launch.runs_together() {
                    false => function::launch(function, size, stream, params)?,
                    true => function::launch_together(function, size, stream, params)?,
                }
            }
        }
        self.mark(marks, launches.len(), on)
    }
}
