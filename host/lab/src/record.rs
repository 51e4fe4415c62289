//! Measurements as `ferroflash bench --json` and the peers' script print them: runs, each a header with a date, and rows behind it.

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Who was measured.
    pub peer: String,
    /// `fwd` or `bwd`.
    pub pass: String,
    /// Type of the elements; empty where the row has none.
    pub dtype: String,
    /// Columns of a head.
    pub head_dim: u64,
    /// Whether under a causal mask.
    pub causal: bool,
    /// Rows of a sequence.
    pub seqlen: u64,
    /// Rows of its keys.
    pub seqlen_k: u64,
    /// Sequences.
    pub batch: u64,
    /// Heads of q, and of k and v.
    pub heads: (u64, u64),
    /// Milliseconds.
    pub ms: f64,
    /// TFLOP/s.
    pub tflops: f64,
    /// GB/s, where the row has them.
    pub gbps: Option<f64>,
}

impl Run {
    fn new(header: &Map<String, Value>) -> Run {
        let gpu = text(header, "gpu").unwrap_or_default();
        Run {
            date: text(header, "date").unwrap_or_default(),
            commit: text(header, "commit").unwrap_or_default(),
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

fn text(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.get(name).and_then(Value::as_str).map(str::to_owned)
}

impl Row {
    /// `None` of an object that is no measured case, as one that could not run.
    pub fn new(row: &Map<String, Value>) -> Option<Row> {
        let number = |name: &str| row.get(name).and_then(Value::as_f64);
        let count = |name: &str| row.get(name).and_then(Value::as_u64);
        let seqlen = count("S")?;
        let heads = count("H").unwrap_or(1);
        Some(Row {
            peer: text(row, "peer")?,
            pass: text(row, "p")?,
            dtype: text(row, "dtype").unwrap_or_default(),
            head_dim: count("D")?,
            causal: count("causal")? == 1,
            seqlen,
            seqlen_k: count("Sk").unwrap_or(seqlen),
            batch: count("B").unwrap_or(1),
            heads: (heads, count("Hk").unwrap_or(heads)),
            ms: number("ms")?,
            tflops: number("tflops")?,
            gbps: number("gbps"),
        })
    }
}

/// The runs of a text of JSON lines. Rows before the first header are a run of no date. Lines that are neither are left out.
pub fn runs(text: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for line in text.lines() {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else {
            continue;
        };
        if object.contains_key("date") {
            runs.push(Run::new(&object));
        } else if let Some(row) = Row::new(&object) {
            if runs.is_empty() {
                runs.push(Run::default());
            }
            if let Some(run) = runs.last_mut() {
                run.rows.push(row);
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_belong_to_the_header_above_them() {
        let row = |ms: f64| {
            format!(
                r#"{{"peer":"fa3","p":"fwd","D":64,"causal":1,"S":512,"Hk":2,"H":8,"ms":{ms},"tflops":1.5}}"#
            )
        };
        let header = r#"{"date":"2026-01-02T03:04:00Z","gpu":"NVIDIA H200, 580.1"}"#;
        let refused = r#"{"peer":"fa3","p":"fwd","D":64,"causal":1,"S":512,"err":"no kernel"}"#;
        let text = [&*row(1.0), "words", header, refused, &*row(2.0)].join("\n");
        let runs = runs(&text);
        assert_eq!(runs.len(), 2);
        assert_eq!((runs[0].rows[0].ms, runs[0].day()), (1.0, ""));
        assert_eq!(
            (runs[1].gpu.as_str(), runs[1].day()),
            ("NVIDIA H200", "2026-01-02")
        );
        let row = &runs[1].rows[0];
        assert_eq!((row.seqlen_k, row.batch, row.heads), (512, 1, (8, 2)));
        assert_eq!((runs[1].rows.len(), row.ms, row.gbps), (1, 2.0, None));
    }
}
