//! `prebuild`: the kernels compiled for `host/ptx`, the crate that brings them to whoever has no compiler for them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ferroflash_ptx_builder::{Built, Compiler, PROBES, Sources};
use xshell::cmd;

use crate::digest;
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
    /// Renews nothing, and fails where the sources have changed since, or these modules are others than the compiler makes of them.
    #[arg(long)]
    pub check: bool,
}

/// Renews or checks the modules.
pub fn prebuild(workspace: &Workspace, options: &Prebuild) -> Result<()> {
    if options.check {
        if let Checked::Partly(reason) = check(workspace, &BuildPtx::plain())? {
            eprintln!("{CRATE}: {reason}");
        }
        return Ok(());
    }
    let folder = workspace.root.join(CRATE);
    let digest = digest(&workspace.root)?;
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
        "sources {digest}\ncompiler {}\nmodules {}\n",
        first_line(&compiler),
        digest_of_modules(&folder)?
    );
    write(&folder.join(SOURCES), sources.as_bytes())?;
    eprintln!("{CRATE}: {:.2} MB of modules", n_bytes as f64 / 1e6);
    Ok(())
}

fn first_line(compiler: &Compiler) -> &str {
    compiler.version.lines().next().unwrap_or_default()
}

/// How much a check could see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Every byte that it was to.
    Whole,
    /// Not the bytes of the modules, and why.
    Partly(String),
}

/// Fails where the modules were compiled from other sources, are not those that were, or hold something else than these sources give: of all modules, or of
/// the part that is compiled here.
pub fn check(workspace: &Workspace, options: &BuildPtx) -> Result<Checked> {
    let folder = workspace.root.join(CRATE);
    let modules = digest_of_modules(&folder)?;
    let compiled_by = check_sources(&folder, &digest(&workspace.root)?, &modules)?;
    let mut others = Vec::new();
    let compiler = ptx::each_arch(workspace, options, |arch, built| {
        let folder = folder.join("modules").join(arch);
        others.extend(other_modules(&folder, built, options.is_whole())?);
        Ok(())
    })?;
    if first_line(&compiler) != compiled_by {
        return Ok(Checked::Partly(format!(
            "prebuilt kernels: compiled by {compiled_by}, and here is {}: their bytes are not compared",
            first_line(&compiler)
        )));
    }
    match others.is_empty() {
        true => Ok(Checked::Whole),
        false => bail!(
            "these modules of {CRATE} are not what their sources give; `cargo xtask prebuild` renews them: {}",
            others.join(", ")
        ),
    }
}

/// Compiles the modules, and fails where they are not byte for byte those that a revision of git has prebuilt.
pub fn compare(workspace: &Workspace, revision: &str, options: &BuildPtx) -> Result<()> {
    let earlier = workspace.target.join("compared");
    if earlier.is_dir() {
        fs::remove_dir_all(&earlier)?;
    }
    fs::create_dir_all(&earlier)?;
    let sh = workspace.shell()?;
    let archive = earlier.join("modules.tar");
    cmd!(
        sh,
        "git archive --output {archive} {revision} {CRATE}/modules"
    )
    .run()?;
    cmd!(sh, "tar --extract --file {archive} --directory {earlier}").run()?;
    let folder = earlier.join(CRATE);
    let (mut n_compared, mut others) = (0, Vec::new());
    let compiler = ptx::each_arch(workspace, options, |arch, built| {
        let modules = built.modules.iter();
        n_compared += modules.filter(|module| module.name != PROBES).count();
        let folder = folder.join("modules").join(arch);
        others.extend(other_modules(&folder, built, options.is_whole())?);
        Ok(())
    })?;
    let sources = fs::read_to_string(folder.join(SOURCES))?;
    let compiled_by = after(&sources, "compiler ").unwrap_or_default();
    if compiled_by != first_line(&compiler) {
        let here = first_line(&compiler);
        bail!("the modules of {revision} were compiled by {compiled_by}, and here is {here}");
    }
    match others.is_empty() {
        true => {
            eprintln!("all {n_compared} modules are those of {revision}, byte for byte");
            Ok(())
        }
        false => bail!(
            "of {n_compared} modules, these are not as in {revision}:\n{}",
            others.join("\n")
        ),
    }
}

/// What stands behind a word in the list of sources.
fn after<'a>(sources: &'a str, word: &str) -> Option<&'a str> {
    sources.lines().find_map(|line| line.strip_prefix(word))
}

/// Fails where the modules were compiled from other sources, or are not those that were; by which compiler they were.
fn check_sources(folder: &Path, digest: &str, of_modules: &str) -> Result<String> {
    let path = folder.join(SOURCES);
    let sources =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let after = |word: &str| after(&sources, word);
    if after("sources ") != Some(digest) {
        bail!(
            "the modules of {CRATE} are older than the kernels; `cargo xtask prebuild` renews them"
        );
    }
    if after("modules ") != Some(of_modules) {
        bail!(
            "the modules of {CRATE} are not those that `cargo xtask prebuild` wrote last; it renews them"
        );
    }
    Ok(after("compiler ").unwrap_or_default().to_owned())
}

/// SHA-256 of the modules' files.
fn digest_of_modules(folder: &Path) -> Result<String> {
    let mut files = digest::files_at(&folder.join("modules"))?;
    files.retain(|path| *path != folder.join(SOURCES));
    digest::of_files(folder, &files, |_, bytes| bytes)
}

/// The files of an architecture's folder that hold another text than what was built, or are missing; where the whole was built, those that are too many.
fn other_modules(folder: &Path, built: &Built, is_whole: bool) -> Result<Vec<String>> {
    let built = built.modules.iter().filter(|module| module.name != PROBES);
    let texts = built.map(|module| {
        let text = fs::read(&module.ptx);
        let text = text.with_context(|| format!("cannot read {}", module.ptx.display()))?;
        Ok((format!("{}.deflate", module.name), text))
    });
    other_files(folder, &texts.collect::<Result<_>>()?, is_whole)
}

fn other_files(
    folder: &Path,
    texts: &BTreeMap<String, Vec<u8>>,
    is_whole: bool,
) -> Result<Vec<String>> {
    let mut others = Vec::new();
    for (name, text) in texts {
        let path = folder.join(name);
        let prebuilt = fs::read(&path)
            .ok()
            .and_then(|bytes| miniz_oxide::inflate::decompress_to_vec(&bytes).ok());
        match prebuilt {
            None => others.push(format!("{} (not there)", path.display())),
            Some(prebuilt) if prebuilt != *text => others.push(path.display().to_string()),
            Some(_) => {}
        }
    }
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    for entry in entries? {
        let entry = entry?;
        if is_whole && !texts.contains_key(&*entry.file_name().to_string_lossy()) {
            others.push(format!("{} (of no kernel)", entry.path().display()));
        }
    }
    Ok(others)
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
fn digest(root: &Path) -> Result<String> {
    let mut files = Sources::of_checkout(root).files()?;
    files.extend(digest::files_at(&root.join("xtask/ptx-builder/src"))?);
    digest::of_files(root, &files, |_, bytes| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_other_sources_are_refused() {
        let folder =
            std::env::temp_dir().join(format!("ferroflash-prebuild-{}", std::process::id()));
        write(
            &folder.join(SOURCES),
            b"sources abc\ncompiler 1\nmodules xyz\n",
        )
        .expect("a folder for temporary files");
        let compiler = check_sources(&folder, "abc", "xyz").expect("the same digests");
        assert_eq!(compiler, "1");
        for (sources, modules) in [("abd", "xyz"), ("abc", "xyy")] {
            let refused = check_sources(&folder, sources, modules)
                .expect_err("another digest")
                .to_string();
            assert!(refused.contains("cargo xtask prebuild"), "{refused}");
        }
        fs::remove_dir_all(&folder).expect("it was made above");
        assert!(check_sources(&folder, "abc", "xyz").is_err());
    }

    #[test]
    fn modules_that_are_not_what_was_built_are_named() {
        let folder =
            std::env::temp_dir().join(format!("ferroflash-modules-{}", std::process::id()));
        let deflated = |text: &[u8]| miniz_oxide::deflate::compress_to_vec(text, 1);
        for (name, text) in [("same", b"a"), ("other", b"b"), ("many", b"c")] {
            write(&folder.join(format!("{name}.deflate")), &deflated(text))
                .expect("a folder for temporary files");
        }
        let built = [("same", b"a"), ("other", b"x"), ("missing", b"d")];
        let texts = built.map(|(name, text)| (format!("{name}.deflate"), text.to_vec()));
        let texts = BTreeMap::from(texts);
        let said = [
            ("missing", " (not there)"),
            ("other", ""),
            ("many", " (of no kernel)"),
        ];
        let names = said.map(|(name, why)| {
            let path = folder.join(format!("{name}.deflate"));
            format!("{}{why}", path.display())
        });
        let others =
            |is_whole| other_files(&folder, &texts, is_whole).expect("the folder is there");
        assert_eq!(others(true), names);
        assert_eq!(others(false), names[..2]);
        write(&folder.join("same.deflate"), b"no deflate").expect("as above");
        let texts = BTreeMap::from([("same.deflate".to_owned(), b"a".to_vec())]);
        let others = other_files(&folder, &texts, true).expect("as above");
        assert!(
            others[0].ends_with("same.deflate (not there)"),
            "{others:?}"
        );
        fs::remove_dir_all(&folder).expect("it was made above");
    }

    #[test]
    fn every_change_of_device_code_changes_the_digest() {
        let root = std::env::temp_dir().join(format!("ferroflash-digest-{}", std::process::id()));
        let source = root.join("kernels-gpu/src/lib.rs");
        write(&source, b"a").expect("a folder for temporary files");
        write(&root.join("xtask/ptx-builder/src/lib.rs"), b"b").expect("as above");
        let device = root.join("kernels-gpu/expression/src/device/mod.rs");
        write(&device, b"e").expect("as above");
        let first = digest(&root).expect("both are there");
        assert_eq!(digest(&root).expect("as above"), first);
        // The emulator is no device code, nor is what the host does with expressions.
        write(&root.join("kernels-gpu/src/emu/mod.rs"), b"c").expect("as above");
        write(&root.join("kernels-gpu/expression/src/lib.rs"), b"c").expect("as above");
        assert_eq!(digest(&root).expect("as above"), first);
        write(&source, b"b").expect("as above");
        let second = digest(&root).expect("as above");
        assert_ne!(second, first);
        write(&root.join("xtask/ptx-builder/src/lib.rs"), b"a").expect("as above");
        let third = digest(&root).expect("as above");
        assert_ne!(third, second);
        write(&device, b"f").expect("as above");
        assert_ne!(digest(&root).expect("as above"), third);
        fs::remove_dir_all(&root).expect("it was made above");
    }
}
