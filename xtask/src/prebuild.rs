//! `prebuild`: the kernels compiled for `host/ptx`, the crate that brings them to whoever has no compiler for them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ferroflash_ptx_builder::{Built, PROBES};
use sha2::{Digest, Sha256};

use crate::ptx::{self, BuildPtx};
use crate::workspace::Workspace;

/// The crate, in the workspace.
const CRATE: &str = "host/ptx";

/// The file that says what the modules were compiled from.
const SOURCES: &str = "modules/sources.txt";

/// Best, and slow: what is published is read more often than written.
const COMPRESSION_LEVEL: u8 = 10;

/// Compiles the kernels for `host/ptx`, which brings them to programs without a compiler for them.
#[derive(clap::Args, Clone, Debug)]
pub struct Prebuild {
    /// Compiles nothing, and fails where the sources have changed since.
    #[arg(long)]
    pub check: bool,
}

/// Renews or checks the modules.
pub fn prebuild(workspace: &Workspace, options: &Prebuild) -> Result<()> {
    let folder = workspace.root.join(CRATE);
    let digest = digest(&workspace.root)?;
    if options.check {
        return check(&folder, &digest);
    }
    let modules = folder.join("modules");
    if modules.is_dir() {
        fs::remove_dir_all(&modules)
            .with_context(|| format!("cannot replace {}", modules.display()))?;
    }
    let mut table = String::new();
    let mut n_bytes = 0;
    let compiler = ptx::each_arch(workspace, &BuildPtx::plain(), |arch, built| {
        n_bytes += write_modules(&modules, arch, built, &mut table)?;
        Ok(())
    })?;
    write(&folder.join("src/modules.rs"), table_of(&table).as_bytes())?;
    let sources = format!(
        "sources {digest}\ncompiler {}\n",
        compiler.version.lines().next().unwrap_or_default()
    );
    write(&folder.join(SOURCES), sources.as_bytes())?;
    eprintln!("{CRATE}: {:.2} MB of modules", n_bytes as f64 / 1e6);
    Ok(())
}

/// Fails where the modules were compiled from other sources.
fn check(folder: &Path, digest: &str) -> Result<()> {
    let path = folder.join(SOURCES);
    let sources =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let of = sources
        .lines()
        .find_map(|line| line.strip_prefix("sources "));
    match of {
        Some(of) if of == digest => Ok(()),
        _ => bail!(
            "the modules of {CRATE} are older than the kernels; `cargo xtask prebuild` renews them"
        ),
    }
}

/// Writes the modules of one architecture and their rows of the table; how many bytes they have. Tests alone want the probes.
fn write_modules(modules: &Path, arch: &str, built: &Built, table: &mut String) -> Result<usize> {
    let mut n_bytes = 0;
    for module in built.modules.iter().filter(|module| module.name != PROBES) {
        let text = fs::read(&module.ptx)
            .with_context(|| format!("cannot read {}", module.ptx.display()))?;
        let deflated = miniz_oxide::deflate::compress_to_vec(&text, COMPRESSION_LEVEL);
        let file = format!("{arch}/{}.deflate", module.name);
        write(&modules.join(&file), &deflated)?;
        let (name, path) = (&module.name, format!("../modules/{file}"));
        let _ = writeln!(table, "    ({name:?}, {arch:?}, include_bytes!({path:?})),");
        n_bytes += deflated.len();
    }
    Ok(n_bytes)
}

fn table_of(rows: &str) -> String {
    format!(
        "//! Written by `cargo xtask prebuild`.\n\n#[rustfmt::skip]\npub(crate) static MODULES: &[(&str, &str, &[u8])] = &[\n{rows}];\n"
    )
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// SHA-256 of everything that decides what the modules hold: device code, and what compiles and cuts it.
pub fn digest(root: &Path) -> Result<String> {
    let builder = root.join("xtask/ptx-builder/src");
    let mut files = ferroflash_ptx_builder::device_sources(&root.join("kernels-gpu"))?;
    let mut of_builder: Vec<PathBuf> = fs::read_dir(&builder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    of_builder.sort();
    files.extend(of_builder);
    let mut hasher = Sha256::new();
    for path in files {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .to_string_lossy()
            .into_owned();
        hasher.update(format!("{name} {}\n", text.len()));
        hasher.update(&text);
    }
    Ok(format!("{:x}", hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_other_sources_are_refused() {
        let folder =
            std::env::temp_dir().join(format!("ferroflash-prebuild-{}", std::process::id()));
        write(&folder.join(SOURCES), b"sources abc\ncompiler 1\n")
            .expect("a folder for temporary files");
        assert!(check(&folder, "abc").is_ok());
        let refused = check(&folder, "abd")
            .expect_err("another digest")
            .to_string();
        assert!(refused.contains("cargo xtask prebuild"), "{refused}");
        fs::remove_dir_all(&folder).expect("it was made above");
        assert!(check(&folder, "abc").is_err());
    }

    #[test]
    fn every_change_of_device_code_changes_the_digest() {
        let root = std::env::temp_dir().join(format!("ferroflash-digest-{}", std::process::id()));
        let source = root.join("kernels-gpu/src/lib.rs");
        write(&source, b"a").expect("a folder for temporary files");
        write(&root.join("xtask/ptx-builder/src/lib.rs"), b"b").expect("as above");
        let first = digest(&root).expect("both are there");
        assert_eq!(digest(&root).expect("as above"), first);
        // The emulator is no device code.
        write(&root.join("kernels-gpu/src/emu/mod.rs"), b"c").expect("as above");
        assert_eq!(digest(&root).expect("as above"), first);
        write(&source, b"b").expect("as above");
        let second = digest(&root).expect("as above");
        assert_ne!(second, first);
        write(&root.join("xtask/ptx-builder/src/lib.rs"), b"a").expect("as above");
        assert_ne!(digest(&root).expect("as above"), second);
        fs::remove_dir_all(&root).expect("it was made above");
    }
}
