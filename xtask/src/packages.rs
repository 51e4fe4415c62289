//! The packages that a release publishes: their files, as cargo packs them, and how large the README says that they are.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;

/// How far a size may be from what the README says, of what it says.
const TOLERANCE: f64 = 0.05;

/// The most that crates.io takes for a package.
const LIMIT_BYTES: u64 = 10 * 1024 * 1024;

/// A package of a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it is published.
    pub is_published: bool,
    /// The fields without which it cannot be published, or nobody would know what it is, that its manifest lacks.
    pub lacks: Vec<&'static str>,
}

/// The packages of the workspace with this manifest.
pub fn packages(workspace: &Workspace, manifest: &str) -> Result<Vec<Package>> {
    of_metadata(&workspace.metadata(manifest)?)
}

fn of_metadata(metadata: &Value) -> Result<Vec<Package>> {
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata names no packages")?;
    let word = |value: &Value| value.as_str().map(str::to_owned);
    packages
        .iter()
        .map(|package| {
            let fields = ["description", "license"];
            let lacks = fields.into_iter().filter(|field| package[*field].is_null());
            Ok(Package {
                name: word(&package["name"]).context("a package has a name")?,
                version: word(&package["version"]).context("a package has a version")?,
                is_published: package["publish"].is_null(),
                lacks: lacks.collect(),
            })
        })
        .collect()
}

/// Packs the published packages of the library's workspace; their files, each with its package.
pub fn pack(workspace: &Workspace) -> Result<Vec<(Package, PathBuf)>> {
    let published: Vec<Package> = packages(workspace, "Cargo.toml")?
        .into_iter()
        .filter(|package| package.is_published)
        .collect();
    let mut cargo = Command::new(workspace.cargo());
    // It warns of each test that stays out of a package.
    cargo.current_dir(&workspace.root);
    cargo.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    for package in &published {
        cargo.args(["--package", &package.name]);
    }
    let output = cargo.output()?;
    if !output.status.success() {
        bail!("cargo package: {}", String::from_utf8_lossy(&output.stderr));
    }
    let folder = workspace.target.join("package");
    let file =
        |package: &Package| folder.join(format!("{}-{}.crate", package.name, package.version));
    Ok(published
        .into_iter()
        .map(|package| {
            let file = file(&package);
            (package, file)
        })
        .collect())
}

/// Packs the packages, and fails where one is too large, or the README says another size.
pub fn check_sizes(workspace: &Workspace) -> Result<()> {
    let mut all_bytes = 0;
    for (package, file) in pack(workspace)? {
        let bytes = fs::metadata(&file)?.len();
        eprintln!("{}: {:.2} MB", package.name, bytes as f64 / 1e6);
        if bytes > LIMIT_BYTES {
            bail!(
                "{} has {bytes} bytes; crates.io takes {LIMIT_BYTES}",
                package.name
            );
        }
        all_bytes += bytes;
    }
    check_said(workspace, "the crates have", all_bytes)
}

/// Fails where the README does not say this size, in MB, after these words.
pub fn check_said(workspace: &Workspace, words: &str, bytes: u64) -> Result<()> {
    let readme = fs::read_to_string(workspace.root.join("README.md"))?;
    let said =
        said(&readme, words).with_context(|| format!("README.md does not say \"{words} … MB\""))?;
    let given = bytes as f64 / 1e6;
    match (given - said).abs() <= TOLERANCE * said {
        true => Ok(()),
        false => bail!("README.md says \"{words} {said} MB\"; it is {given:.1}"),
    }
}

/// The number between these words and "MB".
fn said(text: &str, words: &str) -> Option<f64> {
    let (_, rest) = text.split_once(words)?;
    let (number, _) = rest.split_once("MB")?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_read_from_a_text() {
        let text = "Of all, the crates have 9.7 MB, and the wheel has 11 MB.";
        assert_eq!(said(text, "the crates have"), Some(9.7));
        assert_eq!(said(text, "the wheel has"), Some(11.0));
        assert_eq!(said(text, "the book has"), None);
    }

    #[test]
    fn packages_say_what_they_lack() -> Result<()> {
        let metadata = json!({"packages": [
            {"name": "a", "version": "1.0.0", "publish": null, "description": "one", "license": "MIT"},
            {"name": "b", "version": "1.0.0", "publish": [], "description": null, "license": "MIT"},
        ]});
        let packages = of_metadata(&metadata)?;
        let seen = packages
            .iter()
            .map(|one| (one.is_published, one.lacks.as_slice()));
        assert!(seen.eq([(true, [].as_slice()), (false, ["description"].as_slice())]));
        Ok(())
    }
}
