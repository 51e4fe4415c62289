//! `ci`: everything that must hold, in order; every step runs, whatever became of those before it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::prebuild::{self, Prebuild};
use crate::ptx::{self, BuildPtx};
use crate::test::{self, Counts, Test};
use crate::workspace::Workspace;
use crate::{bindings, codegen, programs, tidy, tools};

/// Runs every step; says at the end which failed, and the counts alone on the last line.
pub fn ci(workspace: &Workspace) -> Result<bool> {
    let seed = seed(&workspace.root)?;
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    let mut step = |name: &str, result: Result<()>| {
        if let Err(error) = result {
            eprintln!("{name}: {error:#}");
            failures.push(format!("{name}: {error:#}"));
        }
    };

    step("fmt", cargo(workspace, &["fmt", "--all", "--check"], &[]));
    step("tidy", tidy::tidy(workspace));
    let check = Prebuild { check: true };
    step("prebuilt kernels", prebuild::prebuild(workspace, &check));
    step("codegen", codegen::codegen(workspace, codegen::Mode::Check));
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ];
    step("clippy", cargo(workspace, &clippy, &[]));
    let doc = ["doc", "--workspace", "--no-deps", "--all-features"];
    step(
        "docs",
        cargo(workspace, &doc, &[("RUSTDOCFLAGS", "-D warnings")]),
    );
    let mut without_tools = None;
    match tools::install(workspace) {
        Ok(_programs) => step("ptxas", ptx::build_ptx(workspace, &BuildPtx::sampled(seed))),
        Err(error) => without_tools = Some(format!("ptxas: {error:#}")),
    }
    let tests = Test {
        seed: Some(seed),
        ..Test::default()
    };
    match test::count(workspace, &tests) {
        Ok(tested) => counts = tested,
        Err(error) => step("test", Err(error)),
    }

    for binding in bindings::FOLDERS {
        step(
            &format!("{binding}: fmt"),
            bindings::fmt(workspace, binding),
        );
        step(
            &format!("{binding}: clippy"),
            bindings::clippy(workspace, binding),
        );
    }
    match bindings::count(workspace) {
        Ok(tested) => counts.add(tested),
        Err(error) => step("test --bindings", Err(error)),
    }

    if let Some(reason) = without_tools {
        counts.add_not_run(&reason, 1);
    }
    counts.print_reasons();
    for name in &failures {
        println!("failed: {name}");
    }
    let n_failed = counts.n_failed + failures.len();
    println!(
        "{} passed, {n_failed} failed, {} skipped",
        counts.n_passed,
        counts.n_not_run()
    );
    Ok(n_failed == 0)
}

/// The seed of the Rust sources: on the same sources a run says the same again, and a change of any takes another sample.
fn seed(root: &Path) -> Result<u64> {
    let mut hasher = Sha256::new();
    for path in tidy::files(root)? {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read(root.join(&path));
            hasher.update(text.with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    let digest = hasher.finalize();
    let number = digest
        .iter()
        .take(8)
        .fold(0, |number: u64, &byte| number << 8 | u64::from(byte));
    Ok(number % test::N_SEEDS)
}

fn cargo(workspace: &Workspace, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new(workspace.cargo());
    command
        .current_dir(&workspace.root)
        .args(arguments)
        .envs(environment.iter().copied());
    programs::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_follows_from_the_sources() {
        let root = std::env::temp_dir().join(format!("ferroflash-seed-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            fs::create_dir_all(&root).expect("a folder for temporary files");
            fs::write(root.join(name), text).expect("as above");
            seed(&root).expect("as above")
        };
        let first = write("a.rs", "fn a() {}");
        assert_eq!(write("a.md", "words"), first);
        assert_ne!(write("a.rs", "fn b() {}"), first);
        assert_eq!(write("a.rs", "fn a() {}"), first);
        fs::remove_dir_all(&root).expect("it was made above");
    }
}
