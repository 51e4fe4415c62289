//! NVIDIA's assembler and disassemblers: from the search path, a CUDA toolkit, or PyPI's wheels under target/tools.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// The wheels, each pinned. The disassemblers were first published with 13.2; they read what 13.0 writes.
const WHEELS: [&str; 3] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-nvdisasm==13.2.51",
    "nvidia-cuda-cuobjdump==13.2.51",
];

/// The file in a folder of unpacked wheels that says which wheels lie there.
const STAMP: &str = "wheels";

/// Unpacks the wheels where they are not unpacked yet, and returns the folder with the programs.
pub fn install(workspace: &Workspace) -> Result<PathBuf> {
    let folder = unpack(&workspace.tools(), &WHEELS)?;
    programs(&folder).context("the wheels hold no ptxas")
}

/// Unpacks wheels of PyPI into a folder of their own, where they are not unpacked yet.
pub fn unpack(folder: &Path, wheels: &[&str]) -> Result<PathBuf> {
    let stamp = folder.join(STAMP);
    let wanted = wheels.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        eprintln!("the tools are unpacked: {}", folder.display());
        return Ok(folder.to_owned());
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !pip.status().is_ok_and(|status| status.success()) {
        bail!("pip is missing: `apt-get install python3-pip` brings it");
    }
    eprintln!("unpacking {} under {}", wheels.join(", "), folder.display());
    if folder.is_dir() {
        std::fs::remove_dir_all(folder)
            .with_context(|| format!("cannot replace {}", folder.display()))?;
    }
    let status = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ])
        .args([
            "--root-user-action=ignore",
            "--only-binary=:all:",
            "--target",
        ])
        .arg(folder)
        .args(wheels)
        .status()?;
    if !status.success() {
        bail!("pip could not unpack {}", wheels.join(", "));
    }
    std::fs::write(&stamp, wanted)?;
    Ok(folder.to_owned())
}

/// The program `name` (`ptxas`, `nvdisasm`, `cuobjdump`), where there is one.
pub fn find(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let toolkit = std::env::var_os("CUDA_PATH").map(|folder| Path::new(&folder).join("bin"));
    std::env::split_paths(&path)
        .chain(toolkit)
        .chain(programs(&workspace.tools()))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// Where the wheels keep their programs: `nvidia/cu13/bin`.
fn programs(tools: &Path) -> Option<PathBuf> {
    let folder = tools.join("nvidia/cu13/bin");
    folder.join("ptxas").is_file().then_some(folder)
}
