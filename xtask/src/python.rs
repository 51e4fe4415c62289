//! The Python binding: its wheel, and its tests in an environment of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::test::{self, Counts};
use crate::workspace::Workspace;
use crate::{bindings, packages, programs};

/// The folder of the package.
pub const FOLDER: &str = "bindings/python";

/// What builds the wheel, each pinned. Zig links against an old glibc, whatever this machine has.
const BUILDERS: [&str; 2] = ["maturin==1.16.0", "ziglang==0.17.1"];

/// What the tests want, each pinned: their environment has a name made of these. PyPI has no PyTorch without CUDA; this one runs without a GPU.
const TESTERS: [&str; 8] = [
    "torch==2.15.0",
    "transformers==5.24.0",
    "jax==0.10.2",
    "numpy==2.4.6",
    "pytest==9.2.0",
    "hypothesis==6.170.17",
    BUILDERS[0],
    LINTER,
];

/// What finds fault with the sources. Its rules change from one version to the next.
const LINTER: &str = "ruff==0.17.6";

/// The oldest system that the wheel runs on: glibc 2.17, the oldest that Rust's own library allows.
const COMPATIBILITY: &str = "manylinux2014";

/// Builds the wheel of the Python package.
#[derive(clap::Args, Clone, Debug)]
pub struct Wheel {
    /// The folder to write it to.
    #[arg(long, default_value = "target/wheels")]
    out: PathBuf,
}

/// Builds the wheel that is published.
pub fn wheel(workspace: &Workspace, options: &Wheel) -> Result<()> {
    published_wheel(workspace, &workspace.root.join(&options.out)).map(|_wheel| ())
}

/// Builds the wheel that is published into this folder, and fails where it has not the size that the README says.
pub fn published_wheel(workspace: &Workspace, out: &Path) -> Result<PathBuf> {
    available()?;
    let python = environment(workspace, "wheel", &BUILDERS)?;
    // Zig would link an unwinder of its own, which crashes on an exception of PyTorch that passes through our frames: exceptions are those of
    // this library, which every Linux has.
    let unwinder = format!("link-arg={}", unwinder()?.display());
    let arguments = [
        "--zig",
        "--compatibility",
        COMPATIBILITY,
        "--",
        "-C",
        &unwinder,
    ];
    let wheel = built(&mut maturin(workspace, &python, out, &arguments)?, out)?;
    check_size(workspace, &wheel)?;
    Ok(wheel)
}

/// The unwinder of the system's compilers.
fn unwinder() -> Result<PathBuf> {
    const NAME: &str = "libgcc_s.so.1";
    let output = Command::new("cc")
        .arg(format!("-print-file-name={NAME}"))
        .output();
    let output = output.context("cc is missing: `apt-get install gcc` brings it")?;
    let path = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    match path.is_absolute() {
        true => Ok(path),
        false => bail!("{NAME} is missing: `apt-get install libgcc-s1` brings it"),
    }
}

/// pytest in the folder of the package, with the package of this wheel, which is installed into a folder of its own.
fn pytest(workspace: &Workspace, python: &Path, wheel: &Path, package: &Path) -> Result<Command> {
    remove(package)?;
    let install = ["install", "--quiet", "--no-deps", "--target"];
    programs::run(pip(python).args(install).arg(package).arg(wheel))?;
    let mut pytest = Command::new(python);
    pytest
        .env("PYTHONPATH", package)
        .current_dir(workspace.root.join(FOLDER))
        .args(["-m", "pytest", "--color=no", "-p", "no:cacheprovider"]);
    Ok(pytest)
}

/// Runs the tests of PyTorch's operators on a wheel, those among them that have exceptions pass through the native module.
pub fn try_operators(workspace: &Workspace, wheel: &Path, package: &Path) -> Result<()> {
    let python = kept_environment(&TESTERS)?;
    let mut pytest = pytest(workspace, &python, wheel, package)?;
    programs::run(pytest.args([
        "-q",
        "tests/test_torch_plain.py",
        "tests/test_torch_errors.py",
    ]))
}

/// Builds the wheel as it is published, but for this machine alone, and fails where it has not the size that the README says.
pub fn check_wheel(workspace: &Workspace) -> Result<()> {
    if available().is_err() {
        return Ok(());
    }
    let python = kept_environment(&TESTERS).context("no wheel was built")?;
    let out = workspace.target.join("python/sized-wheel");
    let wheel = built(&mut maturin(workspace, &python, &out, &[])?, &out)?;
    check_size(workspace, &wheel)
}

fn check_size(workspace: &Workspace, wheel: &Path) -> Result<()> {
    let bytes = fs::metadata(wheel)?.len();
    eprintln!("{}: {:.1} MB", wheel.display(), bytes as f64 / 1e6);
    packages::check_said(workspace, "the wheel has", bytes)
}

/// Computes with a wheel, in an environment that has it and numpy alone.
pub fn try_alone(wheel: &Path, folder: &Path) -> Result<()> {
    remove(folder)?;
    make_environment(folder)?;
    let python = folder.join("bin/python");
    programs::run(
        pip(&python)
            .args(["install", "--quiet", "numpy"])
            .arg(wheel),
    )?;
    programs::run(Command::new(python).args(["-c", ALONE]))
}

/// What an empty environment runs: a row that sees equal values gives them.
const ALONE: &str = "\
import numpy as np, ferroflash
q = np.random.default_rng(1).standard_normal((1, 16, 2, 32)).astype(np.float32)
o = ferroflash.attention(q, q, np.ones_like(q), causal=True)
assert np.abs(o - 1).max() < 1e-6, o
print('ferroflash', ferroflash.__version__, 'in an empty environment:', o.shape)";

/// A wheel for the tests of the package, and the interpreter of their environment, after a look at the sources; nothing where there is no Python.
/// Where there is one, and what the tests want cannot be installed, it fails.
pub fn build_tested(workspace: &Workspace) -> Result<Option<(PathBuf, PathBuf)>> {
    if available().is_err() {
        return Ok(None);
    }
    let python = kept_environment(&TESTERS).context("no test of Python has run")?;
    for arguments in [["check", "."].as_slice(), &["format", "--check", "."]] {
        let mut ruff = Command::new(&python);
        let ruff = ruff.current_dir(workspace.root.join(FOLDER));
        programs::run(ruff.args(["-m", "ruff"]).args(arguments).arg("--no-cache"))?;
    }
    let out = workspace.target.join("python/tests-wheel");
    let mut maturin = maturin(workspace, &python, &out, &["--profile", "dev"])?;
    bindings::under_clippy(&mut maturin);
    Ok(Some((python, built(&mut maturin, &out)?)))
}

/// Builds a wheel, installs it, and runs the tests of the package on it. Where there is no Python, none runs.
pub fn count(workspace: &Workspace, seed: u64) -> Result<Counts> {
    let mut counts = Counts::default();
    if let Err(error) = available() {
        counts.add_not_run(&format!("{FOLDER}: {error:#}"), 1);
        return Ok(counts);
    }
    let (python, wheel) = build_tested(workspace)?.context("there is a Python")?;
    // Outside the environment, which other clones use, too.
    let package = workspace.target.join("python/tests-package");
    let mut pytest = pytest(workspace, &python, &wheel, &package)?;
    pytest.env("SEED", seed.to_string());
    pytest.args(["-rs", "--tb=short", "tests"]);
    let mut tally = Tally::default();
    let success = test::stream(pytest, |line| tally.read(line))?;
    counts.add(tally.finish(success));
    Ok(counts)
}

/// Whether there is a Python that can make environments.
fn available() -> Result<()> {
    let mut python = Command::new("python3");
    python.args([
        "-c",
        "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))",
    ]);
    let silent = python.stdout(Stdio::null()).stderr(Stdio::null());
    if !silent.status().is_ok_and(|status| status.success()) {
        bail!("no Python 3.10 with venv: `apt-get install python3-venv` brings it");
    }
    Ok(())
}

/// The interpreter of an environment of this clone with these packages.
fn environment(workspace: &Workspace, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = workspace.target.join("python").join(name);
    let python = folder.join("bin/python");
    if !python.is_file() {
        make_environment(&folder)?;
    }
    programs::run(pip(&python).args(["install", "--quiet"]).args(packages))?;
    Ok(python)
}

/// The interpreter of an environment with these packages and no others but those that they want. It is gigabytes large, so it lies in the user's
/// folder of caches, under a name that says what it has: a later run finds it, of whatever clone.
fn kept_environment(packages: &[&str]) -> Result<PathBuf> {
    let version = output_of_python("import sys; print('%d.%d' % sys.version_info[:2])")?;
    let caches = caches()?.join("ferroflash");
    let folder = caches.join(environment_name(&version, packages));
    let python = folder.join("bin/python");
    if python.is_file() {
        return Ok(python);
    }
    eprintln!("{}: installing it, once, takes minutes", folder.display());
    // A run that is ended meanwhile leaves nothing that a later one would take for it.
    let unfinished = caches.join(format!("python-unfinished-{}", std::process::id()));
    remove(&unfinished)?;
    fs::create_dir_all(&caches)
        .with_context(|| format!("cannot make the folder {}", caches.display()))?;
    let install = || {
        make_environment(&unfinished)?;
        let mut pip = pip(&unfinished.join("bin/python"));
        programs::run(pip.args(["install", "--quiet"]).args(packages))
    };
    if let Err(error) = install() {
        remove(&unfinished)?;
        return Err(error.context("cannot install what the tests of Python want"));
    }
    // Where another run was sooner, its environment is taken.
    if fs::rename(&unfinished, &folder).is_err() {
        remove(&unfinished)?;
    }
    match python.is_file() {
        true => Ok(python),
        false => bail!("cannot keep the environment {}", folder.display()),
    }
}

/// `python-3.11_torch-2.15.0_…`: the packages without those characters that a path may not have.
fn environment_name(python: &str, packages: &[&str]) -> String {
    let packages = packages.iter().map(|package| package.replace("==", "-"));
    std::iter::once(format!("python-{python}"))
        .chain(packages)
        .collect::<Vec<_>>()
        .join("_")
}

/// The user's folder of caches.
fn caches() -> Result<PathBuf> {
    let of_environment = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match (of_environment("XDG_CACHE_HOME"), of_environment("HOME")) {
        (Some(caches), _) => Ok(caches.into()),
        (None, Some(home)) => Ok(Path::new(&home).join(".cache")),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME is set"),
    }
}

fn make_environment(folder: &Path) -> Result<()> {
    programs::run(Command::new("python3").args(["-m", "venv"]).arg(folder))
}

/// What a line of Python prints.
fn output_of_python(line: &str) -> Result<String> {
    let output = Command::new("python3").args(["-c", line]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check"]);
    pip
}

/// What builds a wheel into a folder that holds no other afterwards.
fn maturin(
    workspace: &Workspace,
    python: &Path,
    out: &Path,
    arguments: &[&str],
) -> Result<Command> {
    remove(out)?;
    // maturin looks for zig among the programs of the environment.
    let programs_of = python.parent().context("Python lies in a folder")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(programs_of.to_owned()).chain(std::env::split_paths(&path));
    let mut maturin = bindings::command(workspace, FOLDER, python);
    maturin
        .args(["-m", "maturin", "build", "--locked", "--out"])
        .arg(out)
        .args(arguments)
        .env("PATH", std::env::join_paths(path)?)
        .env("CARGO", workspace.cargo());
    Ok(maturin)
}

/// Runs it; the wheel.
fn built(maturin: &mut Command, out: &Path) -> Result<PathBuf> {
    programs::run(maturin)?;
    let first = fs::read_dir(out)?
        .next()
        .context("maturin wrote no wheel")?;
    Ok(first?.path())
}

/// Reads what pytest says with `-rs`: why tests are skipped, and at the end how many did what.
#[derive(Debug, Default)]
struct Tally {
    counts: Counts,
    ended: bool,
}

impl Tally {
    fn read(&mut self, line: &str) {
        if let Some((n, reason)) = skipped(line) {
            self.counts.add_not_run(reason, n);
        }
        let summary = line.trim_matches(['=', ' ']);
        let Some((results, _seconds)) = summary.rsplit_once(" in ") else {
            return;
        };
        for part in results.split(", ") {
            let Some((n, what)) = part.split_once(' ') else {
                return;
            };
            match (n.parse::<usize>(), what) {
                (Ok(n), "passed") => self.counts.n_passed += n,
                (Ok(n), "failed" | "error" | "errors") => self.counts.n_failed += n,
                (Ok(_), "skipped" | "warning" | "warnings" | "deselected" | "xfailed") => {}
                _ => return,
            }
            self.ended = true;
        }
    }

    /// A run without a summary has failed; so has one that found no test.
    fn finish(mut self, success: bool) -> Counts {
        if !(success && self.ended) && self.counts.n_failed == 0 {
            self.counts.n_failed = 1;
        }
        self.counts
    }
}

/// `SKIPPED [3] tests/test_a.py:7: [not run] no torch`: how many, and why.
fn skipped(line: &str) -> Option<(usize, &str)> {
    let (n, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    let (_place, reason) = rest.split_once(": ")?;
    let reason = reason.strip_prefix("[not run] ").unwrap_or(reason);
    Some((n.parse().ok()?, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str, success: bool) -> Counts {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.read(line));
        tally.finish(success)
    }

    #[test]
    fn what_pytest_says_is_counted() {
        let text = "\
......s.F                                     [100%]
SKIPPED [2] tests/test_torch.py:7: [not run] no torch
SKIPPED [1] tests/test_array.py:70: [not run] no jax
FAILED tests/test_array.py::test_o - assert 1 == 2 in all
1 failed, 7 passed, 3 skipped, 2 warnings in 80.57s (0:01:20)";
        let counted = counts(text, false);
        assert_eq!((counted.n_passed, counted.n_failed), (7, 1));
        assert_eq!(counted.not_run["no torch"], 2);
        assert_eq!(counted.not_run["no jax"], 1);
        let framed = counts("===== 3 passed in 0.10s =====", true);
        assert_eq!((framed.n_passed, framed.n_failed), (3, 0));
    }

    #[test]
    fn an_environment_says_what_it_has() {
        let name = environment_name("3.11", &TESTERS);
        assert!(name.starts_with("python-3.11_torch-2.15.0_transformers-"));
        assert!(TESTERS.iter().all(|package| package.contains("==")));
        assert!(name.len() < 255 && !name.contains(['=', '/', ' ']));
    }

    #[test]
    fn a_run_that_ends_early_has_failed() {
        assert_eq!(counts("ImportError: no ferroflash", false).n_failed, 1);
        assert_eq!(counts("no tests ran in 0.01s", true).n_failed, 1);
    }
}
