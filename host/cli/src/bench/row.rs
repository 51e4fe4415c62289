//! One line of results: for people, or as JSON of the shape that the peers' script prints.

use std::fmt;

use ferroflash::{Algorithm, Backend, Device, Dtype, Order, Pass, Precision, Problem, SplitKv};
use ferroflash_lab::compare::{Figures, Line};
use ferroflash_lab::estimate::Gpu;
use ferroflash_lab::words::{flops, pass_word};
use serde_json::{Value, json};

use super::cases::Case;
use super::subject::{Call, Ready, Variant};
use crate::arguments::CacheLengths;
use crate::expressions::Named;
use crate::failure::Failure;

/// One line of results.
pub struct Row {
    problem: Problem,
    lens: Vec<usize>,
    pass: Pass,
    named: Named,
    algorithm: Option<Algorithm>,
    order: Order,
    backend: Backend,
    decode: bool,
    layers: usize,
    cache_lengths: CacheLengths,
    is_wrong: bool,
    outcome: Result<Measured, String>,
}

/// What was measured.
struct Measured {
    ms: f64,
    extra_bytes: u64,
    host_us: Option<f64>,
    /// Of a graph's calls on the cache; `None` where there is no graph.
    n_views: Option<u64>,
}

impl Row {
    /// Of a variant that ran.
    pub fn measured(
        case: &Case,
        variant: &Variant,
        device: &Device,
        ready: &Ready,
        ms: f64,
        host_us: Option<f64>,
    ) -> Row {
        let measured = Measured {
            ms,
            extra_bytes: ready.extra_bytes,
            host_us,
            n_views: match &ready.call {
                Call::Decode(call) => Some(call.n_views),
                Call::Gpu(_) | Call::Host(..) => None,
            },
        };
        let algorithm = Some(ready.algorithm);
        Row::new(case, variant, device, algorithm, Ok(measured))
    }

    /// Of a variant that could not run.
    pub fn failed(case: &Case, variant: &Variant, device: &Device, failure: &Failure) -> Row {
        let why = failure.to_string().replace('\n', " ");
        Row {
            is_wrong: matches!(failure, Failure::Differs(_)),
            ..Row::new(case, variant, device, variant.algorithm, Err(why))
        }
    }

    /// Whether the variant gave wrong results.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    fn new(
        case: &Case,
        variant: &Variant,
        device: &Device,
        algorithm: Option<Algorithm>,
        outcome: Result<Measured, String>,
    ) -> Row {
        Row {
            problem: case.problem,
            lens: case.lens.clone(),
            pass: case.pass,
            named: case.named,
            algorithm,
            order: variant.order,
            backend: device.backend(),
            decode: case.decode,
            layers: case.layers,
            cache_lengths: case.cache_lengths,
            is_wrong: false,
            outcome,
        }
    }

    /// Its name among the peers: the default order has no suffix, nor has the planner's own choice of splits.
    fn peer(&self) -> String {
        let algorithm = self.algorithm.map_or("auto", Algorithm::name);
        let name = match self.order {
            Order::Deterministic => format!("ferroflash-{algorithm}"),
            Order::Fastest => format!("ferroflash-{algorithm}-fastest"),
        };
        let name = match self.problem.pages() {
            Some(pages) => format!("{name}-page{}", pages.page_size()),
            None => name,
        };
        let name = match self.problem.fp8_kv() {
            Some(_) => format!("{name}-e4m3"),
            None => name,
        };
        let (columns, columns_v) = (self.problem.head_dim(), self.problem.head_dim_v());
        let name = match self.problem.values_in_keys() {
            true => format!("{name}-latent"),
            false if columns_v != columns => format!("{name}-v{columns_v}"),
            false => name,
        };
        let name = match self.cache_lengths {
            CacheLengths::Shape => name,
            CacheLengths::Device => format!("{name}-seqused"),
        };
        let name = match self.layers {
            0 | 1 => name,
            layers => format!("{name}-layers{layers}"),
        };
        let name = match self.named.score {
            Some(score) => format!("{name}-{}", score.name()),
            None => name,
        };
        let name = match self.named.mask {
            Some(mask) => format!("{name}-mask-{}", mask.name()),
            None => name,
        };
        let name = match self.problem.has_sinks() {
            true => format!("{name}-sinks"),
            false => name,
        };
        let name = match self.problem.dropout() {
            Some(dropout) => format!("{name}-dropout{}", dropout.probability()),
            None => name,
        };
        match self.problem.split_kv() {
            SplitKv::Auto => name,
            SplitKv::Never => format!("{name}-undivided"),
            SplitKv::Keys(keys) => format!("{name}-split{keys}"),
        }
    }

    /// The row beside what is predicted for a GPU.
    pub fn line(&self, gpu: Option<&Gpu>) -> Line {
        let figures = |measured: &Measured| Figures {
            ms: measured.ms,
            tflops: self.flops() / measured.ms / 1e9,
            extra_bytes: measured.extra_bytes,
        };
        let measured = self.outcome.as_ref().map(figures).map_err(Clone::clone);
        Line::new(self.problem, self.pass, self.algorithm, measured, gpu)
    }

    /// Floating-point operations.
    fn flops(&self) -> f64 {
        flops(&self.problem, self.pass, &self.lens)
    }

    /// Bytes of inputs read and outputs written, each once.
    fn bytes(&self) -> f64 {
        let elems = |shape: [usize; 4]| shape.iter().product::<usize>() as f64;
        let (q, o) = (self.problem.shape_q(), self.problem.shape_o());
        let n_q = elems(q) + elems(o);
        let n_v = match self.problem.values_in_keys() {
            true => 0.0,
            false => elems(self.problem.shape_v()),
        };
        let n_k = elems(self.problem.shape_k()) + n_v;
        let n_rows = self.problem.shape_lse().iter().product::<usize>();
        let rows = (n_rows * size_of::<f32>()) as f64;
        let element = self.problem.dtype().size_bytes() as f64;
        let element_k = self.problem.dtype_k().size_bytes() as f64;
        match self.pass {
            // q, k, v, o, d_o, d_q, d_k, d_v.
            Pass::Backward => 2.0 * (n_q + n_k) * element + rows,
            // q, k, v, o.
            _ => n_q * element + n_k * element_k + rows,
        }
    }

    fn dtype_word(&self) -> &'static str {
        match self.problem.dtype() {
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "fp16",
            Dtype::F32 => "fp32",
        }
    }

    /// As the peers' script prints it, with fields of our own at the end.
    pub fn json(&self) -> String {
        let p = &self.problem;
        let (left, right) = p.mask().window();
        let mut row = json!({
            "peer": self.peer(),
            "dtype": self.dtype_word(),
            "D": p.head_dim(),
            "causal": u8::from(right == Some(0)),
            "S": p.seqlen_q(),
            "B": p.batch(),
            "H": p.heads_q(),
            "p": pass_word(self.pass),
            "backend": self.backend.name(),
            "Sk": p.seqlen_k(),
            "Hk": p.heads_k(),
        });
        let mut set = |name: &str, value: Value| row[name] = value;
        if let Some(left) = left {
            set("window", json!(left));
        }
        if let Some(score) = self.named.score {
            set("score", json!(score.name()));
        }
        if let Some(mask) = self.named.mask {
            set("mask_expression", json!(mask.name()));
        }
        if p.has_sinks() {
            set("sinks", json!(true));
        }
        if let Some(dropout) = p.dropout() {
            set("dropout", json!(dropout.probability()));
        }
        if p.mask().prefix() > 0 {
            set("prefix", json!(p.mask().prefix()));
        }
        if p.precision() != Precision::default() {
            set("precision", json!(p.precision().to_string()));
        }
        if let Some(pages) = p.pages() {
            set("page", json!(pages.page_size()));
        }
        if p.head_dim_v() != p.head_dim() {
            set("Dv", json!(p.head_dim_v()));
        }
        if self.cache_lengths == CacheLengths::Device {
            set("cache_lengths", json!("device"));
        }
        if self.layers > 1 {
            set("layers", json!(self.layers));
        }
        if p.fp8_kv().is_some() {
            set("kv_dtype", json!(p.dtype_k().to_string()));
        }
        if !self.lens.is_empty() {
            set("lengths", json!(self.lens));
        }
        match &self.outcome {
            Err(error) => set("err", json!(error)),
            Ok(measured) => {
                set("ms", json!(rounded(measured.ms, 6)));
                set("tflops", json!(shown(self.flops() / measured.ms / 1e9)));
                set("gbps", json!(shown(self.bytes() / measured.ms / 1e6)));
                set("extra_bytes", json!(measured.extra_bytes));
                if let Some(host_us) = measured.host_us {
                    set("host_us", json!(rounded(host_us, 2)));
                }
                if self.decode {
                    set("graph", json!(measured.n_views.is_some()));
                    set("views", json!(measured.n_views.unwrap_or(1)));
                }
            }
        }
        row.to_string()
    }

    /// Heads of the columns.
    pub fn header() -> String {
        format!(
            "{:<28} {:<4} {:<5} {:>4} {:>14} {:>6} {:>6} {:>4} {:>4} {:>4} {:>11} {:>8} {:>8} {:>11} {:>8}",
            "variant",
            "pass",
            "dtype",
            "D",
            "mask",
            "S",
            "Sk",
            "B",
            "H",
            "Hk",
            "ms",
            "TFLOP/s",
            "GB/s",
            "extra MiB",
            "host µs"
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.problem;
        write!(
            f,
            "{:<28} {:<4} {:<5} {:>4} {:>14} {:>6} {:>6} {:>4} {:>4} {:>4}",
            self.peer(),
            pass_word(self.pass),
            self.dtype_word(),
            p.head_dim(),
            p.mask().to_string(),
            p.seqlen_q(),
            p.seqlen_k(),
            p.batch(),
            p.heads_q(),
            p.heads_k()
        )?;
        match &self.outcome {
            Err(error) => write!(f, "  {error}"),
            Ok(Measured {
                ms,
                extra_bytes,
                host_us,
                ..
            }) => {
                let (tflops, gbps) = (
                    shown(self.flops() / ms / 1e9),
                    shown(self.bytes() / ms / 1e6),
                );
                let extra_mib = *extra_bytes as f64 / f64::from(1 << 20);
                write!(f, " {ms:>11.5} {tflops:>8} {gbps:>8} {extra_mib:>11.2}")?;
                match host_us {
                    Some(host_us) => write!(f, " {host_us:>8.2}"),
                    None => write!(f, " {:>8}", "-"),
                }
            }
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
