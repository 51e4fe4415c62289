//! `--report`: a page of HTML that stands alone. It loads nothing: the chart is inline SVG, the style is in its head, and there is no script.

use std::time::SystemTime;

use ferroflash::backend::cuda::origin_of_kernels;
use ferroflash::{Backend, Device};
use ferroflash_lab::record;
use ferroflash_lab::speed;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::arguments::BenchArguments;
use super::row::{Check, Row};
use crate::compare::Comparison;
use crate::demo::Small;
use crate::failure::Failure;
use crate::plot::usual;
use crate::posed::in_words;

/// System fonts alone, and no colour that says something by itself.
const STYLE: &str = "
:root { color-scheme: light; --ink: #1f2328; --faint: #636c76; --line: #d8dee4; --ground: #f6f8fa; --good: #0b6e4f; --bad: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 36px 24px 56px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; }
h2 { font-size: 17px; margin: 0 0 10px; }
p { margin: 0 0 10px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 20px 22px; margin-top: 20px; overflow-x: auto; }
.faint { color: var(--faint); }
pre { margin: 0; padding: 10px 12px; background: var(--ground); border: 1px solid var(--line); border-radius: 6px; font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 0; text-align: center; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: 5px 9px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 600; border-bottom: 2px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
.text { text-align: left; }
td.why { text-align: left; white-space: normal; color: var(--faint); }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
";

/// What is known before anything is measured.
pub struct Report {
    date: String,
    command: String,
    device: Device,
    /// In words: how often and how long.
    effort: String,
    unchecked: bool,
    small: Small,
    comparisons: Vec<Comparison>,
}

impl Report {
    /// Runs the small input, in the type that is measured.
    pub fn new(arguments: &BenchArguments, device: &Device) -> Result<Report, Failure> {
        let small = Small::run(device, arguments.dtype, arguments.precision)?;
        let effort = arguments.effort;
        Ok(Report {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: command(std::env::args()),
            device: device.clone(),
            effort: format!(
                "{} in shuffled order, each {} ms of warming up and {} ms of measuring; the median of the rounds' medians.",
                match arguments.rounds.max(1) {
                    1 => "1 round".to_owned(),
                    n => format!("{n} rounds"),
                },
                effort.warm_up_ms,
                effort.rep_ms
            ),
            unchecked: arguments.unchecked,
            comparisons: small.comparisons(),
            small,
        })
    }

    /// Whether the small input's results are float64's.
    pub fn agrees(&self) -> bool {
        self.comparisons.iter().all(Comparison::agrees)
    }

    /// The page.
    pub fn html(&self, rows: &[Row]) -> Result<String, Failure> {
        let name = name(&self.device);
        let title = format!("Attention on {name}");
        let n_measured = rows.iter().filter(|row| row.error().is_none()).count();
        let chart = chart(&name, rows)?;
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content={ "ferroflash " (env!("CARGO_PKG_VERSION")) };
                    title { (title) ", " (self.date) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    main {
                        h1 { (title) }
                        p.faint {
                            "ferroflash " (env!("CARGO_PKG_VERSION")) ", " time datetime=(self.date) { (self.date.replace('T', " ").replace('Z', " UTC")) } ", "
                            (n_measured) " of " (rows.len()) " rows measured"
                        }
                        pre { code #command { (self.command) } }
                        @if let Some(chart) = chart {
                            section #chart { h2 { "Speed" } figure { (PreEscaped(chart)) } }
                        }
                        section #machine { h2 { "Machine" } (self.machine()) }
                        section #check { h2 { "Check" } (self.check(rows)) }
                        section #results { h2 { "Results" } (table(rows)) (self.legend()) }
                    }
                }
            }
        };
        Ok(page.into_string())
    }

    /// What the columns say.
    fn legend(&self) -> Markup {
        html! {
            p.faint style="margin: 12px 0 0" {
                "FLOPs are counted as the FlashAttention papers do; GB/s are inputs and outputs, each once. Extra MiB is memory beside them. "
                "D is head_dim, S and Sk are queries and keys of a sequence, B sequences, H and Hk heads of queries and of keys. "
                (self.effort)
                @if self.device.backend() == Backend::Cuda { " The L2 cache is flushed before each call; --decode reads what it does not hold." }
            }
        }
    }

    /// What results are held to, and how near they are.
    fn check(&self, rows: &[Row]) -> Markup {
        let Small { problem, done, .. } = &self.small;
        let ran = done
            .passes
            .iter()
            .map(|(pass, ran, _)| format!("{} by {}", pass.name(), ran.algorithm));
        let ran: Vec<String> = ran.collect();
        let checks: Vec<Check> = rows.iter().filter_map(Row::check).collect();
        let used = |check: &Check| match check.rms == 0.0 {
            true => 0.0,
            false => check.rms / check.allowed_rms,
        };
        let most = checks.iter().map(used).fold(0.0, f64::max);
        html! {
            p {
                "A small input is checked against attention in float64, by its definition: " (in_words(problem)) "; " (ran.join(", ")) "."
            }
            table {
                thead { tr {
                    th.text { "result" } th { "largest error" } th { "allowed there" } th { "rms error" } th { "allowed" } th.text { "verdict" }
                } }
                tbody {
                    @for one in &self.comparisons {
                        tr {
                            td.text { (one.name) }
                            td { (scientific(one.max_abs)) } td { (scientific(one.allowed_abs)) }
                            td { (scientific(one.rms)) } td { (scientific(one.allowed_rms)) }
                            @if one.agrees() { td.text.good { "agrees" } } @else { td.text.bad { "DIFFERS" } }
                        }
                    }
                }
            }
            p.faint style="margin: 12px 0 0" {
                @if self.unchecked {
                    "The rows below were not checked (--unchecked)."
                } @else if checks.is_empty() {
                    "The rows below were not checked one by one: nothing else here computes them."
                } @else {
                    (checks.len()) " of the rows below were checked against other results of the same inputs before they were measured, the processor's where it can compute them. The one that is farthest off has "
                    (format!("{:.0} %", 100.0 * most)) " of the root mean square that is allowed."
                }
            }
        }
    }

    /// Hardware, driver, versions.
    fn machine(&self) -> Markup {
        let mut facts = Vec::new();
        if let Some(cuda) = self.device.as_cuda() {
            let info = cuda.info();
            let (major, minor) = info.compute_capability;
            let gib = info.memory_bytes as f64 / f64::from(1 << 30);
            facts.push((
                "GPU",
                format!(
                    "{}: compute capability {major}.{minor}, {} multiprocessors, {gib:.0} GiB",
                    info.name, info.n_sms
                ),
            ));
            let driver = cuda.driver_version();
            let release = driver_release().map_or(String::new(), |release| format!("{release}, "));
            facts.push((
                "driver",
                format!("{release}CUDA {}.{}", driver.major, driver.minor),
            ));
            facts.push(("kernels", origin_of_kernels().to_string()));
        }
        let cpu = Device::cpu();
        let model = processor().map_or(String::new(), |model| format!("{model}, "));
        facts.push(("processor", format!("{model}{}", cpu.info().name)));
        facts.push(("system", std::env::consts::OS.to_owned()));
        facts.push(("ferroflash", env!("CARGO_PKG_VERSION").to_owned()));
        facts.push((
            "runs on",
            format!("{} ({})", self.device, self.device.why()),
        ));
        html! { dl { @for (name, value) in facts { dt { (name) } dd { (value) } } } }
    }
}

/// The chart, if a row was measured.
fn chart(name: &str, rows: &[Row]) -> Result<Option<String>, Failure> {
    let lines = rows.iter().map(Row::json).collect::<Vec<_>>().join("\n");
    let runs = record::runs(&lines);
    let rows: Vec<record::Row> = runs.into_iter().flat_map(|run| run.rows).collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let quantity = usual(&rows);
    let title = format!("{} by length, {name}", quantity.unit());
    let svg = speed::svg(&title, &rows, quantity, &[])?;
    Ok(Some(svg))
}

/// Columns of words, from the left.
const N_WORDS: usize = 3;
/// Columns before the measured ones.
const N_SIZES: usize = 10;

/// A row for each variant of each case. A column in which no row has anything is left out.
fn table(rows: &[Row]) -> Markup {
    let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
    let has_values = |nth: usize| {
        let mut of_column = cells.iter().filter_map(|cells| cells.get(nth));
        nth < N_SIZES || of_column.any(|cell| cell != "-")
    };
    let heads = Row::heads().enumerate();
    let heads: Vec<(usize, &str)> = heads.filter(|&(nth, _)| has_values(nth)).collect();
    let n_measured = heads.len() - N_SIZES;
    let class = |nth: usize| (nth < N_WORDS).then_some("text");
    html! {
        table {
            thead { tr { @for &(nth, head) in &heads { th class=[class(nth)] { (head) } } } }
            tbody {
                @for (row, cells) in rows.iter().zip(&cells) {
                    tr {
                        @for &(nth, _) in &heads {
                            @if let Some(cell) = cells.get(nth) { td class=[class(nth)] { (cell) } }
                        }
                        @if let Some(error) = row.error() {
                            td.why colspan=(n_measured) { (row.reason(error)) }
                        }
                    }
                }
            }
        }
    }
}

fn scientific(value: f64) -> String {
    format!("{value:.2e}")
}

/// What the page calls the device.
fn name(device: &Device) -> String {
    match (device.as_cuda(), processor()) {
        (None, Some(model)) => model,
        _ => device.info().name.clone(),
    }
}

/// The processor's name, where the system tells it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The release of NVIDIA's driver, where the system tells it.
fn driver_release() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    release_of(&text)
}

/// `580.65.06`, of the first line that the driver's module shows.
fn release_of(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        word.contains('.') && word.split('.').all(is_part)
    };
    let words = text.lines().next()?.split_whitespace();
    words.into_iter().find(is_release).map(str::to_owned)
}

/// A command as a shell takes it, by its name alone, whatever its folder.
fn command(words: impl Iterator<Item = String>) -> String {
    let quoted = words.skip(1).map(|word| {
        let is_plain =
            |letter: char| letter.is_ascii_alphanumeric() || "-_./,:=+%".contains(letter);
        if !word.is_empty() && word.chars().all(is_plain) {
            return word;
        }
        // No word of a command line has a zero byte.
        shlex::try_quote(&word).map_or_else(|_| word.clone(), |quoted| quoted.into_owned())
    });
    let words = ["ferroflash".to_owned()].into_iter().chain(quoted);
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_repeated() {
        let words = [
            "/usr/bin/ferroflash",
            "bench",
            "--report",
            "a page.html",
            "--hdims",
            "64,128",
        ];
        assert_eq!(
            command(words.map(str::to_owned).into_iter()),
            "ferroflash bench --report 'a page.html' --hdims 64,128"
        );
    }

    #[test]
    fn the_release_of_a_driver() {
        let old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.2.0";
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build";
        assert_eq!(release_of(old).as_deref(), Some("550.54.15"));
        assert_eq!(release_of(open).as_deref(), Some("580.65.06"));
        assert_eq!(release_of("words\n1.2"), None);
    }
}
