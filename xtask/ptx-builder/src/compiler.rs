//! Finds a compiler for the kernels: a rustc whose sysroot holds the sources of its own `core`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::error::at;

/// The oldest release that compiles the kernels: the workspace's `rust-version`.
const OLDEST: (u32, u32) = (1, 95);

/// Where Debian's packages put their compiler.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// Debian's packages: a current compiler, and the sources of its `core`.
pub const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];

/// Which compiler to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first that serves: the active rustup toolchain, then Debian's.
    Auto,
    /// The active rustup toolchain, or whatever `rustc` on the search path is.
    Active,
    /// `/usr/bin/rustc`.
    Debian,
    /// This rustc.
    Path(PathBuf),
}

impl std::str::FromStr for Choice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Choice::Auto,
            "rustup" => Choice::Active,
            "debian" => Choice::Debian,
            path => Choice::Path(PathBuf::from(path)),
        })
    }
}

/// A compiler that can build the kernels.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// The program itself, never rustup's proxy.
    pub rustc: PathBuf,
    /// What `rustc -vV` prints.
    pub version: String,
    /// The folder that holds the sources of `core` among others.
    pub library: PathBuf,
}

impl Compiler {
    /// Name and version in one line.
    pub fn describe(&self) -> String {
        format!(
            "{} ({})",
            self.version.lines().next().unwrap_or_default(),
            self.rustc.display()
        )
    }

    /// A call of this compiler that depends on nothing of the caller's environment: a build script inherits flags,
    /// wrappers and library paths that belong to another compiler.
    pub fn command(&self) -> Command {
        let mut command = clean_command(&self.rustc);
        command.env("RUSTC_BOOTSTRAP", "1");
        command
    }
}

/// A command with nothing in its environment but where programs, home and temporary files are.
fn clean_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for name in ["PATH", "HOME", "TMPDIR", "RUSTUP_HOME", "CARGO_HOME"] {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Finds the compiler that `choice` names. `checkout` is a folder of the project, whose `rust-toolchain.toml` decides
/// which toolchain is the active one.
pub fn find(choice: &Choice, checkout: &Path) -> Result<Compiler, Error> {
    match choice {
        Choice::Path(rustc) => examine(rustc, checkout),
        Choice::Debian => examine(Path::new(DEBIAN_RUSTC), checkout),
        Choice::Active => examine(&active(), checkout),
        Choice::Auto => {
            let mut candidates = Vec::new();
            for rustc in [active(), PathBuf::from(DEBIAN_RUSTC)] {
                match examine(&rustc, checkout) {
                    Ok(compiler) => return Ok(compiler),
                    Err(error) => candidates.push(error.to_string()),
                }
            }
            Err(Error::NoCompiler { candidates })
        }
    }
}

/// The compiler in use: what cargo says it is, or the first on the search path.
fn active() -> PathBuf {
    env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from)
}

fn examine(rustc: &Path, checkout: &Path) -> Result<Compiler, Error> {
    let sysroot = PathBuf::from(ask(rustc, checkout, &["--print", "sysroot"])?.trim_end());
    let program = sysroot
        .join("bin")
        .join(if cfg!(windows) { "rustc.exe" } else { "rustc" });
    let unusable = |reason: String| Error::Unusable {
        rustc: program.clone(),
        reason,
    };
    let version = ask(&program, checkout, &["-vV"])?;
    let release =
        release(&version).ok_or_else(|| unusable(format!("unreadable version `{version}`")))?;
    if release < OLDEST {
        return Err(unusable(format!(
            "version {}.{} is too old, {}.{} is needed",
            release.0, release.1, OLDEST.0, OLDEST.1
        )));
    }
    let library = sysroot.join("lib/rustlib/src/rust/library");
    if !library.join("core/src/lib.rs").is_file() {
        let remedy = if sysroot == Path::new("/usr") {
            format!("Debian's package {}", DEBIAN_PACKAGES[1])
        } else {
            "`rustup component add rust-src`".to_owned()
        };
        return Err(unusable(format!(
            "no sources of core ({remedy} brings them)"
        )));
    }
    Ok(Compiler {
        rustc: program,
        version,
        library,
    })
}

/// What rustc prints on standard output.
fn ask(rustc: &Path, checkout: &Path, arguments: &[&str]) -> Result<String, Error> {
    let mut command = clean_command(rustc);
    if let Some(toolchain) = env::var_os("RUSTUP_TOOLCHAIN") {
        command.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    // A proxy that finds rust-src missing must not begin to download it.
    command
        .env("RUSTUP_AUTO_INSTALL", "0")
        .current_dir(checkout)
        .args(arguments);
    let output = command.output().map_err(at(rustc))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let reason = message
            .lines()
            .find(|line| !line.is_empty())
            .unwrap_or("failed")
            .to_owned();
        return Err(Error::Unusable {
            rustc: rustc.to_owned(),
            reason,
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `release: 1.96.0` → (1, 96).
fn release(version: &str) -> Option<(u32, u32)> {
    let text = version
        .lines()
        .find_map(|line| line.strip_prefix("release: "))?;
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_from_the_verbose_version() {
        assert_eq!(
            release("rustc 1.96.0 (x)\nbinary: rustc\nrelease: 1.96.0\n"),
            Some((1, 96))
        );
        assert_eq!(
            release("rustc 1.98.0-nightly\nrelease: 1.98.0-nightly\n"),
            Some((1, 98))
        );
        assert_eq!(release("rustc"), None);
    }

    #[test]
    fn a_compiler_that_is_not_there_is_an_error_of_one_line() {
        let choice = Choice::Path(PathBuf::from("/nowhere/rustc"));
        let error = find(&choice, Path::new("."))
            .expect_err("there is no such compiler")
            .to_string();
        assert!(
            error.contains("/nowhere/rustc") && !error.contains('\n'),
            "{error}"
        );
    }
}
