//! NVIDIA's assembler, `ptxas`, if a program names one. Its output keeps `setmaxnreg`, so it can compile every kernel.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use ferroflash_driver::Version;
use ferroflash_kernels::variants::{Arch, Variant};
use sha2::{Digest, Sha256};

use super::super::embedded;
use crate::error::PtxasError;

/// A `ptxas` and its version.
///
/// The [module](crate::backend::cuda) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptxas {
    program: PathBuf,
    release: Version,
    label: String,
}

/// Those of this process, by the path that they were asked for under: each is asked for its version once.
static ASKED: Mutex<BTreeMap<PathBuf, Ptxas>> = Mutex::new(BTreeMap::new());

/// A kernel that it compiled.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) cubin: Vec<u8>,
    /// Registers of a thread, if it reports them.
    pub(super) registers: Option<u32>,
    /// Its output.
    pub(super) said: String,
}

impl Ptxas {
    /// The program of this path; a name alone is looked up as the system looks programs up. It is asked for its version, once in a process.
    pub fn at(program: impl AsRef<Path>) -> Result<Ptxas, PtxasError> {
        let program = program.as_ref();
        // The program may go to another folder later.
        let whole = match program.components().count() {
            1 => None,
            _ => fs::canonicalize(program).ok(),
        };
        let program = whole.as_deref().unwrap_or(program);
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = asked.get(program) {
            return Ok(known.clone());
        }
        let output = run(program, [OsStr::new("--version")])?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let release = release(&said).filter(|_| output.status.success());
        let Some((release, whole)) = release else {
            return Err(PtxasError::NoVersion {
                program: program.to_owned(),
                said,
            });
        };
        let digest = Sha256::digest(&said);
        let [a, b, c, d] = [digest[0], digest[1], digest[2], digest[3]];
        let ptxas = Ptxas {
            program: program.to_owned(),
            release,
            label: format!("{LABEL}{whole}-{a:02x}{b:02x}{c:02x}{d:02x}"),
        };
        asked.insert(program.to_owned(), ptxas.clone());
        Ok(ptxas)
    }

    /// The first of these programs that prints its version, or for each the reason why it does not.
    pub fn first_of(programs: impl IntoIterator<Item = PathBuf>) -> Result<Ptxas, Vec<PtxasError>> {
        let mut refused = Vec::new();
        for program in programs {
            match Ptxas::at(program) {
                Ok(ptxas) => return Ok(ptxas),
                Err(error) => refused.push(error),
            }
        }
        Err(refused)
    }

    /// Its full path; a bare name as it was given.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its release of CUDA.
    pub fn release(&self) -> Version {
        self.release
    }

    /// Its version as in file names; different builds of one release have different versions.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// The cubin of a kernel's text for devices of this compute capability. It works in a temporary folder in `within`.
    pub(super) fn assemble(
        &self,
        variant: &Variant,
        ptx: &CStr,
        compute_capability: (u32, u32),
        within: &Path,
    ) -> Result<Assembled, PtxasError> {
        let kernel = variant.name;
        if let Some(needed) = embedded::needed_by(ptx).filter(|needed| self.release < *needed) {
            return Err(PtxasError::TooOld {
                program: self.program.clone(),
                release: self.release,
                kernel,
                needed,
            });
        }
        let failed = |error: std::io::Error| PtxasError::File {
            program: self.program.clone(),
            folder: within.to_owned(),
            kind: error.kind(),
            detail: error.to_string(),
        };
        // Nobody else can put anything there.
        let files = tempfile::Builder::new()
            .prefix(".")
            .suffix(".partial")
            .tempdir_in(within)
            .map_err(failed)?;
        let [text, cubin] = ["kernel.ptx", "kernel.cubin"].map(|name| files.path().join(name));
        fs::write(&text, ptx.to_bytes()).map_err(failed)?;
        let architecture = architecture(variant.arch, compute_capability);
        let arguments = [
            OsStr::new("-v"),
            OsStr::new("-arch"),
            OsStr::new(&architecture),
            text.as_os_str(),
            OsStr::new("-o"),
            cubin.as_os_str(),
        ];
        let output = run(&self.program, arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.replace(&*text.to_string_lossy(), kernel);
        let refused = |said: String| PtxasError::Refused {
            program: self.program.clone(),
            kernel,
            said,
        };
        if !output.status.success() {
            return Err(refused(format!("{}: {}", output.status, said.trim_end())));
        }
        let ignores = |line: &&str| line.contains("setmaxnreg") && line.contains("ignored");
        if let Some(line) = said.lines().find(ignores) {
            return Err(refused(line.to_owned()));
        }
        let cubin = match fs::read(&cubin) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            read => read.unwrap_or_default(),
        };
        if !cubin.starts_with(ELF) {
            return Err(refused(
                "it reports success, and what it has written is no cubin".to_owned(),
            ));
        }
        Ok(Assembled {
            cubin,
            registers: registers(&said),
            said,
        })
    }
}

/// `/usr/local/cuda/bin/ptxas, of CUDA 13.0`.
impl fmt::Display for Ptxas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, of CUDA {}", self.program.display(), self.release)
    }
}

/// The first characters of `ptxas` labels.
pub(super) const LABEL: &str = "ptxas-";

/// The first bytes of every cubin.
const ELF: &[u8] = b"\x7fELF";

/// Runs a program to its end, without a shell and without input.
fn run<'a>(
    program: &Path,
    arguments: impl IntoIterator<Item = &'a OsStr>,
) -> Result<Output, PtxasError> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    output.map_err(|error| PtxasError::NotRun {
        program: program.to_owned(),
        kind: error.kind(),
        detail: error.to_string(),
    })
}

/// The release that `--version` names, and the whole number of the version: of `release 13.0, V13.0.88` 13.0 and `13.0.88`.
fn release(said: &str) -> Option<(Version, &str)> {
    let (_, behind) = said.split_once("release ")?;
    let line = behind.lines().next()?;
    let (release, rest) = line.split_once(',').unwrap_or((line, ""));
    let (major, minor) = release.trim().split_once('.')?;
    let version = Version {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    };
    let whole = rest.trim().strip_prefix('V').unwrap_or(release.trim());
    let is_number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    Some((
        version,
        if is_number(whole) {
            whole
        } else {
            release.trim()
        },
    ))
}

/// The target of a text: the device's architecture, with its architecture-specific features if the text asks for them.
fn architecture(arch: Arch, (major, minor): (u32, u32)) -> String {
    match arch {
        Arch::Sm90a => arch.name().to_owned(),
        _ => format!("sm_{major}{minor}"),
    }
}

/// The registers of a thread, of `Used 168 registers, …`.
fn registers(said: &str) -> Option<u32> {
    let (before, _) = said.split_once(" registers")?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "ptxas: NVIDIA (R) Ptx optimizing assembler
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:53:56_PM_PDT_2025
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0
";

    #[test]
    fn the_release_is_read_where_there_is_one() {
        let version = |major, minor| Version { major, minor };
        assert_eq!(release(SAID), Some((version(13, 0), "13.0.88")));
        assert_eq!(release("release 12.8\n"), Some((version(12, 8), "12.8")));
        // No name of a file has what stands there.
        let odd = "release 12.8, V../../x";
        assert_eq!(release(odd), Some((version(12, 8), "12.8")));
        for bad in ["", "release", "release x.y, V1", "GNU assembler 2.40"] {
            assert_eq!(release(bad), None, "{bad}");
        }
    }

    #[test]
    fn registers_are_read_where_they_are_said() {
        let said = "ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem\n";
        assert_eq!(registers(said), Some(168));
        assert_eq!(registers("ptxas info    : 0 bytes gmem\n"), None);
    }

    #[test]
    fn a_text_is_compiled_for_the_device() {
        assert_eq!(architecture(Arch::Sm90a, (9, 0)), "sm_90a");
        assert_eq!(architecture(Arch::Sm80, (9, 0)), "sm_90");
        assert_eq!(architecture(Arch::Sm80, (8, 6)), "sm_86");
        assert_eq!(architecture(Arch::Sm89, (12, 0)), "sm_120");
    }

    #[test]
    fn what_is_no_ptxas_is_an_error_that_names_it() {
        let missing = Ptxas::at("/no/such/ptxas").unwrap_err();
        let PtxasError::NotRun { program, kind, .. } = &missing else {
            panic!("{missing:?}");
        };
        assert_eq!(program, Path::new("/no/such/ptxas"));
        assert_eq!(*kind, ErrorKind::NotFound);
        let refused = Ptxas::first_of(["/no/such/ptxas", "/nor/this"].map(PathBuf::from));
        assert_eq!(refused.map_err(|errors| errors.len()), Err(2));
    }
}
