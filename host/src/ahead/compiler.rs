//! What compiles kernels ahead: `ptxas` for a GPU that need not be here, or the GPU that is here.

use std::time::Duration;

use super::AheadKernel;
use crate::backend::cuda::{CudaDevice, KernelCompiler, Origin};
use crate::error::DriverError;
use crate::plan::DeviceInfo;

/// What compiles kernels ahead. Threads may share it.
#[derive(Debug)]
pub enum Compiler<'a> {
    /// `ptxas`, for a GPU with these limits that need not be here.
    Ahead(Box<(KernelCompiler, DeviceInfo)>),
    /// A GPU that is here: kernels are loaded, as their first calls load them, and lie in its folder then, if it has one.
    Here(&'a CudaDevice),
}

/// A kernel that is ready for its first call.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadyKernel {
    /// Which.
    pub kernel: AheadKernel,
    /// Registers of a thread; not known of one that `ptxas` had compiled before.
    pub registers: Option<u32>,
    /// How long it took.
    pub time: Duration,
    /// Where its code came from.
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
