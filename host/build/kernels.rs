//! Compiles the kernels and embeds them: `$OUT_DIR/modules.rs`, which `src/backend/cuda` includes.
//!
//! ```ignore
//! include!(concat!(env!("OUT_DIR"), "/modules.rs"));
//! ```
//!
//! brings two items into the scope:
//!
//! - `MODULES: &[(&str, &str, &[u8])]` — of each PTX module its name (a variant's, or `probes`), the architecture that
//!   it was compiled for (`sm_80`), and its text, raw-deflated: `miniz_oxide::inflate::decompress_to_vec` restores it;
//! - `NO_MODULES: Option<&str>` — where `MODULES` is empty, the reason and the remedy in one line.
//!
//! A machine without a kernel compiler builds a library without kernels, and is told so by one warning. The variable
//! `FERROFLASH_KERNELS` decides otherwise: `off` builds without kernels, `rustup`, `debian` or the path of a rustc
//! names the compiler.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use ferroflash_ptx_builder::{Choice, Compiler, Error, Parts, Request, Rows, Sources, compiler};

/// Names the kernel compiler, or switches the kernels off.
const VARIABLE: &str = "FERROFLASH_KERNELS";

/// Writes the table of modules, with every module or with none and the reason.
pub fn embed_all() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let sources = Sources::of_cargo();
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build/kernels.rs");
    for source in sources.files()? {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    let choice = env::var(VARIABLE).unwrap_or_else(|_| "auto".to_owned());
    let table = if choice == "off" {
        empty("the library was built with FERROFLASH_KERNELS=off")
    } else {
        match embed(&choice, &sources, &out) {
            Ok(table) => table,
            Err(error) => {
                watch_installations();
                let reason = reason(&error);
                println!("cargo::warning=built without GPU kernels: {reason}");
                empty(&reason)
            }
        }
    };
    fs::write(out.join("modules.rs"), table)?;
    Ok(())
}

/// Builds every row of the list for its architecture and copies them to where the table includes them.
fn embed(choice: &str, sources: &Sources, out: &Path) -> Result<String, Error> {
    let choice: Choice = choice.parse().unwrap_or(Choice::Auto);
    let compiler: Compiler = compiler::find(&choice, &sources.kernels)?;
    println!("cargo::rerun-if-changed={}", compiler.rustc.display());
    let shared = shared_folder(out);
    let mut rows = String::new();
    for arch in ferroflash_ptx_builder::default_archs() {
        let built = ferroflash_ptx_builder::build(&Request {
            compiler: &compiler,
            sources,
            arch,
            rows: Rows::Own,
            parts: Parts::All,
            out: &shared,
        })?;
        for module in &built.modules {
            let copy = out.join(format!("{}.{arch}.deflate", module.name));
            fs::copy(&module.deflated, &copy).map_err(|error| Error::Io {
                path: copy.clone(),
                error,
            })?;
            let _ = writeln!(
                rows,
                "    ({:?}, {arch:?}, include_bytes!({copy:?})),",
                module.name
            );
        }
    }
    Ok(table(&rows, "None"))
}

fn empty(reason: &str) -> String {
    table("", &format!("Some({reason:?})"))
}

fn table(rows: &str, reason: &str) -> String {
    format!(
        "/// Name, architecture and deflated text of each embedded PTX module.\n\
         pub static MODULES: &[(&str, &str, &[u8])] = &[\n{rows}];\n\n\
         /// Why there are none, where there are none.\n\
         pub static NO_MODULES: Option<&str> = {reason};\n"
    )
}

/// The reason in one line, with what to do about it.
fn reason(error: &Error) -> String {
    match error {
        Error::NoCompiler { .. } => format!(
            "{error}; `rustup component add rust-src`, or Debian's packages {}, bring one",
            compiler::DEBIAN_PACKAGES.join(" and ")
        ),
        Error::Rustc { what, message } => {
            let first = message
                .lines()
                .find(|line| line.starts_with("error"))
                .unwrap_or("rustc failed");
            format!(
                "rustc could not compile {what}: {first}; `cargo xtask build-ptx` shows all of it"
            )
        }
        other => other.to_string(),
    }
}

/// `target/ptx`, which `cargo xtask build-ptx` and every profile share: what one has built, no other builds again.
fn shared_folder(out: &Path) -> PathBuf {
    // target/<profile>/build/<package>/out
    let target = out
        .ancestors()
        .skip_while(|folder| !folder.ends_with("build"))
        .nth(2);
    target.unwrap_or(out).join("ptx")
}

/// Runs this script again when a compiler may have been installed since.
fn watch_installations() {
    for path in [
        "/usr/bin/rustc",
        "/usr/lib/rustlib/src/rust/library/core/src/lib.rs",
        "/var/lib/dpkg/status",
    ] {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
