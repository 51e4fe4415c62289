//! Measured schedules compared with their predictions: as a table, CSV, JSON and a picture.

mod plot;

use ferroflash::{Algorithm, Pass, Problem};
use serde_json::{Value, json};

use crate::estimate::{Estimate, Gpu};
use crate::words::pass_word;

pub use plot::svg;

/// A schedule of a problem.
#[derive(Clone, Debug)]
pub struct Line {
    /// The problem.
    pub problem: Problem,
    /// The pass.
    pub pass: Pass,
    /// The schedule; `None` if planning chose it.
    pub algorithm: Option<Algorithm>,
    /// The measurement, or why there is none.
    pub measured: Result<Figures, String>,
    /// The prediction; `None` if the model does not cover the GPU, the schedule or the problem.
    pub predicted: Option<Estimate>,
    /// Bytes through memory as `ncu` counts them, if asked for and the row was measured.
    pub counted_bytes: Option<f64>,
}

/// The measurement of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Milliseconds.
    pub ms: f64,
    /// TFLOP/s, with FLOPs as papers count them.
    pub tflops: f64,
    /// Bytes in addition to inputs and outputs.
    pub extra_bytes: u64,
}

/// Heads of the table's columns.
pub const HEADER: &str = "pass   mask    D      S    B    H schedule          ms  TFLOP/s     HBM MB     by ncu   extra MB predicted ms  ratio  bound by";

/// All lines as CSV, under a line of names.
pub fn csv(lines: &[Line]) -> String {
    let mut text = "pass,mask,dtype,head_dim,seqlen_q,seqlen_k,batch,heads_q,heads_k,schedule,ms,tflops,hbm_bytes,ncu_bytes,extra_bytes,predicted_ms,bound_by,error\n".to_owned();
    for line in lines {
        text.push_str(&line.csv());
        text.push('\n');
    }
    text
}

/// The part about this candidate in a refusal that lists every candidate; the whole refusal if it lists none.
pub fn own_reason<'a>(error: &'a str, name: &str) -> &'a str {
    let mut words = error
        .split("  ")
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let _own = words.find(|part| *part == name);
    words.next().unwrap_or(error)
}

impl Line {
    /// The measurement, with the prediction for a GPU.
    pub fn new(
        problem: Problem,
        pass: Pass,
        algorithm: Option<Algorithm>,
        measured: Result<Figures, String>,
        gpu: Option<&Gpu>,
    ) -> Line {
        let of = |gpu| Estimate::of(&problem, gpu, pass, algorithm?);
        Line {
            problem,
            pass,
            algorithm,
            measured,
            predicted: gpu.and_then(of),
            counted_bytes: None,
        }
    }

    /// The schedule's name.
    fn name(&self) -> &'static str {
        self.algorithm.map_or("auto", Algorithm::name)
    }

    /// The ratio of measured to predicted time.
    fn ratio(&self) -> Option<f64> {
        let measured = self.measured.as_ref().ok()?;
        Some(measured.ms / 1e3 / self.predicted.as_ref()?.seconds)
    }

    /// A row of the table.
    pub fn text(&self) -> String {
        let p = &self.problem;
        let sizes = format!(
            "{:<4} {:>6} {:>4} {:>6} {:>4} {:>4} {:<9}",
            pass_word(self.pass),
            p.mask().to_string(),
            p.head_dim(),
            p.seqlen_q(),
            p.batch(),
            p.heads_q(),
            self.name()
        );
        let number = |value: Option<f64>, decimals: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        let (measured, error) = match &self.measured {
            Ok(figures) => (Some(figures), String::new()),
            Err(error) => (None, format!("  {}", own_reason(error, self.name()))),
        };
        let predicted = self.predicted.as_ref();
        format!(
            "{sizes} {:>10} {:>8} {:>10} {:>10} {:>10} {:>12} {:>6}  {}{error}",
            number(measured.map(|figures| figures.ms), 5),
            number(measured.map(|figures| figures.tflops), 1),
            number(predicted.map(|one| one.hbm_bytes() as f64 / 1e6), 1),
            number(self.counted_bytes.map(|bytes| bytes / 1e6), 1),
            number(measured.map(|figures| figures.extra_bytes as f64 / 1e6), 1),
            number(predicted.map(|one| one.seconds * 1e3), 5),
            number(self.ratio(), 2),
            predicted.map_or("-", |one| one.roof.name()),
        )
    }

    /// The measured fields, then the predicted ones.
    pub fn json(&self, mut fields: Value) -> Value {
        if let Some(bytes) = self.counted_bytes {
            fields["ncu_bytes"] = json!(bytes);
        }
        if let Some(one) = &self.predicted {
            fields["hbm_bytes"] = json!(one.hbm_bytes());
            fields["predicted_ms"] = json!(one.seconds * 1e3);
            fields["predicted_extra_bytes"] = json!(one.extra_bytes);
            fields["bound_by"] = json!(one.roof.name());
        }
        fields
    }

    fn csv(&self) -> String {
        let p = &self.problem;
        let some = |value: Option<String>| value.unwrap_or_default();
        let measured = self.measured.as_ref().ok();
        let predicted = self.predicted.as_ref();
        let error = self.measured.as_ref().err();
        [
            pass_word(self.pass).to_owned(),
            p.mask().to_string(),
            p.dtype().to_string(),
            p.head_dim().to_string(),
            p.seqlen_q().to_string(),
            p.seqlen_k().to_string(),
            p.batch().to_string(),
            p.heads_q().to_string(),
            p.heads_k().to_string(),
            self.name().to_owned(),
            some(measured.map(|figures| figures.ms.to_string())),
            some(measured.map(|figures| figures.tflops.to_string())),
            some(predicted.map(|one| one.hbm_bytes().to_string())),
            some(self.counted_bytes.map(|bytes| bytes.to_string())),
            some(measured.map(|figures| figures.extra_bytes.to_string())),
            some(predicted.map(|one| (one.seconds * 1e3).to_string())),
            some(predicted.map(|one| one.roof.name().to_owned())),
            some(error.map(|error| format!("\"{}\"", error.replace('"', "\"\"")))),
        ]
        .join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shortened_to_its_own_line() {
        let error = "cpu cannot serve this:   flash3    cannot run: a   standard  cannot run: b   tiled     could run";
        assert_eq!(own_reason(error, "standard"), "cannot run: b");
        assert_eq!(own_reason("no memory", "standard"), "no memory");
    }
}
