//! `bundle`: what a machine with a GPU and without Rust needs to run the tests and the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::programs::{self, Executable};
use crate::ptx::{self, BuildPtx};
use crate::workspace::Workspace;

/// The profile of the workspace's manifest for what is packed: optimised, stripped, quick to link.
const PROFILE: &str = "bundle";

/// The bytes that a bundle may have.
const LIMIT_BYTES: u64 = 64_000_000;

/// Test programs that do the same on every machine, or nothing on one with a GPU: they stay behind, for their size. So do unit tests
/// and the examples that tests run.
const STAY: [&str; 19] = [
    "blocks",
    "calls",
    "cpu",
    "custom_score",
    "dependent",
    "eligibility",
    "emulated",
    "fake_driver",
    "lengths",
    "never_panics",
    "no_driver",
    "plans",
    "problems",
    "schedule",
    "t5_bias",
    "tensor_maps",
    "tensors",
    "validation",
    "without_lse",
];

/// The script that runs the tests of a bundle.
const RUN: &str = include_str!("bundle/run.sh");

/// Collects stripped test binaries, the command, PTX and data, so that they run on a GPU machine without Rust.
#[derive(clap::Args, Clone, Debug)]
pub struct Bundle {
    /// The folder to write; what it held is replaced.
    #[arg(long, default_value = ".bundle")]
    out: PathBuf,
    /// Packs what compiles instead of failing where something does not.
    #[arg(long)]
    keep_going: bool,
}

/// Writes the bundle.
pub fn bundle(workspace: &Workspace, options: &Bundle) -> Result<()> {
    let built = ptx::build_ptx(workspace, &BuildPtx::plain());
    accept(options, built, "the PTX")?;
    let out = workspace.root.join(&options.out);
    let marker = out.join("run.sh");
    if out.is_dir() && !marker.is_file() && fs::read_dir(&out)?.next().is_some() {
        bail!("{} is not a bundle; it is left as it is", out.display());
    }
    if out.is_dir() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot replace {}", out.display()))?;
    }
    fs::create_dir_all(&out)?;
    write_executable(&marker, RUN.as_bytes())?;

    let tests = [
        "--tests",
        "-p",
        "conformance",
        "-p",
        "ferroflash",
        "-p",
        "ferroflash-cli",
        "-p",
        "ferroflash-driver",
        "--features",
        "ferroflash/emulator,conformance/build-kernels,ferroflash-driver/cust",
    ];
    let command = [
        "--bins",
        "-p",
        "ferroflash-cli",
        "--features",
        "build-kernels",
    ];
    for (what, selection) in [("the command", &command[..]), ("the tests", &tests[..])] {
        let (executables, state) = executables(workspace, selection)?;
        for executable in executables {
            let folder = executable.manifest.parent();
            let folder = folder.context("a package has a folder")?;
            let folder = folder.strip_prefix(&workspace.root)?;
            // Tests expect to run in the folder of their package, with its manifest.
            let copy = match executable.is_test {
                true => folder.join(format!("{}.test", executable.name)),
                false => PathBuf::from(&executable.name),
            };
            let copy = out.join("bin").join(copy);
            fs::create_dir_all(copy.parent().context("a program lies in a folder")?)?;
            fs::create_dir_all(out.join(folder))?;
            fs::copy(&executable.manifest, out.join(folder).join("Cargo.toml"))?;
            fs::copy(&executable.path, &copy)
                .with_context(|| format!("cannot copy to {}", copy.display()))?;
        }
        accept(options, state, what)?;
    }
    for folder in ["tests/data", "tests/golden"] {
        copy_folder(&workspace.root.join(folder), &out.join(folder))?;
    }
    // By the manifests the golden tests find the root of their files.
    fs::copy(workspace.root.join("Cargo.toml"), out.join("Cargo.toml"))?;
    for arch in ferroflash_ptx_builder::default_archs() {
        pack_ptx(&workspace.ptx().join(arch), &out.join("ptx").join(arch))?;
    }
    let bytes = size(&out)?;
    eprintln!(
        "{}: {:.1} MB; `./run.sh` there runs the tests",
        out.display(),
        bytes as f64 / 1e6
    );
    if bytes > LIMIT_BYTES {
        bail!("the bundle has {bytes} bytes, more than the {LIMIT_BYTES} that it may have");
    }
    Ok(())
}

/// Turns a failure into a line of text where the caller asked to keep going.
fn accept(options: &Bundle, state: Result<()>, what: &str) -> Result<()> {
    match state {
        Err(error) if options.keep_going => {
            eprintln!("{what}: left out what did not compile: {error:#}");
            Ok(())
        }
        other => other,
    }
}

/// Builds the selected targets; returns those that compiled and are packed, and whether all compiled.
fn executables(workspace: &Workspace, selection: &[&str]) -> Result<(Vec<Executable>, Result<()>)> {
    let mut command = Command::new(workspace.cargo());
    command.args([
        "build",
        "--profile",
        PROFILE,
        "--keep-going",
        "--message-format=json-render-diagnostics",
    ]);
    let output = command
        .args(selection)
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()?;
    let mut executables = programs::executables(&output.stdout)?;
    executables.retain(|program| !STAY.contains(&program.name.as_str()) && !program.is_library);
    let state = if output.status.success() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("cargo build failed"))
    };
    Ok((executables, state))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let copy = to.join(
            path.file_name()
                .context("an entry of a folder has a name")?,
        );
        if path.is_dir() {
            copy_folder(&path, &copy)?;
        } else {
            fs::copy(&path, &copy)?;
        }
    }
    Ok(())
}

/// The PTX of one architecture, gzipped: the programs have their own inside; these are for tools.
fn pack_ptx(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            let name = path.file_name();
            fs::copy(
                &path,
                to.join(name.context("an entry of a folder has a name")?),
            )?;
        }
    }
    let mut gzip = Command::new("gzip");
    programs::run(gzip.args(["-9", "--no-name", "--recursive", "--"]).arg(to))
}

fn write_executable(path: &Path, text: &[u8]) -> Result<()> {
    fs::write(path, text)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.path().is_dir() {
            size(&entry.path())?
        } else {
            entry.metadata()?.len()
        };
    }
    Ok(bytes)
}
