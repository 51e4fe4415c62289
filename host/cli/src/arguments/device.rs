//! Options that say what runs a problem.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ferroflash::Device;
#[cfg(feature = "emulator")]
use ferroflash::backend::emulated::EmulatorOptions;

use crate::failure::Failure;
use crate::ptxas;

/// What runs a problem, and where its compiled kernels are kept.
#[derive(Debug, Args)]
pub struct DeviceWords {
    /// What runs it.
    #[arg(long, default_value = "auto")]
    backend: BackendName,
    /// Keeps compiled kernels of a GPU in this folder, which is made where there is none: the next time they are loaded from there.
    #[arg(long, value_name = "FOLDER")]
    kernel_cache: Option<PathBuf>,
    /// With --kernel-cache: NVIDIA's assembler, which compiles kernels for that folder, flash3's too. Unless given: the one on PATH, in /usr/local/cuda, or in Python's packages
    /// (nvidia-cuda-nvcc, triton); without one the driver compiles, and most of flash3's kernels are not kept.
    #[arg(long, value_name = "PROGRAM", requires = "kernel_cache")]
    ptxas: Option<PathBuf>,
}

/// What runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackendName {
    /// The GPU where there is one, else the CPU.
    Auto,
    /// The GPU.
    Cuda,
    /// All cores of the processor.
    Cpu,
    /// The GPU's kernels, Hopper's among them, on the emulator: slow.
    #[cfg(feature = "emulator")]
    Emulated,
}

impl DeviceWords {
    /// The device that is meant.
    pub fn device(&self) -> Result<Device, Failure> {
        let device = match self.backend {
            BackendName::Auto => Device::best(),
            BackendName::Cuda => Device::cuda(0)?,
            BackendName::Cpu => Device::cpu(),
            #[cfg(feature = "emulator")]
            BackendName::Emulated => Device::emulated(EmulatorOptions::hopper(0)),
        };
        let Some(folder) = self
            .kernel_cache
            .as_ref()
            .filter(|_| device.as_cuda().is_some())
        else {
            return Ok(device);
        };
        Ok(match ptxas::find(self.ptxas.as_deref())? {
            Some(ptxas) => device.with_kernel_cache_by(ptxas, folder)?,
            None => device.with_kernel_cache(folder)?,
        })
    }

    /// Says on stderr what has come of the folder of kernels, where it was asked for and there is a GPU.
    pub fn report_kernel_cache(&self, device: &Device) {
        let Some(cuda) = device.as_cuda().filter(|_| self.kernel_cache.is_some()) else {
            return;
        };
        let so_far = cuda.kernel_cache_use();
        eprintln!(
            "kernel cache: {} kernels loaded, {} compiled and written, {} not written, {} not kept, {} by the driver in place of ptxas, {} files unusable",
            so_far.n_loaded,
            so_far.n_written,
            so_far.n_not_written,
            so_far.n_not_kept,
            so_far.n_fell_back,
            so_far.n_unusable
        );
        if let Some(fault) = so_far.last_fault {
            eprintln!("kernel cache: {fault}");
        }
    }
}
