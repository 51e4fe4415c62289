//! `ferroflash plot`: rows of `ferroflash bench --json`, drawn in the terminal and as SVG.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use ferroflash_lab::record::{Row, runs};
use ferroflash_lab::speed::{self, Group, Quantity, groups, peers};

use crate::failure::Failure;
use crate::output;
use crate::print::{HEADING, columns, say};

/// Options of `plot`.
#[derive(Debug, Args)]
pub struct PlotArguments {
    /// Lines that `ferroflash bench --json` has printed, or a file of the repository's record; -: standard input. Of equal rows the last counts.
    pub rows: PathBuf,
    /// Draws the speeds by length; an existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// What is drawn. Unless given: GB/s where all rows are of few queries over many keys, else TFLOP/s.
    #[arg(long)]
    pub quantity: Option<QuantityName>,
    /// What stands on top of the picture.
    #[arg(long, default_value = "Speed of attention")]
    pub title: String,
}

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuantityName {
    /// Floating-point operations, as the papers count them
    Tflops,
    /// Bytes of inputs and outputs, each once
    Gbps,
}

/// Reads and draws.
pub fn plot(arguments: &PlotArguments) -> Result<ExitCode, Failure> {
    let path = &arguments.rows;
    let text = match path == Path::new("-") {
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(path),
    };
    let runs = runs(&text.map_err(Failure::of_file(path))?);
    let rows: Vec<Row> = runs.into_iter().flat_map(|run| run.rows).collect();
    if rows.is_empty() {
        return Err(Failure::of_file(path)(
            "no line is a measured row; needed: lines of ferroflash bench --json",
        ));
    }
    let quantity = match arguments.quantity {
        Some(QuantityName::Tflops) => Quantity::Tflops,
        Some(QuantityName::Gbps) => Quantity::Gbps,
        None => usual(&rows),
    };
    if let Some(path) = &arguments.svg {
        let svg = speed::svg(&arguments.title, &rows, quantity, &[])?;
        output::replace(path, svg.as_bytes())?;
    }
    let peers = peers(&rows);
    for group in groups(&rows) {
        print(&group, &peers, quantity);
    }
    Ok(ExitCode::SUCCESS)
}

/// Memory bounds few queries over many keys, and tensor cores bound the others.
pub fn usual(rows: &[Row]) -> Quantity {
    let few = |row: &Row| row.seqlen < row.seqlen_k && row.gbps.is_some();
    match rows.iter().all(few) {
        true => Quantity::Gbps,
        false => Quantity::Tflops,
    }
}

/// Columns of a length, and of a value.
const LENGTH: usize = 7;
const VALUE: usize = 10;
/// Of the longest bar, at least.
const LEAST_BAR: usize = 10;

/// A bar for each row, as long as its value is beside the group's greatest.
fn print(group: &Group, peers: &[&str], quantity: Quantity) {
    let name = peers.iter().map(|peer| peer.chars().count()).max();
    let name = name.unwrap_or(0);
    let width = columns().saturating_sub(LENGTH + name + VALUE + 4);
    let width = width.max(LEAST_BAR);
    let values = group.rows.values().flat_map(|rows| rows.values());
    let most = values.filter_map(|row| quantity.of(row));
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    say!(
        "{HEADING}{}, {} by {}{HEADING:#}",
        group.title,
        quantity.unit(),
        group.length_name
    );
    for (length, rows) in &group.rows {
        let mut length = length.to_string();
        for (nth, peer) in peers.iter().enumerate() {
            let value = rows.get(peer).and_then(|row| quantity.of(row));
            let Some(value) = value else { continue };
            let (style, bar) = (style(nth), bar(value / most, width));
            say!("{length:>LENGTH$}  {peer:<name$}  {style}{bar}{style:#}{value:>VALUE$.2}");
            length.clear();
        }
    }
    say!("");
}

/// Eighths of a letter, from one to seven.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// A bar of a share of these columns, and blanks behind it.
fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * 8.0 * width as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8 - 1]);
    }
    let used = eighths.div_ceil(8);
    bar.push_str(&" ".repeat(width - used));
    bar
}

/// The colour of the nth one who was measured.
fn style(nth: usize) -> Style {
    const COLOURS: [AnsiColor; 6] = [
        AnsiColor::Green,
        AnsiColor::Blue,
        AnsiColor::Red,
        AnsiColor::Magenta,
        AnsiColor::Yellow,
        AnsiColor::Cyan,
    ];
    COLOURS[nth % COLOURS.len()].on_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_eighths() {
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(0.0, 4), "    ");
        assert_eq!(bar(0.5 + 3.0 / 32.0, 4), "██▍ ");
    }
}
