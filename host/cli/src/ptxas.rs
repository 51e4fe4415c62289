//! Where a `ptxas` lies: NVIDIA's assembler, which compiles every kernel for the kernel cache.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ferroflash::backend::cuda::Ptxas;

use crate::failure::Failure;

/// Where the system and CUDA's installer have it.
const PLACES: [&str; 2] = ["ptxas", "/usr/local/cuda/bin/ptxas"];

/// Prints where Python's packages have it: NVIDIA's wheels, of CUDA 13 and of earlier ones, and Triton, which comes with PyTorch.
const OF_PYTHON: &str = r#"
import glob, os, site, sysconfig
paths = sysconfig.get_paths()
folders = [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]
for folder in dict.fromkeys(folders):
    for inside in ("nvidia/cu*/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas", "triton/backends/nvidia/bin/ptxas"):
        for program in sorted(glob.glob(os.path.join(folder, inside)), reverse=True):
            print(program)
"#;

/// The program that was given, which has to serve; else the first that is found, if any.
pub fn find(given: Option<&Path>) -> Result<Option<Ptxas>, Failure> {
    if let Some(program) = given {
        let ptxas = Ptxas::at(program);
        return ptxas
            .map(Some)
            .map_err(|error| Failure::Option(format!("--ptxas: {error}")));
    }
    let installed = Ptxas::first_of(PLACES.map(PathBuf::from));
    Ok(installed.or_else(|_| Ptxas::first_of(of_python())).ok())
}

/// Those of Python's packages, where there is a Python.
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
