//! Options of `weights`.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::posed::ProblemWords;

/// Options of `weights`.
#[derive(Debug, Args)]
pub struct WeightsArguments {
    /// A file as `run` takes it.
    pub input: PathBuf,
    /// Batch entry, or sequence where they are packed.
    #[arg(long, default_value_t = 0)]
    pub batch: usize,
    /// Query head.
    #[arg(long, default_value_t = 0)]
    pub head: usize,
    /// Queries, as `0..64`, counted from the first one of the sequence. Unless given: all of the sequence.
    #[arg(long, value_name = "FROM..TO")]
    pub rows: Option<Rows>,
    /// How many keys to name of each row, the strongest first.
    #[arg(long, default_value_t = 4, conflicts_with_all = ["json", "csv"])]
    pub top: usize,
    /// All weights as one line of JSON, in place of the strongest keys.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// All weights as CSV, in place of the strongest keys: a line for each query, a column for each key.
    #[arg(long)]
    pub csv: bool,
    /// Draws them: a heat map, as SVG. Of more than 512 queries or keys a cell shows the largest weight of several.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The problem, as far as the file does not say it.
    #[command(flatten)]
    pub problem: ProblemWords,
}

/// Some rows: `0..64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows(pub Range<usize>);

impl FromStr for Rows {
    type Err = String;

    fn from_str(text: &str) -> Result<Rows, String> {
        let ends = text.split_once("..");
        let ends = ends.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        match ends {
            Some((from, to)) => Ok(Rows(from..to)),
            None => Err("allowed: FROM..TO, two numbers of queries, as 0..64".to_owned()),
        }
    }
}
