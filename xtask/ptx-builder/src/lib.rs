//! Compiles `kernels-gpu` to PTX: the one module of the workspace that knows how device code is built.
//!
//! `cargo xtask build-ptx` and the build script of `ferroflash` both call [`build`]. Should Rust-CUDA's
//! `cuda_builder` one day serve these kernels, this crate is the place where it goes.
//!
//! 1. [`compiler`] finds a rustc that has the sources of its own `core` at hand;
//! 2. [`sysroot`] compiles that `core` for `nvptx64-nvidia-cuda`, once per compiler;
//! 3. [`compile`] runs rustc on what kernels know of expressions, and on the kernel crate, in a few parts side by side, and gets assembly, which is PTX;
//! 4. [`module`] cuts the text into one module per entry, and `entry` adds what rustc cannot say: launch bounds, alignment.
//!
//! rustc is called without cargo. `cargo -Zbuild-std` resolves the whole workspace of `std` and downloads a dozen
//! crates that `core` never uses, keeps a lock that a build script would wait on for ever, and compiles `core` once
//! per part. Two plain calls of rustc need neither network nor lock.
#![forbid(unsafe_code)]

pub mod compiler;

pub mod sysroot;

pub mod compile;

pub mod module;

pub mod output;

mod sources;

mod entry;

mod digest;

mod error;

pub use compiler::{Choice, Compiler};
pub use error::Error;
pub use output::{Built, Freshness, Module};
pub use sources::Sources;

use std::path::Path;

use ferroflash_kernels::variants::{Reach, VARIANTS, Variant, compiled};

/// The name of the module that holds one entry per PTX instruction, for the tests of the instructions.
pub const PROBES: &str = "probes";

/// What the names of those entries start with.
pub const PROBE_PREFIX: &str = "probe_";

/// The architectures that the list names, in its order, each once.
pub fn default_archs() -> Vec<&'static str> {
    let mut archs: Vec<&'static str> = Vec::new();
    for variant in VARIANTS {
        if !archs.contains(&variant.arch.name()) {
            archs.push(variant.arch.name());
        }
    }
    archs
}

/// Which rows, of the list and profiled ones, are built for an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Those whose own architecture it is.
    Own,
    /// All that can be compiled for it: those of older architectures too.
    All,
}

/// Which of the parts that rustc compiles apart are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parts {
    /// All.
    All,
    /// One, which a number chooses: as many numbers as there are parts, one after the other, choose each.
    One(u64),
}

/// The rows that are built for the architecture `arch` (`sm_80`, `sm_90a`, …).
pub fn rows(arch: &str, which: Rows) -> Result<Vec<&'static Variant>, Error> {
    let capability = compute_capability(arch)?;
    let wanted = |variant: &&Variant| {
        let own = variant.arch.name() == arch;
        let newer = variant.arch.reach() == Reach::Newer && variant.arch.runs_on(capability);
        own || (which == Rows::All && newer)
    };
    let rows: Vec<_> = compiled().filter(wanted).collect();
    if rows.is_empty() {
        Err(Error::NoRows {
            given: arch.to_owned(),
        })
    } else {
        Ok(rows)
    }
}

/// `sm_90a` → (9, 0).
fn compute_capability(arch: &str) -> Result<(u32, u32), Error> {
    let unknown = || Error::UnknownArch {
        given: arch.to_owned(),
    };
    let digits = arch
        .strip_prefix("sm_")
        .ok_or_else(unknown)?
        .trim_end_matches(['a', 'f']);
    let number: u32 = digits.parse().map_err(|_| unknown())?;
    if (10..1000).contains(&number) {
        Ok((number / 10, number % 10))
    } else {
        Err(unknown())
    }
}

/// What to build, from what, and where to.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The compiler to use.
    pub compiler: &'a Compiler,
    /// The sources.
    pub sources: &'a Sources,
    /// The architecture to compile for: `sm_80`, `sm_90a`, ….
    pub arch: &'a str,
    /// Which rows to build.
    pub rows: Rows,
    /// Which parts of these.
    pub parts: Parts,
    /// The folder for results, which may be shared by several callers: modules go to `<out>/<arch>/<variant>.ptx`.
    pub out: &'a Path,
}

/// Builds every module for one architecture, or finds that nothing has changed since it was last built.
pub fn build(request: &Request) -> Result<Built, Error> {
    let rows = rows(request.arch, request.rows)?;
    let lock = output::lock(request.out)?;
    let key = digest::key(request)?;
    if let Some(modules) = output::load(request, &key) {
        return Ok(Built {
            modules,
            freshness: Freshness::Unchanged,
            _lock: lock,
        });
    }
    let sysroot = sysroot::prepare(request)?;
    let texts = compile::parts(request, &sysroot, &rows)?;
    let of_parts = texts.iter().flat_map(|(rows, _)| rows.iter().copied());
    let modules = module::split(request.arch, &texts, &of_parts.collect::<Vec<_>>())?;
    let modules = output::store(request, &key, modules)?;
    Ok(Built {
        modules,
        freshness: Freshness::Compiled,
        _lock: lock,
    })
}

#[cfg(test)]
mod tests {
    use ferroflash_kernels::variants::Arch;

    use super::*;

    fn archs(arch: &str, which: Rows) -> Result<Vec<Arch>, String> {
        let mut archs: Vec<Arch> = rows(arch, which)
            .map_err(|error| error.to_string())?
            .iter()
            .map(|row| row.arch)
            .collect();
        archs.sort();
        archs.dedup();
        Ok(archs)
    }

    #[test]
    fn every_row_is_built_for_its_own_architecture_once() {
        let built: usize = default_archs()
            .iter()
            .map(|arch| rows(arch, Rows::Own).expect("the list names it").len())
            .sum();
        assert_eq!(built, compiled().count());
        assert_eq!(archs("sm_80", Rows::Own), Ok(vec![Arch::Sm80]));
        assert_eq!(archs("sm_90a", Rows::Own), Ok(vec![Arch::Sm90a]));
        assert_eq!(archs("sm_89", Rows::Own), Ok(vec![Arch::Sm89]));
        assert!(archs("sm_86", Rows::Own).is_err());
    }

    #[test]
    fn rows_of_one_architecture_are_compiled_for_no_newer_one() {
        assert_eq!(archs("sm_80", Rows::All), Ok(vec![Arch::Sm80]));
        assert_eq!(archs("sm_90", Rows::All), Ok(vec![Arch::Sm80, Arch::Sm89]));
        assert_eq!(
            archs("sm_90a", Rows::All),
            Ok(vec![Arch::Sm80, Arch::Sm89, Arch::Sm90a])
        );
        assert_eq!(
            archs("sm_100a", Rows::All),
            Ok(vec![Arch::Sm80, Arch::Sm89])
        );
        assert!(archs("sm_75", Rows::All).is_err());
        assert!(archs("gfx90a", Rows::All).is_err());
    }
}
