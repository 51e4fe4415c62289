//! The tests of the workspace in parts: what is soon done comes first, so that failures show early.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace::Workspace;

/// Integration tests that run for minutes, each a part of its own.
const LONG: [&str; 2] = ["cpu", "emulated"];

/// The feature without which tests run the kernels that users get, compiled beforehand. What wants it is for a machine with a GPU.
const BUILD_KERNELS: &str = "build-kernels";

/// What tells cargo to run the examples in the documentation.
const DOCTESTS: &str = "--doc";

/// How long a part runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// For seconds.
    Short,
    /// For minutes.
    Long,
}

/// Some of the tests, which one command of cargo runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What they are.
    pub name: String,
    /// How long they run.
    pub length: Length,
    /// What tells cargo which ones.
    pub targets: Vec<String>,
    /// The features that they are built with: all but [`BUILD_KERNELS`].
    pub features: String,
}

impl Part {
    fn new(name: &str, length: Length, flags: &[&str]) -> Part {
        Part {
            length,
            name: name.to_owned(),
            targets: flags.iter().map(ToString::to_string).collect(),
            features: String::new(),
        }
    }

    /// Whether they are the examples in the documentation.
    pub fn tests_examples(&self) -> bool {
        self.targets.iter().any(|target| target == DOCTESTS)
    }

    fn add(&mut self, flag: &str, name: &str) {
        let is_there = |pair: &[String]| pair == [flag, name];
        if !self.targets.windows(2).any(is_there) {
            self.targets.extend([flag.to_owned(), name.to_owned()]);
        }
    }
}

/// All tests of the workspace: together what `cargo test --workspace` runs.
pub fn parts(workspace: &Workspace) -> Result<Vec<Part>> {
    of_metadata(&workspace.metadata("Cargo.toml")?)
}

fn of_metadata(metadata: &Value) -> Result<Vec<Part>> {
    let mut unit = Part::new("unit tests", Length::Short, &["--lib", "--bins"]);
    let mut integration = Part::new("integration tests", Length::Short, &[]);
    let mut long = LONG.map(|name| Part::new(&format!("{name} suite"), Length::Long, &[]));
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata names no packages")?;
    for package in packages {
        let targets = package["targets"].as_array();
        for target in targets.context("cargo metadata names no targets")? {
            let name = target["name"].as_str().context("a target has a name")?;
            let wanted = target["required-features"].as_array();
            let is_beyond = wanted.is_some_and(|all| all.iter().any(|one| one == BUILD_KERNELS));
            if target["test"] != true || is_beyond {
                continue;
            }
            match target["kind"][0].as_str() {
                Some("test") => match LONG.iter().position(|other| *other == name) {
                    Some(at) => long[at].add("--test", name),
                    None => integration.add("--test", name),
                },
                Some("example") => unit.add("--example", name),
                // Those that `--lib` and `--bins` name, and build scripts.
                _ => {}
            }
        }
    }
    let doctests = Part::new("doctests", Length::Short, &[DOCTESTS]);
    let parts = [unit, integration, doctests].into_iter().chain(long);
    let features = features(packages)?;
    // Without a target cargo would run all.
    let parts = parts.filter(|part| !part.targets.is_empty());
    Ok(parts
        .map(|part| Part {
            features: features.clone(),
            ..part
        })
        .collect())
}

/// All features of these packages but one, as `package/feature` with commas between them.
fn features(packages: &[Value]) -> Result<String> {
    let mut all = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package has a name")?;
        let features = package["features"].as_object();
        let names = features.context("a package has features")?.keys();
        let wanted =
            names.filter(|feature| !["default", BUILD_KERNELS].contains(&feature.as_str()));
        all.extend(wanted.map(|feature| format!("{name}/{feature}")));
    }
    Ok(all.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target(kind: &str, name: &str, test: bool) -> Value {
        json!({"kind": [kind], "name": name, "test": test})
    }

    #[test]
    fn every_target_that_is_tested_is_in_one_part() -> Result<()> {
        let metadata = json!({"packages": [
            {"name": "one", "features": {"default": [], "cust": [], "build-kernels": [], "emulator": []}, "targets": [
                target("lib", "a", true),
                target("test", "emulated", true),
                target("test", "plans", true),
                target("example", "checked", true),
                target("example", "shown", false),
                target("custom-build", "build-script-build", false),
                {"kind": ["test"], "name": "probes", "test": true, "required-features": ["build-kernels"]},
            ]},
            {"name": "two", "features": {"fake": []}, "targets": [target("bin", "b", true), target("test", "plans", true), target("test", "cpu", true)]},
        ]});
        let parts = of_metadata(&metadata)?;
        let flags: Vec<_> = parts.iter().map(|part| part.targets.join(" ")).collect();
        assert_eq!(
            flags,
            [
                "--lib --bins --example checked",
                "--test plans",
                "--doc",
                "--test cpu",
                "--test emulated"
            ]
        );
        let features = parts.iter().map(|part| part.features.as_str());
        assert!(features.eq(["one/cust,one/emulator,two/fake"; 5]));
        Ok(())
    }

    #[test]
    fn no_part_is_without_targets() -> Result<()> {
        let metadata = json!({"packages": [{"name": "a", "features": {}, "targets": [target("lib", "a", true)]}]});
        let parts = of_metadata(&metadata)?;
        let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["unit tests", "doctests"]);
        Ok(())
    }
}
