//! `release`: builds and checks all that a release publishes. It publishes nothing: a person does, from what lies under target/release-dry-run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::codegen::Mode;
use crate::packages::{self, Package};
use crate::workspace::Workspace;
use crate::{api, bindings, book, programs, python};

/// The folder of what a dry run makes.
const FOLDER: &str = "release-dry-run";

/// A program that depends on the library as others do: the example of the README.
const MANIFEST: &str =
    "[package]\nname = \"first-call\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n";

/// Builds and checks all that a release publishes, and publishes nothing.
#[derive(clap::Args, Clone, Debug)]
pub struct Release {
    /// Required: publishing is done by hand, from what this made.
    #[arg(long, required = true)]
    dry_run: bool,
    /// Leaves out what takes minutes: the wheel, and the programs built from the packages.
    #[arg(long)]
    quick: bool,
}

/// Takes every step, and fails if one of them did.
pub fn release(workspace: &Workspace, options: &Release) -> Result<()> {
    let folder = workspace.target.join(FOLDER);
    let mut failed = Vec::new();
    let long = LONG_STEPS.iter().filter(|_| !options.quick);
    for (name, run) in STEPS.iter().chain(long) {
        let begun = Instant::now();
        let result = run(workspace, &folder);
        let seconds = begun.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("{name}: done in {seconds:.0} s"),
            Err(error) => {
                println!("{name}: {error:#}");
                failed.push(*name);
            }
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of a release failed: {}",
        failed.len(),
        failed.join(", ")
    );
    println!("all is there for a release; docs/src/release.md says how it is published");
    Ok(())
}

/// A step of a release.
type Step = (&'static str, fn(&Workspace, &Path) -> Result<()>);

/// What takes seconds, once its tools are there.
const STEPS: [Step; 6] = [
    ("names and versions", |workspace, _| names(workspace)),
    ("licences", |workspace, _| licences(workspace)),
    ("public API", |workspace, _| {
        api::api(workspace, Mode::Check)
    }),
    ("semantic versions", |workspace, _| semver(workspace)),
    ("sizes", |workspace, _| packages::check_sizes(workspace)),
    ("book", |workspace, _| book::book(workspace)),
];

/// What takes minutes.
const LONG_STEPS: [Step; 2] = [
    ("a program and the command from the packages", from_packages),
    ("the wheel in an empty environment", wheel),
];

/// Whether all packages have one version, which the changelog, the citation and the README of a release name, and say what they are.
fn names(workspace: &Workspace) -> Result<()> {
    let mut packages = packages::packages(workspace, "Cargo.toml")?;
    packages.extend(packages::packages(workspace, bindings::MANIFEST)?);
    let version = &packages
        .first()
        .context("the workspace has packages")?
        .version
        .clone();
    for Package {
        name,
        version: of,
        lacks,
        is_published,
    } in &packages
    {
        // candle's stand-in has the version of the crate in whose place it is put.
        let is_stand_in = name == "candle-flash-attn";
        ensure!(
            of == version || is_stand_in,
            "{name} has version {of}; needed: {version}, as all others"
        );
        ensure!(
            !is_published || lacks.is_empty(),
            "{name} lacks {} in its manifest",
            lacks.join(", ")
        );
    }
    let citation = fs::read_to_string(workspace.root.join("CITATION.cff"))?;
    let line = format!("version: {version}");
    ensure!(
        citation.lines().any(|said| said == line),
        "CITATION.cff has no line \"{line}\""
    );
    let changelog = fs::read_to_string(workspace.root.join("CHANGELOG.md"))?;
    let heads = [
        "## Unreleased".to_owned(),
        format!("## {version}"),
        format!("## [{version}]"),
    ];
    let is_there = changelog
        .lines()
        .any(|line| heads.iter().any(|head| line.starts_with(head)));
    ensure!(
        is_there,
        "CHANGELOG.md has neither \"## Unreleased\" nor \"## {version}\""
    );
    println!("{} packages of version {version}", packages.len());
    Ok(())
}

/// Licences and sources of all that both workspaces depend on.
fn licences(workspace: &Workspace) -> Result<()> {
    installed("cargo-deny")?;
    for folder in [".", "bindings"] {
        let mut deny = Command::new("cargo-deny");
        deny.current_dir(workspace.root.join(folder))
            .args(["--log-level", "error", "--config"])
            .arg(workspace.root.join(".cargo/deny.toml"))
            .args(["check", "licenses", "bans", "sources"]);
        programs::run(&mut deny)?;
    }
    Ok(())
}

/// Whether the version grows as the changes since the last release demand.
fn semver(workspace: &Workspace) -> Result<()> {
    let mut git = Command::new("git");
    git.current_dir(&workspace.root)
        .args(["describe", "--tags", "--abbrev=0", "--match", "v*"]);
    let output = git.output().context("git is missing")?;
    let last = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || last.is_empty() {
        println!("there is no earlier release: no tag v*");
        return Ok(());
    }
    installed("cargo-semver-checks")?;
    let mut checks = Command::new("cargo-semver-checks");
    checks
        .current_dir(&workspace.root)
        .env("FERROFLASH_KERNELS", "off")
        .args([
            "semver-checks",
            "--package",
            "ferroflash",
            "--baseline-rev",
            &last,
        ]);
    programs::run(&mut checks)
}

/// A tool of cargo that a person installs.
fn installed(tool: &str) -> Result<()> {
    let said = Command::new(tool).arg("--version").output();
    match said.is_ok_and(|output| output.status.success()) {
        true => Ok(()),
        false => bail!("{tool} is missing: `cargo install --locked {tool}` brings it"),
    }
}

/// Unpacks the packages; where each lies.
fn unpacked(workspace: &Workspace, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let packed = packages::pack(workspace)?;
    let folder = folder.join("crates");
    if folder.is_dir() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let mut unpacked = Vec::new();
    for (package, file) in packed {
        programs::run(
            Command::new("tar")
                .arg("-xzf")
                .arg(&file)
                .arg("-C")
                .arg(&folder),
        )?;
        let of = folder.join(format!("{}-{}", package.name, package.version));
        unpacked.push((package.name, of));
    }
    Ok(unpacked)
}

/// What has cargo take these packages in place of those of the registry.
fn patches(packages: &[(String, PathBuf)]) -> String {
    let line = |(name, path): &(String, PathBuf)| {
        format!("{name} = {{ path = {:?} }}\n", path.display().to_string())
    };
    let lines: String = packages.iter().map(line).collect();
    format!("[patch.crates-io]\n{lines}")
}

/// Builds programs on the packages as they are published, outside the workspace.
fn from_packages(workspace: &Workspace, folder: &Path) -> Result<()> {
    let packages = unpacked(workspace, folder)?;
    first_call(workspace, folder, &packages)?;
    command(workspace, folder, &packages)
}

/// Builds and runs the README's example as a program of its own.
fn first_call(workspace: &Workspace, folder: &Path, packages: &[(String, PathBuf)]) -> Result<()> {
    let program = folder.join("first-call");
    fs::create_dir_all(program.join("src"))?;
    let library = packages.iter().find(|(name, _)| name == "ferroflash");
    library.context("the library is packed")?;
    let manifest = format!(
        "{MANIFEST}\n[dependencies]\nferroflash = \"*\"\n\n{}",
        patches(packages)
    );
    fs::write(program.join("Cargo.toml"), manifest)?;
    let readme = fs::read_to_string(workspace.root.join("README.md"))?;
    fs::write(program.join("src/main.rs"), main_of(&readme)?)?;
    let mut cargo = Command::new(workspace.cargo());
    cargo
        .current_dir(&program)
        .args(["run", "--release", "--quiet", "--target-dir"]);
    programs::run(cargo.arg(folder.join("target")))
}

/// The first example in Rust of a text, as a program.
fn main_of(text: &str) -> Result<String> {
    let (_, rest) = text
        .split_once("```rust\n")
        .context("README.md has an example in Rust")?;
    let (code, _) = rest.split_once("```").context("the example ends")?;
    // rustdoc's hidden lines are code, too.
    let lines: String = code
        .lines()
        .map(|line| format!("    {}\n", line.strip_prefix("# ").unwrap_or(line)))
        .collect();
    Ok(format!(
        "fn main() -> Result<(), ferroflash::Error> {{\n{lines}}}\n"
    ))
}

/// Installs the command from its package into an empty folder, and runs it.
fn command(workspace: &Workspace, folder: &Path, packages: &[(String, PathBuf)]) -> Result<()> {
    let own = packages.iter().find(|(name, _)| name == "ferroflash-cli");
    let (_, own) = own.context("the command is packed")?;
    // It lies within the repository, and belongs to no workspace.
    let manifest = own.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    fs::write(&manifest, format!("{text}\n[workspace]\n"))?;
    let config = folder.join("patches.toml");
    fs::write(&config, patches(packages))?;
    let root = folder.join("command");
    let mut install = Command::new(workspace.cargo());
    install
        .current_dir(folder)
        .args(["install", "--quiet", "--path"])
        .arg(own)
        .arg("--root")
        .arg(&root)
        .arg("--target-dir")
        .arg(folder.join("target"))
        .arg("--config")
        .arg(&config);
    programs::run(&mut install)?;
    programs::run(Command::new(root.join("bin/ferroflash")).arg("info"))
}

/// Builds the wheel, installs it into an empty environment, and computes with it; then the tests of PyTorch's operators.
fn wheel(workspace: &Workspace, folder: &Path) -> Result<()> {
    let wheel = python::published_wheel(workspace, &folder.join("wheel"))?;
    python::try_alone(&wheel, &folder.join("python"))?;
    python::try_operators(workspace, &wheel, &folder.join("package"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_becomes_a_program() -> Result<()> {
        let text = "a\n```rust\nlet x = 1;\n# Ok::<(), E>(())\n```\nb";
        let wanted = "fn main() -> Result<(), ferroflash::Error> {\n    let x = 1;\n    Ok::<(), E>(())\n}\n";
        assert_eq!(main_of(text)?, wanted);
        assert!(main_of("no example").is_err());
        Ok(())
    }

    #[test]
    fn packages_take_the_place_of_those_of_the_registry() {
        let packages = [("a".to_owned(), PathBuf::from("/p/a-1"))];
        assert_eq!(
            patches(&packages),
            "[patch.crates-io]\na = { path = \"/p/a-1\" }\n"
        );
    }
}
