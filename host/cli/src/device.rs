//! The device of a problem: options, and the compiler of kernels that are kept in a folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};
use ferroflash::Device;
use ferroflash::backend::cuda::Ptxas;
#[cfg(feature = "emulator")]
use ferroflash::backend::emulated::EmulatorOptions;

use crate::failure::Failure;

/// The device of a problem, and the folder of its compiled kernels.
#[derive(Debug, Args)]
pub struct DeviceWords {
    /// The device.
    #[arg(long, default_value = "auto")]
    backend: BackendName,
    /// Keeps compiled kernels of a GPU in this folder, which is created if needed: the next time they are loaded from there.
    #[arg(long, value_name = "FOLDER")]
    kernel_cache: Option<PathBuf>,
    /// With --kernel-cache: NVIDIA's assembler, which compiles kernels for that folder, including flash3's. Unless given: the one on PATH, in
    /// /usr/local/cuda, or in Python's packages
    /// (nvidia-cuda-nvcc, triton); without one the driver compiles, and most of flash3's kernels are not kept.
    #[arg(long, value_name = "PROGRAM", requires = "kernel_cache")]
    ptxas: Option<PathBuf>,
}

/// The device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackendName {
    /// The GPU if there is one, else the CPU.
    Auto,
    /// The GPU.
    Cuda,
    /// All cores of the processor.
    Cpu,
    /// The GPU's kernels, including Hopper's, on the emulator: slow.
    #[cfg(feature = "emulator")]
    Emulated,
}

impl DeviceWords {
    /// The chosen device.
    pub fn device(&self) -> Result<Device, Failure> {
        let device = match self.backend {
            BackendName::Auto => Device::best(),
            BackendName::Cuda => Device::cuda(0)?,
            BackendName::Cpu => Device::cpu(),
            #[cfg(feature = "emulator")]
            BackendName::Emulated => Device::emulated(EmulatorOptions::hopper(0)),
        };
        match (&self.kernel_cache, device.as_cuda()) {
            (Some(folder), Some(_)) => {
                keeping_kernels(device, find_ptxas(self.ptxas.as_deref())?, folder)
            }
            _ => Ok(device),
        }
    }

    /// Prints statistics of the folder of kernels on stderr, if it was asked for and there is a GPU.
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

/// The device with a folder of compiled kernels, by `ptxas` or else by its driver.
pub fn keeping_kernels(
    device: Device,
    ptxas: Option<Ptxas>,
    folder: &Path,
) -> Result<Device, Failure> {
    Ok(match ptxas {
        Some(ptxas) => device.with_kernel_cache_by(ptxas, folder)?,
        None => device.with_kernel_cache(folder)?,
    })
}

/// The places of `ptxas` in the system and from CUDA's installer.
const PLACES: [&str; 2] = ["ptxas", "/usr/local/cuda/bin/ptxas"];

/// Prints its places in Python's packages: NVIDIA's wheels, of CUDA 13 and earlier, and Triton, which comes with PyTorch.
const OF_PYTHON: &str = r#"
import glob, os, site, sysconfig
paths = sysconfig.get_paths()
folders = [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]
for folder in dict.fromkeys(folders):
    for inside in ("nvidia/cu*/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas", "triton/backends/nvidia/bin/ptxas"):
        for program in sorted(glob.glob(os.path.join(folder, inside)), reverse=True):
            print(program)
"#;

/// The given program, which has to work; else the first that is found, if any.
pub fn find_ptxas(given: Option<&Path>) -> Result<Option<Ptxas>, Failure> {
    if let Some(program) = given {
        let ptxas = Ptxas::at(program);
        return ptxas
            .map(Some)
            .map_err(|error| Failure::Option(format!("--ptxas: {error}")));
    }
    let installed = Ptxas::first_of(PLACES.map(PathBuf::from));
    Ok(installed.or_else(|_| Ptxas::first_of(of_python())).ok())
}

/// The programs of Python's packages, if there is a Python.
fn of_python() -> Vec<PathBuf> {
    let mut python = Command::new("python3");
    python.args(["-c", OF_PYTHON]).stdin(Stdio::null());
    match python.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            said.lines().map(PathBuf::from).collect()
        }
        Err(_) => Vec::new(),
    }
}
