//! The runs under `tests/benches/record`: a header with a date, and rows after it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// When it was, to the minute.
    pub date: String,
    /// Of which commit.
    pub commit: String,
    /// On which GPU, without its driver.
    pub gpu: String,
    /// The rows of a pass.
    pub rows: Vec<Row>,
}

/// A measured case.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Who was measured.
    pub peer: String,
    /// `fwd` or `bwd`.
    pub pass: String,
    /// Columns of a head.
    pub head_dim: u64,
    /// Whether under a causal mask.
    pub causal: bool,
    /// Rows of a sequence.
    pub seqlen: u64,
    /// Milliseconds.
    pub ms: f64,
    /// TFLOP/s.
    pub tflops: f64,
}

impl Run {
    fn new(header: &Map<String, Value>) -> Run {
        let text = |name: &str| {
            let text = header.get(name).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let gpu = text("gpu");
        Run {
            date: text("date"),
            commit: text("commit"),
            gpu: gpu.split(',').next().unwrap_or_default().to_owned(),
            rows: Vec::new(),
        }
    }

    /// The day.
    pub fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }

    /// The rows of a pass, a head_dim and a mask.
    pub fn of(&self, pass: &str, head_dim: u64, causal: bool) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(move |row| row.pass == pass && row.head_dim == head_dim && row.causal == causal)
    }

    /// Times of one who was measured, by length, ascending.
    pub fn times(&self, peer: &str, (pass, head_dim, causal): Case) -> Vec<(u64, &Row)> {
        let rows = self.of(pass, head_dim, causal);
        let mut times: Vec<(u64, &Row)> = rows
            .filter(|row| row.peer == peer)
            .map(|row| (row.seqlen, row))
            .collect();
        times.sort_by_key(|&(seqlen, _)| seqlen);
        times
    }
}

/// Pass, head_dim, and whether under a causal mask.
pub type Case<'a> = (&'a str, u64, bool);

impl Row {
    fn new(row: &Map<String, Value>) -> Option<Row> {
        let text = |name: &str| row.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| row.get(name).and_then(Value::as_f64);
        Some(Row {
            peer: text("peer")?,
            pass: text("p")?,
            head_dim: row.get("D")?.as_u64()?,
            causal: row.get("causal")?.as_u64()? == 1,
            seqlen: row.get("S")?.as_u64()?,
            ms: number("ms")?,
            tflops: number("tflops")?,
        })
    }
}

/// Every run, in the record's order.
pub fn read(root: &Path) -> Result<Vec<Run>> {
    let folder = root.join("tests/benches/record");
    let entries = fs::read_dir(&folder).context("the record cannot be read")?;
    let mut files: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut runs: Vec<Run> = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        for line in text.lines() {
            let Ok(Value::Object(object)) = serde_json::from_str(line) else {
                continue;
            };
            if object.contains_key("date") {
                runs.push(Run::new(&object));
            } else if let (Some(run), Some(row)) = (runs.last_mut(), Row::new(&object)) {
                run.rows.push(row);
            }
        }
    }
    Ok(runs)
}

/// The run of this minute that has the pass, of all these lengths.
pub fn find<'a>(runs: &'a [Run], date: &str, pass: &str, seqlens: &[u64]) -> Result<&'a Run> {
    let has = |run: &Run, seqlen: u64| {
        let mut rows = run.rows.iter();
        rows.any(|row| row.pass == pass && row.seqlen == seqlen)
    };
    let mut found = runs
        .iter()
        .filter(|run| run.date == date)
        .filter(|run| seqlens.iter().all(|&seqlen| has(run, seqlen)));
    found
        .next()
        .with_context(|| format!("the record has no such run of {date}: {pass}, {seqlens:?}"))
}
