//! What took how long, in this run of the checks and in the one before.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The file under the target folder that has the seconds of the last run.
const FILE: &str = "ci/seconds.txt";

/// So many of the slowest sets are shown.
const N_SETS: usize = 10;

/// Seconds of the steps of a run, in their order, and of the sets of cases in the tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Of each step.
    pub steps: Vec<(String, f64)>,
    /// Of each set of cases.
    pub sets: BTreeMap<String, f64>,
    /// Of the whole run, in which some steps go beside others.
    pub all: f64,
}

impl Times {
    /// Those of the run before; empty where there was none.
    pub fn before(target: &Path) -> Times {
        let text = fs::read_to_string(target.join(FILE)).unwrap_or_default();
        Times::parse(&text)
    }

    /// Keeps them for the next run.
    pub fn keep(&self, target: &Path) -> Result<()> {
        let path = target.join(FILE);
        let folder = path.parent().context("a file lies in a folder")?;
        fs::create_dir_all(folder)?;
        fs::write(&path, self.text()).with_context(|| format!("cannot write {}", path.display()))
    }

    fn text(&self) -> String {
        let mut text = format!("all\t{:.1}\tsteps\n", self.all);
        for (name, seconds) in &self.steps {
            let _ = writeln!(text, "step\t{seconds:.1}\t{name}");
        }
        for (name, seconds) in &self.sets {
            let _ = writeln!(text, "set\t{seconds:.1}\t{name}");
        }
        text
    }

    fn parse(text: &str) -> Times {
        let mut times = Times::default();
        for line in text.lines() {
            let columns: Vec<&str> = line.splitn(3, '\t').collect();
            let [what, seconds, name] = columns[..] else {
                continue;
            };
            let Ok(seconds) = seconds.parse() else {
                continue;
            };
            match what {
                "all" => times.all = seconds,
                "step" => times.steps.push((name.to_owned(), seconds)),
                "set" => {
                    times.sets.insert(name.to_owned(), seconds);
                }
                _ => {}
            }
        }
        times
    }

    /// A row for each step, in order; then the slowest sets. Behind each the seconds of the run before.
    pub fn table(&self, before: &Times) -> String {
        let mut text = String::new();
        let of_step = |name: &str| {
            let mut steps = before.steps.iter();
            steps.find(|(other, _)| other == name).map(|step| step.1)
        };
        let _ = writeln!(text, "seconds, before  what");
        for (name, seconds) in &self.steps {
            row(&mut text, *seconds, of_step(name), name);
        }
        let all_before = (!before.steps.is_empty()).then_some(before.all);
        let name = "all of these, some beside others";
        row(&mut text, self.all, all_before, name);
        let mut sets: Vec<_> = self.sets.iter().collect();
        sets.sort_by(|a, b| b.1.total_cmp(a.1));
        if !sets.is_empty() {
            let _ = writeln!(text, "the slowest sets of cases");
        }
        for (name, seconds) in sets.into_iter().take(N_SETS) {
            row(&mut text, *seconds, before.sets.get(name).copied(), name);
        }
        text
    }
}

fn row(text: &mut String, seconds: f64, before: Option<f64>, name: &str) {
    let before = before.map_or("-".to_owned(), |before| format!("{before:.0}"));
    let _ = writeln!(text, "{seconds:7.0} {before:>7}  {name}");
}

/// The name and the seconds of a set, of a line of the tests that says them: `conformance: emulated::flash2::full: 5 of 96 cases: …; 3.2 s`.
pub fn of_set(line: &str) -> Option<(&str, f64)> {
    let (_, line) = line.split_once("conformance: ")?;
    let (name, rest) = line.split_once(": ")?;
    let (_, seconds) = rest.strip_suffix(" s")?.rsplit_once("; ")?;
    Some((name, seconds.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(steps: &[(&str, f64)], sets: &[(&str, f64)]) -> Times {
        let owned = |&(name, seconds): &(&str, f64)| (name.to_owned(), seconds);
        Times {
            steps: steps.iter().map(owned).collect(),
            sets: sets.iter().map(owned).collect(),
            all: steps.iter().map(|step| step.1).sum(),
        }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let kept = times(&[("fmt", 1.5), ("a: clippy", 20.0)], &[("x::y", 7.0)]);
        assert_eq!(Times::parse(&kept.text()), kept);
        assert_eq!(Times::parse("nothing\nstep\tx\ty\n"), Times::default());
    }

    #[test]
    fn the_table_has_the_run_before() {
        let now = times(
            &[("fmt", 2.0), ("new", 3.0)],
            &[("quick", 1.0), ("slow", 9.0)],
        );
        let before = times(&[("fmt", 1.0), ("gone", 7.0)], &[("slow", 8.0)]);
        let table = now.table(&before);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows[1], ["2", "1", "fmt"]);
        assert_eq!(rows[2], ["3", "-", "new"]);
        let all = ["5", "8", "all", "of", "these,", "some", "beside", "others"];
        assert_eq!(rows[3], all);
        assert_eq!(rows[5], ["9", "8", "slow"]);
        assert_eq!(rows[6], ["1", "-", "quick"]);
        let first = now.table(&Times::default());
        assert!(first.contains("-  all of these"), "{first}");
    }

    #[test]
    fn sets_say_their_seconds() {
        let line = "test a ... conformance: emulated::flash2::full: 5 of 96 cases: 5 passed; at most 0.4; 3.2 s";
        assert_eq!(of_set(line), Some(("emulated::flash2::full", 3.2)));
        assert_eq!(
            of_set("conformance: the emulator runs a sample, SEED=1; CASES=all runs all"),
            None
        );
        assert_eq!(of_set("test result: ok. finished in 3.2s"), None);
    }
}
