//! `ci`: everything that must hold, in order; every step runs, whatever became of those before it.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::prebuild::{self, Prebuild};
use crate::ptx::{self, BuildPtx};
use crate::test::{self, Counts, Test};
use crate::workspace::Workspace;
use crate::{bindings, codegen, programs, tidy, tools};

/// Runs every step; says at the end which failed, and the counts alone on the last line.
pub fn ci(workspace: &Workspace) -> Result<bool> {
    let seed = seed(workspace)?;
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    let mut begun = Instant::now();
    let mut step = |name: &str, result: Result<()>| {
        eprintln!("{name}: took {:.0} s", begun.elapsed().as_secs_f64());
        begun = Instant::now();
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
    let tested = test::count(workspace, &tests).map(|tested| counts.add(tested));
    step("test", tested);

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
    let tested = bindings::count(workspace).map(|tested| counts.add(tested));
    step("test --bindings", tested);

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

/// A seed of the device code: the same kernels are judged by the same sample again, and a change of any takes another one.
fn seed(workspace: &Workspace) -> Result<u64> {
    let digest = prebuild::digest(&workspace.root)?;
    // The first 64 bits.
    Ok(u64::from_str_radix(&digest[..16], 16)? % test::N_SEEDS)
}

fn cargo(workspace: &Workspace, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new(workspace.cargo());
    command
        .current_dir(&workspace.root)
        .args(arguments)
        .envs(environment.iter().copied());
    programs::run(&mut command)
}
