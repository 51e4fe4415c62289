//! `ferroflash weights`: rows of the attention weights of one head, as a table, as JSON or CSV, as a picture.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ferroflash::{Attention, Device, Problem, WeightsOf, WeightsRan};
use ferroflash_lab::heat_map::HeatMap;

use crate::failure::Failure;
use crate::input::{self, Bytes, Input, with_element};
use crate::output;
use crate::posed::{ProblemWords, in_words};
use crate::print::say;
use crate::tensors::{Operands, zeros};
use crate::words::rows;

/// Options of `weights`.
#[derive(Debug, Args)]
pub struct WeightsArguments {
    /// A file as for `run`.
    pub input: PathBuf,
    /// Batch entry, or packed sequence.
    #[arg(long, default_value_t = 0)]
    pub batch: usize,
    /// Query head.
    #[arg(long, default_value_t = 0)]
    pub head: usize,
    /// Queries, such as `0..64`, counted from the first one of the sequence. Unless given: all of the sequence.
    #[arg(long, value_name = "FROM..TO", value_parser = rows)]
    pub rows: Option<Range<usize>>,
    /// How many keys to list for each row, the strongest first.
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
    /// The parts of the problem that the file does not give.
    #[command(flatten)]
    pub problem: ProblemWords,
}

/// The result.
struct Weights {
    of: WeightsOf,
    ran: WeightsRan,
    /// A row of the sequence's own keys for each query.
    rows: Vec<Vec<f32>>,
}

/// Reads, computes, prints, draws.
pub fn weights(arguments: &WeightsArguments) -> Result<ExitCode, Failure> {
    let input = input::read(&arguments.input)?;
    if let Some(svg) = &arguments.svg {
        output::not_the_input("--svg", &arguments.input, svg)?;
    }
    let builder = arguments.problem.problem(&input, &arguments.input)?;
    let problem = builder.build()?;
    let weights = with_element!(input.dtype, T => compute::<T>(arguments, &input, problem))?;
    if arguments.json {
        weights.print_json();
    } else if arguments.csv {
        weights.print_csv();
    } else {
        let path = arguments.input.display();
        say!("input      {path}: {}", in_words(&problem));
        weights.print_strongest(arguments.top);
    }
    if let Some(path) = &arguments.svg {
        let svg = weights.picture(&problem).svg()?;
        output::replace(path, svg.as_bytes())?;
        // Standard output may be data.
        eprintln!("written    {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn compute<T: Bytes>(
    arguments: &WeightsArguments,
    input: &Input,
    problem: Problem,
) -> Result<Weights, Failure> {
    let attention = Attention::new(&Device::cpu(), problem)?;
    let given = arguments.problem.given(input)?;
    let operands = Operands::<T>::of_file(problem, input, given);
    let rows = arguments.rows.clone();
    let rows = rows.unwrap_or(0..input.seqlen_q(arguments.batch));
    let of = WeightsOf {
        batch: arguments.batch,
        head: arguments.head,
        rows,
    };
    let seqlen_k = problem.seqlen_k();
    // Of rows that there are not the library says so.
    let n_rows = match of.rows.end <= problem.seqlen_q() {
        true => of.rows.len(),
        false => 0,
    };
    let mut rows = zeros(n_rows.saturating_mul(seqlen_k)).map_err(|_| {
        Failure::Option(format!(
            "no memory for {n_rows} rows of {seqlen_k} weights: --rows takes fewer"
        ))
    })?;
    let ran = attention.weights(&operands.inputs()?, &of, &mut rows)?;
    let rows = rows.chunks_exact(seqlen_k.max(1));
    let rows = rows.map(|row| row[..ran.seqlen_k].to_vec()).collect();
    Ok(Weights { of, ran, rows })
}

impl Weights {
    /// Each query with its number.
    fn rows(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let rows = self.rows.iter().map(Vec::as_slice);
        self.of.rows.clone().zip(rows)
    }

    /// `{"batch":0,"head":3,"rows":[0,64],"seqlen_k":384,"backend":"cpu","weights":[[1.0,0.0],[0.5,0.5]]}`.
    fn print_json(&self) {
        let Weights { of, ran, rows } = self;
        // Numbers of f32 as short as they can be; NaN is null.
        let rows = serde_json::to_string(rows).unwrap_or_default();
        say!(
            "{{\"batch\":{},\"head\":{},\"rows\":[{},{}],\"seqlen_k\":{},\"backend\":\"{}\",\"weights\":{rows}}}",
            of.batch,
            of.head,
            of.rows.start,
            of.rows.end,
            ran.seqlen_k,
            ran.backend
        );
    }

    /// A header line, then a line for each query.
    fn print_csv(&self) {
        let line = |first: String, others: Vec<String>| {
            say!("{}", [vec![first], others].concat().join(","))
        };
        let keys = (0..self.ran.seqlen_k).map(|key| key.to_string());
        line("query".into(), keys.collect());
        for (query, row) in self.rows() {
            line(query.to_string(), row.iter().map(f32::to_string).collect());
        }
    }

    /// Prints what was computed, then the strongest keys of each query.
    fn print_strongest(&self, n: usize) {
        let Weights { of, ran, .. } = self;
        say!(
            "weights    batch {}, head {}, queries {}..{}, {} keys",
            of.batch,
            of.head,
            of.rows.start,
            of.rows.end,
            ran.seqlen_k
        );
        say!("computed   {ran}: these rows and no others");
        for (query, row) in self.rows() {
            let sum: f64 = row.iter().copied().map(f64::from).sum();
            let mut keys: Vec<usize> = (0..row.len()).filter(|&key| row[key] != 0.0).collect();
            keys.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            let strongest = keys.iter().take(n);
            let strongest = strongest.map(|&key| format!("  key {key} {:.4}", row[key]));
            say!(
                "query {query:<4} sum {sum:.4}{}",
                strongest.collect::<String>()
            );
        }
    }

    fn picture(&self, problem: &Problem) -> HeatMap<'_> {
        let WeightsOf { batch, head, rows } = &self.of;
        let title = format!(
            "attention weights: batch {batch}, head {head}, {}",
            problem.mask()
        );
        HeatMap {
            title,
            rows: rows.clone(),
            n_keys: self.ran.seqlen_k,
            weights: &self.rows,
        }
    }
}
