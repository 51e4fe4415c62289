//! `test`: everything that runs without a GPU, and the counts at its end.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader};
use std::process::Command;

use anyhow::Result;

use crate::bindings;
use crate::parts::{self, Length, Part};
use crate::seen;
use crate::times;
use crate::workspace::Workspace;

/// What a test says that cannot do its work here, followed by what is missing and why, to the end of the line. Each is
/// written at once, but wherever the harness is with a line of its own.
const NOT_RUN: &str = "[not run] ";

/// Runs everything that needs no GPU: every test of the workspace with the emulated kernels, doctests.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Test {
    /// Leaves out the large sets of cases.
    #[arg(long)]
    pub quick: bool,
    /// Runs all cases on the emulator instead of a sample.
    #[arg(long)]
    pub full: bool,
    /// Decides the sample, the random problems and the order of the emulator's threads; if not given, another one each time.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Leaves out the tests whose code, comments apart, has not changed since they passed here.
    #[arg(long, conflicts_with = "full")]
    pub changed: bool,
    /// Runs the tests of the bindings to other frameworks instead, a workspace of their own under bindings/.
    #[arg(long, conflicts_with_all = ["quick", "full", "changed"])]
    pub bindings: bool,
}

impl Test {
    /// Whether no set of a suite is left out.
    fn runs_suites(&self) -> bool {
        !self.quick && std::env::var_os("CASES").is_none()
    }

    /// What tells the tests which cases to run.
    fn environment(&self, seed: u64) -> Vec<(&'static str, String)> {
        let cases = self.full.then(|| ("CASES", "all".to_owned()));
        cases
            .into_iter()
            .chain(["SEED", "PROPTEST_RNG_SEED"].map(|name| (name, seed.to_string())))
            .collect()
    }
}

/// Seeds are short, since people copy them.
pub const N_SEEDS: u64 = 1_000_000;

/// A number that nobody knows beforehand.
pub fn any_seed() -> u64 {
    RandomState::new().build_hasher().finish() % N_SEEDS
}

/// What became of the tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Tests that did their work and found nothing wrong.
    pub n_passed: usize,
    /// Tests that found something wrong, and programs that did not come to an end.
    pub n_failed: usize,
    /// Tests that did not do their work, by reason.
    pub not_run: BTreeMap<String, usize>,
    /// Seconds of the sets of cases that said them.
    pub seconds: BTreeMap<String, f64>,
}

impl Counts {
    /// How many tests did not do their work.
    pub fn n_not_run(&self) -> usize {
        self.not_run.values().sum()
    }

    /// Notes that `n` tests did not run.
    pub fn add_not_run(&mut self, reason: &str, n: usize) {
        if n > 0 {
            *self.not_run.entry(reason.to_owned()).or_default() += n;
        }
    }

    /// Adds those of other tests.
    pub fn add(&mut self, other: Counts) {
        self.n_passed += other.n_passed;
        self.n_failed += other.n_failed;
        for (reason, n) in other.not_run {
            self.add_not_run(&reason, n);
        }
        self.seconds.extend(other.seconds);
    }

    /// A line for each reason why something did not run.
    pub fn print_reasons(&self) {
        for (reason, n) in &self.not_run {
            println!("not run: {n}: {reason}");
        }
    }
}

/// Runs the tests, prints the counts.
pub fn test(workspace: &Workspace, options: &Test) -> Result<bool> {
    let counts = match options.bindings {
        true => {
            let seed = options.seed.unwrap_or_else(any_seed);
            eprintln!(
                "seed {seed}: `cargo xtask test --bindings --seed {seed}` takes the same problems"
            );
            bindings::count(workspace, seed)?
        }
        false => count(workspace, options)?,
    };
    counts.print_reasons();
    println!(
        "{} passed, {} failed, {} not run",
        counts.n_passed,
        counts.n_failed,
        counts.n_not_run()
    );
    Ok(counts.n_failed == 0)
}

/// Runs the tests, part by part.
fn count(workspace: &Workspace, options: &Test) -> Result<Counts> {
    let seed = options.seed.unwrap_or_else(any_seed);
    let of_seed = format!("seed {seed}: `cargo xtask test --seed {seed}` takes the same cases");
    eprintln!("{of_seed}");
    let mut counts = Counts::default();
    for part in parts::parts(workspace)? {
        counts.add(count_part(workspace, options, seed, &part)?);
    }
    println!("{of_seed}");
    Ok(counts)
}

/// Runs the tests of a part; the PTX is there. A part that passes is known to `--changed` afterwards.
pub fn count_part(workspace: &Workspace, options: &Test, seed: u64, part: &Part) -> Result<Counts> {
    let code = match part.length {
        // Sources that git knows nothing of are tested each time.
        Length::Short => seen::digest_of_all_code(&workspace.root, part.tests_examples()).ok(),
        Length::Long => Some(seen::digest_of_code(&workspace.root)?),
    };
    let was_green = |code: &String| seen::was_green(&workspace.target, &part.name, code);
    if options.changed && code.as_ref().is_some_and(was_green) {
        let mut counts = Counts::default();
        let reason = format!("{}: its code has not changed since it passed", part.name);
        counts.add_not_run(&reason, 1);
        return Ok(counts);
    }
    let counts = run(cargo(workspace, options, seed, part))?;
    if let Some(code) = code.filter(|_| counts.n_failed == 0 && options.runs_suites()) {
        seen::keep_green(&workspace.target, &part.name, &code)?;
    }
    Ok(counts)
}

fn cargo(workspace: &Workspace, options: &Test, seed: u64, part: &Part) -> Command {
    let mut command = Command::new(workspace.cargo());
    command
        .envs(options.environment(seed))
        .current_dir(&workspace.root)
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(["--features", &part.features])
        .args(&part.targets);
    if options.quick {
        command.args(["--", "--skip", "::full", "--skip", "::random"]);
    }
    command
}

/// Runs a command of cargo that tests, shows what it says, and counts.
pub fn run(command: Command) -> Result<Counts> {
    let mut tally = Tally::default();
    let success = stream(command, |line| tally.read(line))?;
    Ok(tally.finish(success))
}

/// Runs a command, shows each line that it says, and hands it over; whether the command succeeded.
pub fn stream(mut command: Command, mut read: impl FnMut(&str)) -> Result<bool> {
    // Both streams through one pipe, so that lines keep their order.
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    drop(command);
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        read(&line);
    }
    Ok(child.wait()?.success())
}

/// Reads what cargo and the test harness say.
#[derive(Debug, Default)]
struct Tally {
    counts: Counts,
    /// The beginning of a line of the harness, which a test interrupted.
    begun: String,
    /// Tests that said that they could not do their work; the harness counts them as passed.
    n_idle: usize,
    /// Programs that began to test.
    n_begun: usize,
    /// Programs that gave a result.
    n_ended: usize,
}

impl Tally {
    fn read(&mut self, line: &str) {
        let mut parts = line.split(NOT_RUN);
        self.begun.push_str(parts.next().unwrap_or_default());
        let n_idle = self.n_idle;
        for reason in parts {
            self.counts.add_not_run(reason, 1);
            self.n_idle += 1;
        }
        // What a test says ends with the line; the harness's own goes on with the next one.
        if self.n_idle == n_idle {
            let line = std::mem::take(&mut self.begun);
            if let Some((set, seconds)) = times::of_set(&line) {
                self.counts.seconds.insert(set.to_owned(), seconds);
            }
            self.read_harness(&line);
        }
    }

    fn read_harness(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["running", number, "test" | "tests"] if number.parse::<usize>().is_ok() => {
                self.n_begun += 1
            }
            ["test", "result:", ..] => {
                self.n_ended += 1;
                self.counts.n_passed += number_before(&words, "passed;");
                self.counts.n_failed += number_before(&words, "failed;");
                self.counts
                    .add_not_run("left out by --quick", number_before(&words, "filtered"));
            }
            ["test", .., "ignored"] => self.counts.add_not_run("marked #[ignore]", 1),
            ["test", rest @ ..] if rest.contains(&"ignored,") => {
                let reason = line
                    .split_once("ignored, ")
                    .map_or("marked #[ignore]", |(_, reason)| reason);
                self.counts.add_not_run(reason, 1);
            }
            _ => {}
        }
    }

    /// A program that ends without a result has failed; so has a build that ran no program at all.
    fn finish(mut self, success: bool) -> Counts {
        let line = std::mem::take(&mut self.begun);
        self.read_harness(&line);
        self.counts.n_passed = self.counts.n_passed.saturating_sub(self.n_idle);
        self.counts.n_failed += self.n_begun - self.n_ended.min(self.n_begun);
        if !success && self.counts.n_failed == 0 {
            self.counts.n_failed = 1;
        }
        self.counts
    }
}

fn number_before(words: &[&str], word: &str) -> usize {
    let at = words.iter().position(|other| *other == word);
    at.and_then(|at| words[at.checked_sub(1)?].parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str, success: bool) -> Counts {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.read(line));
        tally.finish(success)
    }

    #[test]
    fn the_tests_are_told_which_cases_to_run() {
        let sampled = Test::default();
        let seeds = ["SEED", "PROPTEST_RNG_SEED"].map(|name| (name, "7".to_owned()));
        assert_eq!(sampled.environment(7), seeds);
        let full = Test {
            full: true,
            ..sampled
        };
        let told = [[("CASES", "all".to_owned())].as_slice(), &seeds].concat();
        assert_eq!(full.environment(7), told);
    }

    const RESULT: &str = "test result: ok. 3 passed; 1 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s";

    #[test]
    fn a_test_that_could_not_do_its_work_is_not_counted_as_passed() {
        let text = format!("running 5 tests\n[not run] cuda: no driver\ncannot run: a\n{RESULT}");
        let counts = counts(&text, true);
        assert_eq!(
            (counts.n_passed, counts.n_failed, counts.n_not_run()),
            (2, 1, 3)
        );
        assert_eq!(counts.not_run["cuda: no driver"], 1);
        assert_eq!(counts.not_run["left out by --quick"], 2);
    }

    /// The harness writes a line in pieces, and what tests say comes between any two of them.
    #[test]
    fn what_is_said_within_a_line_of_the_harness_is_counted() {
        let said = "[not run] cuda: no driver\n";
        let harness = [
            "running 5",
            " tests\n",
            "test a ... ",
            "ok",
            "\n",
            "test b ... ",
            "ignored, no GPU",
            "\n",
            "test result: ",
            "ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "; finished in 0.1s\n",
        ];
        for first in 0..=harness.len() {
            for second in first..=harness.len() {
                let (before, rest) = harness.split_at(first);
                let (between, after) = rest.split_at(second - first);
                let text = [before.concat(), between.concat(), after.concat()].join(said);
                let counts = counts(&text, true);
                let numbers = (counts.n_passed, counts.n_failed, counts.n_not_run());
                assert_eq!(numbers, (1, 0, 3), "{text}");
                assert_eq!(counts.not_run["cuda: no driver"], 2, "{text}");
                assert_eq!(counts.not_run["no GPU"], 1, "{text}");
            }
        }
    }

    #[test]
    fn two_who_say_it_at_once_count_twice() {
        let text = format!("test a ... ok[not run] cuda: a[not run] cuda: b\n\n{RESULT}");
        let counts = counts(&text, true);
        assert_eq!((counts.n_passed, counts.n_not_run()), (1, 4));
        assert_eq!(
            (counts.not_run["cuda: a"], counts.not_run["cuda: b"]),
            (1, 1)
        );
    }

    #[test]
    fn ignored_tests_carry_their_reason() {
        let counts = counts(
            "test a ... ignored\ntest b ... ignored, needs a GPU\ntest c ... ok",
            true,
        );
        assert_eq!(counts.not_run["marked #[ignore]"], 1);
        assert_eq!(counts.not_run["needs a GPU"], 1);
    }

    #[test]
    fn a_program_that_dies_has_failed() {
        assert_eq!(counts("running 5 tests\ntest a ... ok", false).n_failed, 1);
        assert_eq!(counts("error: could not compile", false).n_failed, 1);
        assert_eq!(counts("", true).n_failed, 0);
    }
}
