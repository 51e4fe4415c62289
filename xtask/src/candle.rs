//! `candle`: the tests and the examples of the candle binding, built for a GPU machine without Rust.
//!
//! candle-core compiles its own kernels with nvcc. Where no toolkit lies, NVIDIA's wheels make one. The program is linked
//! against libraries that only a machine with a GPU has, so empty ones with the same names stand in for them here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{programs, tools};

/// What nvcc and the headers of candle's kernels are published as, each pinned.
const WHEELS: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// The libraries that candle is linked against: how their functions' names begin, the longest first, and the name that a program
/// looks for when it starts.
const LIBRARIES: [(&str, &str, &str); 5] = [
    ("cublasLt", "cublasLt", "libcublasLt.so.13"),
    ("cublas", "cublas", "libcublas.so.13"),
    ("curand", "curand", "libcurand.so.10"),
    ("nvrtc", "nvrtc", "libnvrtc.so.13"),
    ("cu", "cuda", "libcuda.so.1"),
];

/// Builds the tests and the examples of the candle binding with CUDA, for a GPU machine without Rust.
#[derive(clap::Args, Clone, Debug)]
pub struct Candle {
    /// The compute capability that candle's own kernels are compiled for.
    #[arg(long, default_value = "90")]
    compute_cap: String,
    /// The folder to write the programs to.
    #[arg(long, default_value = "target/candle/bin")]
    out: PathBuf,
}

/// Builds, and copies the stripped programs.
pub fn candle(workspace: &Workspace, options: &Candle) -> Result<()> {
    let folder = workspace.target.join("candle");
    let toolkit = match std::env::var_os("CUDA_HOME").map(PathBuf::from) {
        Some(toolkit) => toolkit,
        None => complete(tools::unpack(&folder.join("toolkit"), &WHEELS)?.join("nvidia/cu13"))?,
    };
    let build = Build {
        workspace,
        toolkit,
        compute_cap: &options.compute_cap,
        stubs: folder.join("stubs"),
    };
    fs::create_dir_all(&build.stubs)?;
    let out = workspace.root.join(&options.out);
    fs::create_dir_all(&out)?;
    let tests = ["test", "--test", "cuda", "--no-run"].as_slice();
    let examples = ["build", "--example", "train", "--example", "serve"].as_slice();
    // The first time all is compiled and nothing links: what is compiled says which functions are missing. Other errors come again.
    if !build.cargo(tests, "json")?.status.success() {
        write_stubs(&build.stubs, &missing_functions(&build.libraries()?)?)?;
    }
    for target in [tests, examples] {
        let done = build.cargo(target, "json-render-diagnostics")?;
        if !done.status.success() {
            bail!("cargo {} failed", target.join(" "));
        }
        for program in programs::executables(&done.stdout)? {
            let own = symbols("--defined-only", &[&program.path])?;
            if let Some(name) = own.lines().find(|name| library_of(name).is_some()) {
                bail!(
                    "{} defines {name}: candle's calls would not reach the driver",
                    program.name
                );
            }
            let copy = out.join(format!("candle-{}", program.name));
            fs::copy(&program.path, &copy)?;
            programs::run(Command::new("strip").arg(&copy))?;
            eprintln!("{}", copy.display());
        }
    }
    eprintln!(
        "there: LD_LIBRARY_PATH names the folders of libcublas, libcurand and libnvrtc; REQUIRE=cuda makes tests without a GPU fail"
    );
    Ok(())
}

/// What a toolkit has beside the wheels: the names by which builds look for its libraries.
fn complete(toolkit: PathBuf) -> Result<PathBuf> {
    let links = [("lib64", "lib"), ("lib/libcudart.so", "libcudart.so.13")];
    for (link, to) in links {
        let link = toolkit.join(link);
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(to, &link)
                .with_context(|| format!("cannot link {}", link.display()))?;
        }
    }
    Ok(toolkit)
}

/// How cargo builds the binding with CUDA.
struct Build<'a> {
    workspace: &'a Workspace,
    toolkit: PathBuf,
    compute_cap: &'a str,
    stubs: PathBuf,
}

impl Build<'_> {
    fn target(&self) -> PathBuf {
        self.workspace.target.join("candle/build")
    }

    /// cargo in the binding's folder, with CUDA and in release, and what it printed.
    fn cargo(&self, target: &[&str], format: &str) -> Result<Output> {
        eprintln!("cargo {} in bindings/candle", target.join(" "));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs =
            std::iter::once(self.toolkit.join("bin")).chain(std::env::split_paths(&path));
        Command::new(self.workspace.cargo())
            .current_dir(self.workspace.root.join("bindings/candle"))
            .args(target)
            .args(["--release", "--features", "cuda", "--message-format"])
            .arg(format)
            .env("CUDA_HOME", &self.toolkit)
            .env("CUDA_COMPUTE_CAP", self.compute_cap)
            .env("CARGO_TARGET_DIR", self.target())
            .env(
                "LIBRARY_PATH",
                std::env::join_paths([&self.stubs, &self.toolkit.join("lib")])?,
            )
            .env("PATH", std::env::join_paths(programs)?)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")
    }

    /// What cargo has compiled of the crates that call the driver.
    fn libraries(&self) -> Result<Vec<PathBuf>> {
        let deps = self.target().join("release/deps");
        let mut libraries = Vec::new();
        for entry in
            fs::read_dir(&deps).with_context(|| format!("cannot read {}", deps.display()))?
        {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name.starts_with("libcudarc-") && name.ends_with(".rlib") {
                libraries.push(path);
            }
        }
        Ok(libraries)
    }
}

/// The names that nm lists, a line for each.
fn symbols(which: &str, files: &[impl AsRef<Path>]) -> Result<String> {
    let mut nm = Command::new("nm");
    nm.args([which, "--format=just-symbols"]);
    let listed = nm
        .args(files.iter().map(AsRef::as_ref))
        .output()
        .context("cannot run nm")?;
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// The functions that these libraries call and do not have, by the library that has them.
fn missing_functions(libraries: &[PathBuf]) -> Result<BTreeMap<&'static str, BTreeSet<String>>> {
    let mut functions = BTreeMap::<_, BTreeSet<_>>::new();
    for name in symbols("--undefined-only", libraries)?.lines() {
        if let Some(library) = library_of(name) {
            functions
                .entry(library)
                .or_default()
                .insert(name.to_owned());
        }
    }
    Ok(functions)
}

/// The library that has a function of this name: the prefix, and a capital letter behind it.
fn library_of(function: &str) -> Option<&'static str> {
    let is_name = |rest: &str| {
        let letters = rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        letters && rest.starts_with(|c: char| c.is_ascii_uppercase())
    };
    LIBRARIES
        .iter()
        .find(|(prefix, _, _)| function.strip_prefix(prefix).is_some_and(is_name))
        .map(|(_, library, _)| *library)
}

/// Libraries with these functions, which do nothing: to be linked against, never to be called.
fn write_stubs(folder: &Path, functions: &BTreeMap<&str, BTreeSet<String>>) -> Result<()> {
    for (_, library, soname) in LIBRARIES {
        let source = folder.join(format!("{library}.c"));
        let names = functions.get(library).into_iter().flatten();
        let text: String = names
            .map(|name| format!("void {name}(void) {{}}\n"))
            .collect();
        fs::write(&source, text)?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"])
            .arg(folder.join(format!("lib{library}.so")))
            .arg(&source)
            .arg(format!("-Wl,-soname,{soname}"));
        programs::run(&mut cc)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_the_library_with_the_longest_prefix() {
        assert_eq!(library_of("cuMemAlloc_v2"), Some("cuda"));
        assert_eq!(library_of("cublasSgemm_v2"), Some("cublas"));
        assert_eq!(library_of("cublasLtMatmul"), Some("cublasLt"));
        assert_eq!(library_of("curandCreateGenerator"), Some("curand"));
        assert_eq!(library_of("nvrtcCompileProgram"), Some("nvrtc"));
        assert_eq!(library_of("custom"), None);
        assert_eq!(library_of("_ZN6cudarc3foo"), None);
    }
}
