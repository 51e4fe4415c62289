//! `--compare`: schedules that were measured, each beside what is predicted of it.

mod counted;
mod plot;

use ferroflash::estimate::{Estimate, Gpu, estimate};
use ferroflash::{Algorithm, Device, Pass, Problem};
use serde_json::{Value, json};

use super::row::Row;
use crate::arguments::BenchArguments;
use crate::failure::Failure;
use crate::output;
use crate::profile::Ncu;

/// A schedule of a problem.
pub struct Line {
    problem: Problem,
    pass: Pass,
    algorithm: Option<Algorithm>,
    /// Milliseconds, TFLOP/s, bytes beside inputs and outputs; or why there are none.
    measured: Result<(f64, f64, u64), String>,
    /// `None` where the GPU, the schedule or the problem is not one that is counted.
    predicted: Option<Estimate>,
    /// Bytes through memory as `ncu` counts them, where that is asked for and the row was measured.
    counted_bytes: Option<f64>,
}

/// All of them.
pub struct Beside {
    gpu: Option<Gpu>,
    device: Device,
    ncu: Option<Ncu>,
    lines: Vec<Line>,
}

impl Beside {
    /// `None` without `--compare`. A device that is none of the estimate's table has no predictions, and that is said.
    pub fn new(arguments: &BenchArguments, device: &Device) -> Result<Option<Beside>, Failure> {
        if arguments.compare.is_empty() {
            return Ok(None);
        }
        let gpu = match (&arguments.gpu, device.as_cuda()) {
            (Some(name), _) => Some(Gpu::named(name)?),
            (None, None) => None,
            (None, Some(_)) => match Gpu::of_device(device.info()) {
                Ok(gpu) => Some(gpu),
                Err(error) => {
                    eprintln!("no predictions: {error}");
                    None
                }
            },
        };
        let ncu = match (arguments.ncu, device.as_cuda()) {
            (false, _) => None,
            (true, Some(_)) => Some(Ncu::find()?),
            (true, None) => {
                let word = "--ncu counts what kernels of a GPU do; allowed: --backend cuda";
                return Err(Failure::Option(word.to_owned()));
            }
        };
        Ok(Some(Beside {
            gpu,
            device: device.clone(),
            ncu,
            lines: Vec::new(),
        }))
    }

    /// Heads of the columns.
    pub fn header() -> String {
        format!(
            "{:<4} {:>6} {:>4} {:>6} {:>4} {:>4} {:<9} {:>10} {:>8} {:>10} {:>10} {:>10} {:>12} {:>6}  bound by",
            "pass",
            "mask",
            "D",
            "S",
            "B",
            "H",
            "schedule",
            "ms",
            "TFLOP/s",
            "HBM MB",
            "by ncu",
            "extra MB",
            "predicted ms",
            "ratio"
        )
    }

    /// Keeps a row, and gives its text.
    pub fn add(&mut self, row: &Row, as_json: bool) -> Result<String, Failure> {
        let (problem, pass, algorithm) = row.subject();
        let predicted = self.gpu.as_ref().and_then(|gpu| {
            let all = estimate(&problem, gpu, pass).ok()?;
            all.into_iter().find(|one| Some(one.algorithm) == algorithm)
        });
        let counted_bytes = match &self.ncu {
            Some(ncu) if row.figures().is_ok() => {
                let bytes = counted::bytes(ncu, &self.device, &problem, pass, algorithm)?;
                Some(bytes)
            }
            _ => None,
        };
        let line = Line {
            problem,
            pass,
            algorithm,
            measured: row.figures().map_err(str::to_owned),
            predicted,
            counted_bytes,
        };
        let text = match as_json {
            true => line.json(row),
            false => line.text(),
        };
        self.lines.push(line);
        Ok(text)
    }

    /// Writes the files that are asked for.
    pub fn write(&self, arguments: &BenchArguments) -> Result<(), Failure> {
        if let Some(path) = &arguments.csv {
            output::replace(path, self.csv().as_bytes())?;
        }
        if let Some(path) = &arguments.svg {
            let svg = plot::svg(self.gpu.as_ref(), &self.lines);
            let svg = svg.map_err(|error| Failure::Picture(error.to_string()))?;
            output::replace(path, svg.as_bytes())?;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut text = "pass,mask,dtype,head_dim,seqlen_q,seqlen_k,batch,heads_q,heads_k,schedule,ms,tflops,hbm_bytes,ncu_bytes,extra_bytes,predicted_ms,bound_by,error\n".to_owned();
        for line in &self.lines {
            text.push_str(&line.csv());
            text.push('\n');
        }
        text
    }
}

/// What a refusal that lists every candidate says of this one; all of it where it lists none.
fn own_reason<'a>(error: &'a str, name: &str) -> &'a str {
    let mut words = error
        .split("  ")
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let _own = words.find(|part| *part == name);
    words.next().unwrap_or(error)
}

impl Line {
    /// The schedule's name.
    fn name(&self) -> &'static str {
        self.algorithm.map_or("auto", Algorithm::name)
    }

    fn pass_word(&self) -> &'static str {
        match self.pass {
            Pass::Backward => "bwd",
            _ => "fwd",
        }
    }

    /// Measured by predicted time.
    fn ratio(&self) -> Option<f64> {
        let (ms, ..) = self.measured.as_ref().ok()?;
        Some(ms / 1e3 / self.predicted.as_ref()?.seconds)
    }

    fn text(&self) -> String {
        let p = &self.problem;
        let sizes = format!(
            "{:<4} {:>6} {:>4} {:>6} {:>4} {:>4} {:<9}",
            self.pass_word(),
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
            number(measured.map(|figures| figures.0), 5),
            number(measured.map(|figures| figures.1), 1),
            number(predicted.map(|one| one.hbm_bytes() as f64 / 1e6), 1),
            number(self.counted_bytes.map(|bytes| bytes / 1e6), 1),
            number(measured.map(|figures| figures.2 as f64 / 1e6), 1),
            number(predicted.map(|one| one.seconds * 1e3), 5),
            number(self.ratio(), 2),
            predicted.map_or("-", |one| one.roof.name()),
        )
    }

    /// The row's own fields, and what is predicted.
    fn json(&self, row: &Row) -> String {
        let mut fields = serde_json::from_str(&row.json()).unwrap_or(Value::Null);
        if let Some(bytes) = self.counted_bytes {
            fields["ncu_bytes"] = json!(bytes);
        }
        if let Some(one) = &self.predicted {
            fields["hbm_bytes"] = json!(one.hbm_bytes());
            fields["predicted_ms"] = json!(one.seconds * 1e3);
            fields["predicted_extra_bytes"] = json!(one.extra_bytes);
            fields["bound_by"] = json!(one.roof.name());
        }
        fields.to_string()
    }

    fn csv(&self) -> String {
        let p = &self.problem;
        let some = |value: Option<String>| value.unwrap_or_default();
        let measured = self.measured.as_ref().ok();
        let predicted = self.predicted.as_ref();
        let error = self.measured.as_ref().err();
        [
            self.pass_word().to_owned(),
            p.mask().to_string(),
            p.dtype().to_string(),
            p.head_dim().to_string(),
            p.seqlen_q().to_string(),
            p.seqlen_k().to_string(),
            p.batch().to_string(),
            p.heads_q().to_string(),
            p.heads_k().to_string(),
            self.name().to_owned(),
            some(measured.map(|figures| figures.0.to_string())),
            some(measured.map(|figures| figures.1.to_string())),
            some(predicted.map(|one| one.hbm_bytes().to_string())),
            some(self.counted_bytes.map(|bytes| bytes.to_string())),
            some(measured.map(|figures| figures.2.to_string())),
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
