//! Compilers of kernels ahead of their first call: `ptxas` for any GPU, or the driver of the GPU in this machine.

use std::time::Duration;

use super::AheadKernel;
use crate::backend::cuda::{CudaDevice, KernelCompiler, Origin};
use crate::error::DriverError;
use crate::plan::DeviceInfo;

/// A compiler of kernels ahead of their first call. Threads may share it.
///
/// The [module](crate::ahead) has an example.
#[derive(Debug)]
pub enum Compiler<'a> {
    /// `ptxas`, for a GPU with these limits, which this machine need not have.
    Ahead(Box<(KernelCompiler, DeviceInfo)>),
    /// A GPU of this machine: kernels are loaded as by their first calls, and then are in its folder, if it has one.
    Here(&'a CudaDevice),
}

/// A kernel that is ready for its first call.
///
/// The [module](crate::ahead) has an example.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadyKernel {
    /// The kernel.
    pub kernel: AheadKernel,
    /// Registers of a thread; not known if `ptxas` had compiled the kernel before.
    pub registers: Option<u32>,
    /// How long it took.
    pub time: Duration,
    /// The origin of its code.
    pub origin: Origin,
}

impl Compiler<'_> {
    /// The limits of the GPU that it compiles for.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            Compiler::Ahead(ahead) => &ahead.1,
            Compiler::Here(device) => device.info(),
        }
    }

    /// Makes a kernel ready.
    pub fn compile(&self, kernel: &AheadKernel) -> Result<ReadyKernel, DriverError> {
        let &AheadKernel {
            variant,
            spec,
            edit,
        } = kernel;
        let (registers, time, origin) = match self {
            Compiler::Ahead(ahead) => {
                let compiled = ahead.0.compile(variant, spec, edit)?;
                (compiled.registers, compiled.time, compiled.origin)
            }
            Compiler::Here(device) => {
                let loaded = device.edited_kernel(variant, spec, edit)?;
                let statistics = loaded.statistics();
                let registers = Some(statistics.registers);
                (registers, statistics.load_time, statistics.origin)
            }
        };
        Ok(ReadyKernel {
            kernel: *kernel,
            registers,
            time,
            origin,
        })
    }
}
