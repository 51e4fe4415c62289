//! One line of results: for people, or as JSON of the shape that the peers' script prints.

use std::fmt;

use ferroflash::{Algorithm, Backend, Device, Dtype, Order, Pass, Precision, SplitKv};
use ferroflash_lab::compare::{Figures, Line, own_reason};
use ferroflash_lab::estimate::Gpu;
use ferroflash_lab::words::{flops, pass_word};
use serde_json::{Value, json};

use super::arguments::CacheLengths;
use super::cases::Case;
use super::subject::Variant;
use crate::failure::Failure;
use crate::words::fp8_word;

/// One line of results.
pub struct Row {
    case: Case,
    algorithm: Option<Algorithm>,
    order: Order,
    backend: Backend,
    is_wrong: bool,
    outcome: Result<Measured, String>,
}

/// What was measured.
pub struct Measured {
    pub ms: f64,
    /// Bytes of memory beside inputs and outputs.
    pub extra_bytes: u64,
    /// Microseconds of the host.
    pub host_us: Option<f64>,
    /// Of a graph's calls on the cache; `None` where there is no graph.
    pub n_views: Option<u64>,
    /// How near the results are to the reference, where they were held to one.
    pub check: Option<Check>,
}

/// That result of a variant which comes nearest to what it may differ by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Root mean square of the differences.
    pub rms: f64,
    /// Allowed.
    pub allowed_rms: f64,
}

/// Heads of the columns, and how wide these are; the first and the next two begin at their left.
const COLUMNS: [(&str, usize); 15] = [
    ("variant", 28),
    ("pass", 4),
    ("dtype", 5),
    ("D", 4),
    ("mask", 14),
    ("S", 6),
    ("Sk", 6),
    ("B", 4),
    ("H", 4),
    ("Hk", 4),
    ("ms", 11),
    ("TFLOP/s", 8),
    ("GB/s", 8),
    ("extra MiB", 11),
    ("host µs", 8),
];

/// Cells, as wide as the columns.
fn in_columns<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let cells = cells.into_iter().zip(COLUMNS).enumerate();
    let cells = cells.map(|(nth, (cell, (_, width)))| match nth < 3 {
        true => format!("{cell:<width$}"),
        false => format!("{cell:>width$}"),
    });
    cells.collect::<Vec<_>>().join(" ")
}

impl Row {
    /// Of a variant that ran.
    pub fn measured(
        case: &Case,
        variant: &Variant,
        device: &Device,
        algorithm: Algorithm,
        measured: Measured,
    ) -> Row {
        Row {
            case: case.clone(),
            algorithm: Some(algorithm),
            order: variant.order,
            backend: device.backend(),
            is_wrong: false,
            outcome: Ok(measured),
        }
    }

    /// Of a variant that could not run.
    pub fn failed(case: &Case, variant: &Variant, device: &Device, failure: &Failure) -> Row {
        Row {
            case: case.clone(),
            algorithm: variant.algorithm,
            order: variant.order,
            backend: device.backend(),
            is_wrong: matches!(failure, Failure::Differs(_)),
            outcome: Err(failure.to_string().replace('\n', " ")),
        }
    }

    /// Whether the variant gave wrong results.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// Heads of its cells.
    pub fn heads() -> impl Iterator<Item = &'static str> {
        COLUMNS.into_iter().map(|(head, _)| head)
    }

    /// How near its results are to the reference, where they were held to one.
    pub fn check(&self) -> Option<Check> {
        self.outcome.as_ref().ok()?.check
    }

    /// Why it was not measured.
    pub fn error(&self) -> Option<&str> {
        self.outcome.as_ref().err().map(String::as_str)
    }

    /// What an error says of this schedule, without those that the error lists beside it.
    pub fn reason<'a>(&self, error: &'a str) -> &'a str {
        own_reason(error, self.algorithm.map_or("auto", Algorithm::name))
    }

    /// Its name among the peers: the default order has no suffix, nor has the planner's own choice of splits.
    fn peer(&self) -> String {
        let (problem, named) = (&self.case.problem, &self.case.named);
        let (columns, columns_v) = (problem.head_dim(), problem.head_dim_v());
        let latent = problem.values_in_keys();
        let given = |given: bool, suffix: &str| given.then(|| suffix.to_owned());
        let suffixes = [
            given(self.order == Order::Fastest, "-fastest"),
            problem
                .pages()
                .map(|pages| format!("-page{}", pages.page_size())),
            given(problem.fp8_kv().is_some(), "-e4m3"),
            problem.fp8().map(|scales| {
                // What is usual is not named.
                match fp8_word((scales, problem.fp8_sums())) {
                    "two-levels" => "-fp8".to_owned(),
                    word => format!("-fp8-{word}"),
                }
            }),
            given(latent, "-latent"),
            given(!latent && columns_v != columns, &format!("-v{columns_v}")),
            given(self.case.cache_lengths == CacheLengths::Device, "-seqused"),
            given(
                self.case.layers > 1,
                &format!("-layers{}", self.case.layers),
            ),
            named.score.map(|score| format!("-{}", score.name())),
            named.mask.map(|mask| format!("-mask-{}", mask.name())),
            given(problem.has_sinks(), "-sinks"),
            problem
                .dropout()
                .map(|dropout| format!("-dropout{}", dropout.probability())),
            match problem.split_kv() {
                SplitKv::Auto => None,
                SplitKv::Never => Some("-undivided".to_owned()),
                SplitKv::Keys(keys) => Some(format!("-split{keys}")),
            },
        ];
        let algorithm = self.algorithm.map_or("auto", Algorithm::name);
        let suffixes = suffixes.into_iter().flatten().collect::<String>();
        format!("ferroflash-{algorithm}{suffixes}")
    }

    /// The row beside what is predicted for a GPU.
    pub fn line(&self, gpu: Option<&Gpu>) -> Line {
        let figures = |measured: &Measured| Figures {
            ms: measured.ms,
            tflops: self.flops() / measured.ms / 1e9,
            extra_bytes: measured.extra_bytes,
        };
        let measured = self.outcome.as_ref().map(figures).map_err(Clone::clone);
        Line::new(
            self.case.problem,
            self.case.pass,
            self.algorithm,
            measured,
            gpu,
        )
    }

    /// Floating-point operations.
    fn flops(&self) -> f64 {
        flops(&self.case.problem, self.case.pass, &self.case.lens)
    }

    /// Bytes of inputs read and outputs written, each once.
    fn bytes(&self) -> f64 {
        let p = &self.case.problem;
        let elems = |shape: [usize; 4]| shape.iter().product::<usize>() as f64;
        let (n_q, n_o) = (elems(p.shape_q()), elems(p.shape_o()));
        let n_v = match p.values_in_keys() {
            true => 0.0,
            false => elems(p.shape_v()),
        };
        let n_k = elems(p.shape_k()) + n_v;
        let rows = (p.shape_lse().iter().product::<usize>() * size_of::<f32>()) as f64;
        let element = p.dtype().size_bytes() as f64;
        let [of_q, of_k] = [p.dtype_q(), p.dtype_k()].map(|dtype| dtype.size_bytes() as f64);
        let forward = n_q * of_q + n_k * of_k + n_o * element + rows;
        match self.case.pass {
            // d_o, d_q, d_k, d_v in addition.
            Pass::Backward => forward + (n_q + n_k + n_o) * element,
            _ => forward,
        }
    }

    fn dtype_word(&self) -> &'static str {
        match self.case.problem.dtype() {
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "fp16",
            Dtype::F32 => "fp32",
        }
    }

    /// As the peers' script prints it, with fields of our own at the end.
    pub fn json(&self) -> String {
        let (case, p) = (&self.case, &self.case.problem);
        let (left, right) = p.mask().window();
        let mut row = json!({
            "peer": self.peer(),
            "dtype": self.dtype_word(),
            "D": p.head_dim(),
            "causal": u8::from(right == Some(0)),
            "S": p.seqlen_q(),
            "B": p.batch(),
            "H": p.heads_q(),
            "p": pass_word(case.pass),
            "backend": self.backend.name(),
            "Sk": p.seqlen_k(),
            "Hk": p.heads_k(),
        });
        let given = |given: bool, value: Value| given.then_some(value);
        let (prefix, precision) = (p.mask().prefix(), p.precision());
        let mut others = vec![
            ("window", left.map(|left| json!(left))),
            ("score", case.named.score.map(|score| json!(score.name()))),
            (
                "mask_expression",
                case.named.mask.map(|mask| json!(mask.name())),
            ),
            ("sinks", given(p.has_sinks(), json!(true))),
            (
                "dropout",
                p.dropout().map(|dropout| json!(dropout.probability())),
            ),
            ("prefix", given(prefix > 0, json!(prefix))),
            (
                "precision",
                given(
                    precision != Precision::default(),
                    json!(precision.to_string()),
                ),
            ),
            ("page", p.pages().map(|pages| json!(pages.page_size()))),
            (
                "Dv",
                given(p.head_dim_v() != p.head_dim(), json!(p.head_dim_v())),
            ),
            (
                "cache_lengths",
                given(case.cache_lengths == CacheLengths::Device, json!("device")),
            ),
            ("layers", given(case.layers > 1, json!(case.layers))),
            (
                "kv_dtype",
                given(p.fp8_kv().is_some(), json!(p.dtype_k().to_string())),
            ),
            ("lengths", given(!case.lens.is_empty(), json!(case.lens))),
        ];
        match &self.outcome {
            Err(error) => others.push(("err", Some(json!(error)))),
            Ok(Measured {
                ms,
                extra_bytes,
                host_us,
                n_views,
                check: _,
            }) => others.extend([
                ("ms", Some(json!(rounded(*ms, 6)))),
                ("tflops", Some(json!(shown(self.flops() / ms / 1e9)))),
                ("gbps", Some(json!(shown(self.bytes() / ms / 1e6)))),
                ("extra_bytes", Some(json!(extra_bytes))),
                ("host_us", host_us.map(|host_us| json!(rounded(host_us, 2)))),
                ("graph", given(case.decode, json!(n_views.is_some()))),
                ("views", given(case.decode, json!(n_views.unwrap_or(1)))),
            ]),
        }
        for (name, value) in others {
            if let Some(value) = value {
                row[name] = value;
            }
        }
        row.to_string()
    }

    /// Its cells, those before the measured ones alone where it was not measured.
    pub fn cells(&self) -> Vec<String> {
        let p = &self.case.problem;
        let mut cells = vec![
            self.peer(),
            pass_word(self.case.pass).to_owned(),
            self.dtype_word().to_owned(),
            p.head_dim().to_string(),
            p.mask().to_string(),
            p.seqlen_q().to_string(),
            p.seqlen_k().to_string(),
            p.batch().to_string(),
            p.heads_q().to_string(),
            p.heads_k().to_string(),
        ];
        if let Ok(measured) = &self.outcome {
            let ms = measured.ms;
            let host_us = measured.host_us.map(|host_us| format!("{host_us:.2}"));
            cells.extend([
                format!("{ms:.5}"),
                shown(self.flops() / ms / 1e9).to_string(),
                shown(self.bytes() / ms / 1e6).to_string(),
                format!("{:.2}", measured.extra_bytes as f64 / f64::from(1 << 20)),
                host_us.unwrap_or("-".to_owned()),
            ]);
        }
        cells
    }

    /// Heads of the columns.
    pub fn header() -> String {
        in_columns(COLUMNS.map(|(head, _)| head))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = self.cells();
        f.write_str(&in_columns(cells.iter().map(String::as_str)))?;
        match &self.outcome {
            Ok(_) => Ok(()),
            Err(error) => write!(f, "  {error}"),
        }
    }
}

/// A rate as it is shown: one decimal, three where that would hide it.
fn shown(rate: f64) -> f64 {
    rounded(rate, if rate < 10.0 { 3 } else { 1 })
}

/// Rounded to some decimals, as JSON shows it.
fn rounded(value: f64, decimals: i32) -> f64 {
    let factor = 10f64.powi(decimals);
    (value * factor).round() / factor
}

#[cfg(test)]
mod tests;
