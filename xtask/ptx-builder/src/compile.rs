//! Runs rustc on the kernel crate, and before on what it knows of expressions.
//!
//! LLVM works on one module with one thread, so the list is dealt into a fixed number of parts, each a run of its own
//! with all others' entries switched off by `--cfg`. The number does not depend on the machine: the text is the same
//! everywhere. Rows that ask for fewer constants than the code that they share have a part of their own.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferroflash_kernels::spec::Constant;
use ferroflash_kernels::variants::{Arch, Variant};

use crate::error::at;
use crate::{Error, Parts, Request};

/// rustc's name for PTX.
pub const TARGET: &str = "nvptx64-nvidia-cuda";

/// The version of the PTX language: that of CUDA 12.0, whose drivers and all newer ones read it; for Ada that of CUDA 12.1, which brought
/// conversions of `e4m3` there; for Hopper that of CUDA 12.3, which brought changes of tensor maps by kernels.
fn ptx_feature(arch: &str) -> &'static str {
    if arch == Arch::Sm90a.name() {
        "+ptx83"
    } else if arch == Arch::Sm89.name() {
        "+ptx81"
    } else {
        "+ptx80"
    }
}

/// How many runs share the list, at most.
const PARTS: usize = 8;

/// A run costs as much as compiling a few rows before it begins with them: with fewer than these it does not pay.
const ROWS_PER_PART: usize = 5;

/// rustc's name for the kernel crate.
const CRATE: &str = "ferroflash_kernels";

/// rustc's name for the expression crate.
const EXPRESSION: &str = "ferroflash_expression";

/// What for a GPU is the expression crate's root.
const EXPRESSION_ROOT: &str = "src/device/mod.rs";

/// Switches on the choice of entries: see `entry.rs` of the kernel crate.
const CHOOSE: &str = "ferroflash_part";

/// Switches the probes on, in the first part: see `kernels/probes/entries.rs` of the kernel crate.
const WITH_PROBES: &str = "ferroflash_probes";

/// Names a constant that is 0 in all rows of the part: see `ptx/spec.rs` of the kernel crate.
const WITHOUT: &str = "ferroflash_without";

/// Flags of every crate that is compiled for the GPU.
pub fn flags(arch: &str) -> Vec<String> {
    [
        "--target",
        TARGET,
        &format!("-Ctarget-cpu={arch}"),
        &format!("-Ctarget-feature={}", ptx_feature(arch)),
        "-Copt-level=3",
        "-Ccodegen-units=1",
        "-Cpanic=abort",
        "-Cembed-bitcode=yes",
        // Arrays stay in registers only where every loop over them is unrolled.
        "-Cllvm-args=-unroll-threshold=20000",
        // Where a panic would come from is text that no kernel prints, with paths in it.
        "-Zlocation-detail=none",
        // cargo and clippy show the lints of the same sources.
        "--cap-lints=allow",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// The PTX of every part that the request asks for: each part's rows, and rustc's text.
pub fn parts<'a>(
    request: &Request,
    sysroot: &Path,
    rows: &[&'a Variant],
) -> Result<Vec<(Vec<&'a Variant>, String)>, Error> {
    let parts = chosen(deal(rows), request.parts);
    let expression = expression(request, sysroot)?;
    let next = AtomicUsize::new(0);
    let texts: Vec<Mutex<Option<Result<String, Error>>>> =
        parts.iter().map(|_| Mutex::new(None)).collect();
    let workers = std::thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(parts.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((part_idx, part)) = parts.get(at) else {
                        return;
                    };
                    let text = compile(request, sysroot, &expression, *part_idx, part);
                    if text.is_err() {
                        next.store(parts.len(), Ordering::Relaxed);
                    }
                    *texts[at]
                        .lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(text);
                }
            });
        }
    });
    // Parts are begun in order, so one that was never begun comes after one that failed.
    let texts = texts.into_iter().filter_map(|text| {
        text.into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    });
    let results = texts.collect::<Result<Vec<_>, _>>()?;
    let rows = parts.into_iter().map(|(_, rows)| rows);
    Ok(rows.zip(results).collect())
}

/// Deals the rows out one by one: neighbours in the list cost about the same. Rows that are compiled apart have a part of their own, the last one.
fn deal<'a>(rows: &[&'a Variant]) -> Vec<Vec<&'a Variant>> {
    let (apart, rows): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.is_compiled_apart());
    let n_parts = PARTS.min(rows.len().div_ceil(ROWS_PER_PART));
    let mut parts: Vec<Vec<_>> = (0..n_parts)
        .map(|part_idx| {
            let part = rows.iter().skip(part_idx).step_by(n_parts);
            part.copied().collect()
        })
        .collect();
    parts.extend((!apart.is_empty()).then_some(apart));
    parts
}

/// Those of the parts that are asked for, each with its place: its text is the same whether the others are compiled or not.
fn chosen<T>(parts: Vec<T>, asked: Parts) -> Vec<(usize, T)> {
    let n_parts = parts.len().max(1) as u64;
    let is_chosen = |&(at, _): &(usize, T)| match asked {
        Parts::All => true,
        Parts::One(number) => number % n_parts == at as u64,
    };
    parts.into_iter().enumerate().filter(is_chosen).collect()
}

/// The constants that no row of the part asks for. In the code of rows that are compiled apart they would be asked for all the same.
fn without(part: &[&Variant]) -> impl Iterator<Item = Constant> {
    let apart = part.iter().any(|row| row.is_compiled_apart());
    let is_asked_for =
        move |constant: &Constant| part.iter().any(|row| row.capabilities().has(*constant));
    Constant::ALL
        .into_iter()
        .filter(move |constant| apart && !is_asked_for(constant))
}

/// Compiles what kernels know of expressions, for the request's architecture; where its library lies.
fn expression(request: &Request, sysroot: &Path) -> Result<PathBuf, Error> {
    let folder = request.out.join("parts").join(request.arch);
    std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    let library = folder.join(format!("lib{EXPRESSION}.rlib"));
    let mut command = request.compiler.command();
    command.args(["--crate-name", EXPRESSION, "--crate-type", "rlib"]);
    command.args(["--edition", "2024"]);
    command.args(flags(request.arch)).arg("--sysroot");
    command.arg(sysroot).arg("-o").arg(&library);
    command.arg(EXPRESSION_ROOT);
    command.current_dir(&request.sources.expression);
    run(command, &format!("{EXPRESSION} for {}", request.arch))?;
    Ok(library)
}

fn compile(
    request: &Request,
    sysroot: &Path,
    expression: &Path,
    part_idx: usize,
    part: &[&Variant],
) -> Result<String, Error> {
    // A folder of its own: rustc's intermediate files have the same names in every part.
    let folder = request
        .out
        .join("parts")
        .join(request.arch)
        .join(part_idx.to_string());
    std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    let mut command = request.compiler.command();
    command.args([
        "--crate-name",
        CRATE,
        "--crate-type",
        "cdylib",
        "--edition",
        "2024",
    ]);
    command
        .args(flags(request.arch))
        .args(["-Clto=fat", "--cfg", CHOOSE]);
    if part_idx == 0 {
        command.args(["--cfg", WITH_PROBES]);
    }
    for variant in part {
        command.args(["--cfg", variant.name]);
    }
    for constant in without(part) {
        command.args(["--cfg", &format!("{WITHOUT}={:?}", constant.name())]);
    }
    command
        .arg("--sysroot")
        .arg(sysroot)
        .arg("--out-dir")
        .arg(&folder)
        .arg("--extern")
        .arg(format!("{EXPRESSION}={}", expression.display()))
        .args(["--emit=asm", "src/lib.rs"]);
    command.current_dir(&request.sources.kernels);
    run(command, &format!("the kernels for {}", request.arch))?;
    let assembly = folder.join(CRATE).with_extension("s");
    std::fs::read_to_string(&assembly).map_err(at(&assembly))
}

/// Runs rustc; an error holds all that it said.
pub fn run(mut command: Command, what: &str) -> Result<(), Error> {
    let program = Path::new(command.get_program()).to_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(at(&program))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned();
    Err(Error::Rustc {
        what: what.to_owned(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use ferroflash_kernels::variants::{PROFILED, compiled};

    use super::*;

    #[test]
    fn every_row_is_in_one_part_and_asks_for_no_constant_that_its_part_is_without() {
        for arch in [Arch::Sm80, Arch::Sm89, Arch::Sm90a] {
            let rows: Vec<_> = compiled().filter(|row| row.arch == arch).collect();
            let parts = deal(&rows);
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), rows.len());
            for row in &rows {
                let own: Vec<_> = parts.iter().filter(|part| part.contains(row)).collect();
                let [own] = own[..] else {
                    panic!("{} is in {} parts", row.name, own.len())
                };
                assert!(without(own).all(|constant| !row.capabilities().has(constant)));
                let constants = without(own).collect::<Vec<_>>();
                assert_eq!(
                    constants.contains(&Constant::Lengths),
                    row.is_compiled_apart()
                );
            }
        }
        let [all, one, next] = [Parts::All, Parts::One(7), Parts::One(8)]
            .map(|parts| chosen(vec!['a', 'b', 'c'], parts));
        assert_eq!(all, [(0, 'a'), (1, 'b'), (2, 'c')]);
        assert_eq!((one, next), (vec![(1, 'b')], vec![(2, 'c')]));
        assert!(chosen(Vec::<char>::new(), Parts::One(1)).is_empty());
        assert!(PROFILED.iter().all(Variant::is_compiled_apart));
    }
}
