//! `bench --against`: a run beside a stored one, by ratios to what ran in the same minutes.
//!
//! A GPU is faster one day than another, and two of one name differ: times of two runs are not compared. Each row's time is divided by that of a baseline
//! of its own run and case, and these ratios are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Map, Value};

/// A ratio that has moved by more than this is printed.
const MOVED: f64 = 0.03;

/// What begins the name of a row of ours.
const OURS: &str = "ferroflash-";

/// The baselines, the most wanted first. Behind them any peer, by its name; then flash2, for what is not flash2.
const PREFERRED: [&str; 2] = ["cudnn", "fa2"];

/// Our baseline where no peer ran.
const FLASH2: &str = "ferroflash-flash2";

/// Fields of a row that say how fast it was, or who it was, and not of which case.
const MEASURED: [&str; 9] = [
    "peer",
    "ms",
    "tflops",
    "gbps",
    "host_us",
    "extra_bytes",
    "err",
    "backend",
    "views",
];

/// The times of one case in one run, by who was measured.
type Times = BTreeMap<String, f64>;

/// A run: its cases.
type Run = BTreeMap<String, Times>;

/// The runs of a record, in its order. A line with a date begins one; what is no row of a measurement is left out.
fn runs(text: &str) -> Vec<Run> {
    let mut runs = vec![Run::default()];
    for line in text.lines() {
        let Ok(Value::Object(row)) = serde_json::from_str(line) else {
            continue;
        };
        if row.contains_key("date") {
            runs.push(Run::default());
            continue;
        }
        let of_row = row.get("peer").and_then(Value::as_str);
        let (Some(peer), Some(ms), Some(run)) = (
            of_row,
            row.get("ms").and_then(Value::as_f64),
            runs.last_mut(),
        ) else {
            continue;
        };
        let times = run.entry(case_of(&row)).or_default();
        times.insert(peer.to_owned(), ms);
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// The case of a row, in words. What a row leaves out where it is the usual is left out of all: so rows of different years, and of the peers' script, speak
/// of the same cases.
fn case_of(row: &Map<String, Value>) -> String {
    let usual = |name: &str, value: &Value| match name {
        "Sk" => Some(value) == row.get("S"),
        "Hk" => Some(value) == row.get("H"),
        "Dv" => Some(value) == row.get("D"),
        _ => match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        },
    };
    let mut words = Vec::new();
    for (name, value) in row {
        if MEASURED.contains(&name.as_str()) || usual(name, value) {
            continue;
        }
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        words.push(format!("{name} {text}"));
    }
    words.sort();
    words.join(", ")
}

/// What a case is measured by, in both runs: for this subject, the one that is wanted most.
fn baseline<'a>(subject: &str, old: &'a Times, new: &Times) -> Option<&'a str> {
    let both = |name: &&String| new.contains_key(*name) && name.as_str() != subject;
    let names: Vec<&str> = old.keys().filter(both).map(String::as_str).collect();
    let mut preferred = PREFERRED.into_iter().filter_map(|wanted| {
        let mut names = names.iter();
        names.find(|name| **name == wanted).copied()
    });
    let mut others = names.iter().copied().filter(|name| !name.starts_with(OURS));
    let ours = names.iter().copied().find(|name| *name == FLASH2);
    preferred.next().or_else(|| others.next()).or(ours)
}

/// A row of ours in both runs.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    case: String,
    subject: String,
    baseline: String,
    /// How many times as fast as the baseline it was, and is.
    ratios: [f64; 2],
}

impl Change {
    /// By how much: 0.1 is 10 % faster beside the baseline.
    fn by(&self) -> f64 {
        self.ratios[1] / self.ratios[0] - 1.0
    }
}

/// What a comparison says.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    changes: Vec<Change>,
    /// Rows of ours of the new run without a counterpart, or without a baseline in both.
    n_alone: usize,
}

impl Comparison {
    /// A new run, the last of its text, with the last runs of a record that have its cases.
    pub fn new(record: &str, measured: &str) -> Comparison {
        let (old, new) = (runs(record), runs(measured));
        let mut comparison = Comparison::default();
        for (case, times) in new.last().into_iter().flatten() {
            let of_case = || old.iter().rev().filter_map(|run| run.get(case));
            for (subject, &ms) in times.iter().filter(|(name, _)| name.starts_with(OURS)) {
                let before = of_case().find_map(|before| {
                    let was = *before.get(subject)?;
                    let baseline = baseline(subject, before, times)?;
                    Some((was, before[baseline], baseline))
                });
                let Some((was, baseline_was, baseline)) = before else {
                    comparison.n_alone += 1;
                    continue;
                };
                comparison.changes.push(Change {
                    case: case.clone(),
                    subject: subject.clone(),
                    baseline: baseline.to_owned(),
                    ratios: [baseline_was / was, times[baseline] / ms],
                });
            }
        }
        comparison
    }

    /// Whether something is slower than it was.
    pub fn is_slower(&self) -> bool {
        self.changes.iter().any(|change| change.by() < -MOVED)
    }

    /// Whether no row of ours has a counterpart and a baseline: then nothing is known of what is slower.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// What has moved, the slowest first, and how much in all.
    pub fn report(&self) -> String {
        let mut moved: Vec<&Change> = self.changes.iter().collect();
        moved.retain(|change| change.by().abs() > MOVED);
        moved.sort_by(|a, b| a.by().total_cmp(&b.by()));
        let mut text = String::new();
        for change in &moved {
            let [was, is] = change.ratios;
            let percent = 100.0 * change.by();
            writeln!(
                text,
                "{percent:+.1} %  {} by {}: {was:.3} → {is:.3}  ({})",
                change.subject, change.baseline, change.case
            )
            .expect("a string takes all text");
        }
        let n = self.changes.len();
        let mean = self.changes.iter().map(|change| (1.0 + change.by()).ln());
        let mean = 100.0 * ((mean.sum::<f64>() / n.max(1) as f64).exp() - 1.0);
        let baselines: BTreeSet<&str> = self
            .changes
            .iter()
            .map(|change| change.baseline.as_str())
            .collect();
        let baselines: Vec<&str> = baselines.into_iter().collect();
        writeln!(
            text,
            "{n} rows compared by {}: {} moved by more than {:.0} %, {mean:+.1} % in the geometric mean; {} have no counterpart",
            if baselines.is_empty() { "nothing".to_owned() } else { baselines.join(", ") },
            moved.len(),
            100.0 * MOVED,
            self.n_alone
        )
        .expect("a string takes all text");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of one case of ours and its peers, as the bench prints it.
    fn run(rows: &[(&str, f64)]) -> String {
        let mut text = "{\"date\": \"2026-01-01\", \"command\": \"bench\"}\n".to_owned();
        for (peer, ms) in rows {
            let row = serde_json::json!({
                "peer": peer, "dtype": "bf16", "D": 64, "causal": 0, "S": 512, "B": 2, "H": 4, "p": "fwd", "ms": ms,
            });
            text += &format!("{row}\n");
        }
        text
    }

    #[test]
    fn a_slower_gpu_moves_nothing() {
        let old = run(&[("ferroflash-flash3", 1.0), ("cudnn", 1.1)]);
        let new = run(&[("ferroflash-flash3", 2.0), ("cudnn", 2.2)]);
        let comparison = Comparison::new(&old, &new);
        assert!(!comparison.is_slower());
        assert_eq!(
            comparison.report(),
            "1 rows compared by cudnn: 0 moved by more than 3 %, +0.0 % in the geometric mean; 0 have no counterpart\n"
        );
    }

    #[test]
    fn what_moves_beside_its_peer_is_said() {
        let old = run(&[("ferroflash-flash3", 1.0), ("cudnn", 1.0), ("fa4", 1.0)]);
        let new = run(&[("ferroflash-flash3", 1.25), ("cudnn", 1.0), ("fa4", 1.0)]);
        let comparison = Comparison::new(&old, &new);
        assert!(comparison.is_slower());
        let report = comparison.report();
        assert!(
            report.starts_with("-20.0 %  ferroflash-flash3 by cudnn: 1.000 → 0.800  ("),
            "{report}"
        );
        let faster = Comparison::new(&new, &old);
        assert!(!faster.is_slower() && faster.report().starts_with("+25.0 %"));
    }

    #[test]
    fn flash2_stands_in_for_a_peer() {
        let old = run(&[("ferroflash-flash3", 1.0), ("ferroflash-flash2", 2.0)]);
        let new = run(&[("ferroflash-flash3", 1.1), ("ferroflash-flash2", 2.0)]);
        let comparison = Comparison::new(&old, &new);
        assert!(comparison.is_slower());
        assert_eq!(comparison.changes.len(), 1);
        assert_eq!(comparison.changes[0].baseline, FLASH2);
        // flash2 itself has nothing to be measured by.
        assert_eq!(comparison.n_alone, 1);
    }

    #[test]
    fn what_has_no_counterpart_is_not_compared() {
        let old = run(&[("ferroflash-flash3", 1.0), ("cudnn", 1.0)]);
        let [other, no_baseline, nothing] = [
            old.replace("\"S\":512", "\"S\":1024"),
            run(&[("ferroflash-flash3", 1.0)]),
            String::new(),
        ];
        assert_ne!(other, old);
        for new in [&other, &no_baseline, &nothing] {
            assert!(Comparison::new(&old, new).is_empty(), "{new}");
            assert!(Comparison::new(new, &old).is_empty(), "{new}");
        }
        assert!(!Comparison::new(&old, &old).is_empty());
    }

    #[test]
    fn the_last_run_of_a_case_counts() {
        let old = [
            run(&[("ferroflash-flash3", 9.0), ("cudnn", 1.0)]),
            run(&[("ferroflash-flash3", 1.0), ("cudnn", 1.0)]),
            run(&[("ferroflash-flash3", 5.0)]),
        ];
        let new = run(&[("ferroflash-flash3", 1.0), ("cudnn", 1.0)]);
        let comparison = Comparison::new(&old.concat(), &new);
        assert_eq!(comparison.changes[0].ratios, [1.0, 1.0]);
    }

    #[test]
    fn rows_of_the_script_and_of_the_command_are_of_one_case() {
        let of = |text: &str| {
            case_of(
                serde_json::from_str::<Value>(text)
                    .unwrap()
                    .as_object()
                    .unwrap(),
            )
        };
        let script = of(
            r#"{"peer": "fa4", "D": 64, "Dv": 64, "S": 8, "H": 4, "Hk": 4, "window": null, "lengths": [], "score": "", "ms": 1}"#,
        );
        let command = of(
            r#"{"peer": "ferroflash-flash3", "D": 64, "S": 8, "Sk": 8, "H": 4, "backend": "cuda", "gbps": 3, "ms": 2}"#,
        );
        assert_eq!(script, command);
        assert_ne!(
            command,
            of(r#"{"peer": "fa4", "D": 64, "S": 8, "H": 4, "Hk": 2, "ms": 1}"#)
        );
    }

    /// The records that are kept can be read: a run beside itself moves nothing.
    #[test]
    fn records_compare_with_themselves() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/benches/record");
        let mut n_compared = 0;
        for entry in std::fs::read_dir(folder).expect("there are records") {
            let text = std::fs::read_to_string(entry.expect("a file").path()).expect("a record");
            for run in text
                .split_inclusive('\n')
                .fold(Vec::<String>::new(), |mut runs, line| {
                    if line.contains("\"date\"") || runs.is_empty() {
                        runs.push(String::new());
                    }
                    if let Some(run) = runs.last_mut() {
                        run.push_str(line);
                    }
                    runs
                })
            {
                let comparison = Comparison::new(&run, &run);
                assert!(comparison.changes.iter().all(|change| change.by() == 0.0));
                n_compared += comparison.changes.len();
            }
        }
        assert!(n_compared > 500, "{n_compared} rows");
    }
}
