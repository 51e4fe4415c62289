//! `ci`: everything that must hold, in order; every step runs, whatever became of those before it.

use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::codegen::Mode;
use crate::parts::{Length, Part};
use crate::prebuild::{self, Checked};
use crate::ptx::{self, BuildPtx};
use crate::test::{self, Counts, Test};
use crate::times::Times;
use crate::workspace::Workspace;
use crate::{api, bindings, book, codegen, packages, parts, programs, python, seen, tidy, tools};

/// Runs every step, those first that are soon done; says at the end what took how long, which failed, and the counts alone on the last line.
pub fn ci(workspace: &Workspace) -> Result<bool> {
    let begun = Instant::now();
    let seed = seed(workspace)?;
    let mut run = Run::new();
    run.sources(workspace, seed);
    run.lints(workspace);
    run.tests(workspace, seed);
    run.times.all = begun.elapsed().as_secs_f64();
    run.end(workspace)
}

/// A run of all steps.
struct Run {
    counts: Counts,
    failures: Vec<String>,
    times: Times,
    begun: Instant,
}

impl Run {
    fn new() -> Run {
        Run {
            counts: Counts::default(),
            failures: Vec::new(),
            times: Times::default(),
            begun: Instant::now(),
        }
    }

    /// Notes what became of a step that began when the one before ended. What tests count is added.
    fn step(&mut self, name: &str, result: Result<Counts>) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.begun = Instant::now();
        self.times.steps.push((name.to_owned(), seconds));
        eprintln!("{name}: took {seconds:.0} s");
        match result {
            Ok(counts) => {
                if counts.n_failed > 0 {
                    eprintln!("{name}: {} failed", counts.n_failed);
                }
                self.counts.add(counts);
            }
            Err(error) => {
                eprintln!("{name}: {error:#}");
                self.failures.push(format!("{name}: {error:#}"));
            }
        }
    }

    fn check(&mut self, name: &str, result: Result<()>) {
        self.step(name, result.map(|()| Counts::default()));
    }

    /// What looks at sources alone, and at what is generated from them; of the prebuilt kernels, which are known by their digest, a part is compiled again.
    fn sources(&mut self, workspace: &Workspace, seed: u64) {
        let fmt = ["fmt", "--all", "--check"];
        self.check("fmt", cargo(workspace, &fmt, &[]));
        let fmt = [&fmt[..], &["--manifest-path", bindings::MANIFEST]].concat();
        self.check("bindings: fmt", cargo(workspace, &fmt, &[]));
        self.check("tidy", tidy::tidy(workspace));
        self.check("codegen", codegen::codegen(workspace, Mode::Check));
        let checked = prebuild::check(workspace, &BuildPtx::part(seed)).map(|checked| {
            let mut counts = Counts::default();
            if let Checked::Partly(reason) = checked {
                counts.add_not_run(&reason, 1);
            }
            counts
        });
        self.step("prebuilt kernels", checked);
    }

    /// What compiles and runs nothing.
    fn lints(&mut self, workspace: &Workspace) {
        let clippy = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ];
        // What the build script compiles is another step's.
        let without_kernels = ("FERROFLASH_KERNELS", "off");
        self.check("clippy", cargo(workspace, &clippy, &[without_kernels]));
        let doc = ["doc", "--workspace", "--no-deps", "--all-features"];
        let refuse = [("RUSTDOCFLAGS", "-D warnings"), without_kernels];
        self.check("docs", cargo(workspace, &doc, &refuse));
        self.check("packages", packages::check_sizes(workspace));
        self.check("public API", api::api(workspace, Mode::Check));
    }

    /// Those of the workspace, the suites that take minutes at last; and beside them, where rustc has work for one processor alone, those of the bindings.
    fn tests(&mut self, workspace: &Workspace, seed: u64) {
        let of_bindings = thread::scope(|scope| {
            let bindings = scope.spawn(|| {
                let mut run = Run::new();
                run.bindings(workspace, seed);
                run
            });
            self.of_workspace(workspace, seed);
            bindings.join()
        });
        match of_bindings {
            Ok(run) => self.add(run),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn of_workspace(&mut self, workspace: &Workspace, seed: u64) {
        let parts = parts::parts(workspace).unwrap_or_else(|error| {
            self.check("tests", Err(error));
            Vec::new()
        });
        let (short, long): (Vec<Part>, Vec<Part>) = parts
            .into_iter()
            .partition(|part| part.length == Length::Short);
        self.parts(workspace, seed, &short);
        match tools::install(workspace) {
            Ok(_programs) => {
                self.check("ptxas", ptx::build_ptx(workspace, &BuildPtx::sampled(seed)));
            }
            Err(error) => self.counts.add_not_run(&format!("ptxas: {error:#}"), 1),
        }
        match book::mdbook(workspace) {
            // Pictures, quotes and links are tests of the book's package.
            Ok(mdbook) => self.check("book", book::build(workspace, &mdbook)),
            Err(error) => self.counts.add_not_run(&format!("book: {error:#}"), 1),
        }
        self.parts(workspace, seed, &long);
    }

    fn bindings(&mut self, workspace: &Workspace, seed: u64) {
        for binding in bindings::FOLDERS {
            let name = format!("{binding}: clippy, build");
            self.check(&name, bindings::build(workspace, binding, seed));
            let name = format!("{binding}: test");
            self.step(&name, bindings::count_of(workspace, binding, seed));
        }
        self.check("wheel", python::check_wheel(workspace));
    }

    /// Adds what another run of steps came to.
    fn add(&mut self, other: Run) {
        self.counts.add(other.counts);
        self.failures.extend(other.failures);
        self.times.steps.extend(other.times.steps);
    }

    fn parts(&mut self, workspace: &Workspace, seed: u64, parts: &[Part]) {
        let options = Test {
            seed: Some(seed),
            ..Test::default()
        };
        for part in parts {
            let tested = test::count_part(workspace, &options, seed, part);
            self.step(&part.name, tested);
        }
    }

    /// Says what the run came to; whether all is well.
    fn end(mut self, workspace: &Workspace) -> Result<bool> {
        self.times.sets = std::mem::take(&mut self.counts.seconds);
        let before = Times::before(&workspace.target);
        self.times.keep(&workspace.target)?;
        self.counts.print_reasons();
        print!("{}", self.times.table(&before));
        for name in &self.failures {
            println!("failed: {name}");
        }
        let n_failed = self.counts.n_failed + self.failures.len();
        println!(
            "{} passed, {n_failed} failed, {} skipped",
            self.counts.n_passed,
            self.counts.n_not_run()
        );
        Ok(n_failed == 0)
    }
}

/// A seed of the code that the suites see: the same code is judged by the same sample again, whatever its comments say, and a change of any takes
/// another one.
fn seed(workspace: &Workspace) -> Result<u64> {
    let digest = seen::digest_of_code(&workspace.root)?;
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
