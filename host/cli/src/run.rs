//! `ferroflash run`: attention on a file's tensors, compared with the results stored in the file.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ferroflash::backend::cuda::StreamRef;
use ferroflash::{Attention, Order, Pass, Problem, Ran};

use crate::bench::{Variant, gpu, median, scheduled};
use crate::compare::{Comparison, Rounding, compare};
use crate::device::DeviceWords;
use crate::expressions::Given;
use crate::failure::{DIFFERS, DONE, Failure};
use crate::input::{self, Bytes, Input, RESULTS, with_element};
use crate::mask::MaskWords;
use crate::output;
use crate::posed::{ProblemWords, in_words};
use crate::print::{say, waiting};
use crate::tensors::{Tensors, Written};
use crate::words::{Passes, Schedule, order, passes, schedule};

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Tensors q, k, v and, for the backward pass, d_o: `[batch, seqlen, heads, head_dim]`, bf16, f16 or f32; with d_o, if the loss depends on lse,
    /// d_lse: `[batch, heads_q, seqlen_q]`, f32. Sequences of different lengths: cu_seqlens_q and cu_seqlens_k with packed tensors
    /// `[total, heads, head_dim]`, seqused_q, seqused_k and leftpad_k with any, i32 or i64.
    /// A block mask: block_mask, `[batch or 1, heads_q or 1, blocks of queries, blocks of keys]`, u8, with metadata block_q and block_k
    /// (128 unless given). Sinks: sinks, `[heads_q]`. Tensors of expressions, by name.
    pub input: PathBuf,
    /// The file for o, lse, d_q, d_k, d_v and d_sinks; an existing file is replaced when all is done.
    #[arg(long)]
    pub output: Option<PathBuf>,
    /// The passes; `both` needs d_o. Unless given: both if the file has d_o.
    #[arg(long, value_parser = passes())]
    pub pass: Option<Passes>,
    /// The device.
    #[command(flatten)]
    pub on: DeviceWords,
    /// The schedule; one that cannot run the problem is an error.
    #[arg(long, default_value = "auto", value_parser = schedule())]
    pub algorithm: Schedule,
    /// The parts of the problem that the file does not give.
    #[command(flatten)]
    pub problem: ProblemWords,
    /// Order of the backward pass's sums.
    #[arg(long, default_value = "deterministic", value_parser = order())]
    pub order: Order,
}

/// A pass is run again until this much time is measured, and at least twice.
const MEASURED: Duration = Duration::from_millis(200);

/// Reads, computes, prints, compares, writes.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let input = input::read(&arguments.input)?;
    if let Some(output) = &arguments.output {
        output::not_the_input("--output", &arguments.input, output)?;
    }
    let passes: Passes = match (arguments.pass, &input.d_o) {
        (Some(passes), None) if passes.contains(&Pass::Backward) => {
            return Err(Failure::Option(
                "--pass both needs the tensor d_o, which the file lacks".into(),
            ));
        }
        (Some(passes), _) => passes,
        (None, Some(_)) => &[Pass::Forward, Pass::Backward],
        (None, None) => &[Pass::Forward],
    };
    let builder = arguments.problem.problem(&input, &arguments.input)?;
    let problem = builder.order(arguments.order).build()?;
    let given = arguments.problem.given(&input)?;
    let device = arguments.on.device()?;
    let attention = scheduled(&device, problem, arguments.algorithm)?;
    say!(
        "input      {}: {}",
        arguments.input.display(),
        in_words(&problem)
    );
    say!("device     {device} ({})", device.why());
    if passes.contains(&Pass::Backward) && input.d_lse.is_some() {
        say!("gradients  from d_o and d_lse");
    }
    let done = compute(&attention, &input, given, passes)?;
    print_passes(&done);
    let is_another = arguments.problem.is_another(&input, &problem);
    let agrees = match (input.expected.is_empty(), is_another) {
        (true, _) => {
            say!("compared   nothing: the file holds no results");
            true
        }
        (false, true) => {
            say!(
                "compared   nothing: the options ask for another problem than the file's results answer"
            );
            true
        }
        (false, false) => print_comparison(&input, Rounding::of(&problem, device.backend()), &done),
    };
    if let Some(output) = &arguments.output {
        output::write(output, &done.results, metadata(&input, &problem, &done))?;
        say!("written    {}", output.display());
    }
    arguments.on.report_kernel_cache(&device);
    Ok(ExitCode::from(if agrees { DONE } else { DIFFERS }))
}

/// How long a pass took.
pub struct Times {
    /// By the wall clock, in milliseconds.
    wall_ms: f64,
    /// By the clock of the device, if it has one.
    device_ms: Option<f64>,
}

/// All results.
pub struct Done {
    /// What ran, and how long it took.
    pub passes: Vec<(Pass, Ran, Times)>,
    results: Vec<output::Result>,
    /// As f32, by name.
    values: HashMap<&'static str, Vec<f32>>,
}

impl Done {
    fn keep<T: Bytes>(&mut self, written: Written<T>, input: &Input) {
        for (name, elements) in written {
            let shape = input::result_shape(name, [&input.q, &input.k, &input.v]);
            self.results
                .push(output::Result::new(name, shape, &elements));
            let values = elements.iter().map(|element| element.to_f32());
            self.values.insert(name, values.collect());
        }
    }
}

/// Runs passes on a file's tensors, and times them.
pub fn compute(
    attention: &Attention,
    input: &Input,
    given: Given,
    passes: Passes,
) -> Result<Done, Failure> {
    with_element!(input.dtype, T => compute_in::<T>(attention, input, given, passes))
}

fn compute_in<T: Bytes>(
    attention: &Attention,
    input: &Input,
    given: Given,
    passes: Passes,
) -> Result<Done, Failure> {
    let mut tensors = Tensors::<T>::of_file(*attention.problem(), input, given)?;
    let mut done = Done {
        passes: Vec::new(),
        results: Vec::new(),
        values: HashMap::new(),
    };
    for &pass in passes {
        let _bar = waiting(format!("the {} pass", pass.name()));
        let (ran, wall_ms) = timed(|| tensors.run(attention, pass))?;
        let device_ms = time_on_device(attention, input, pass)?;
        done.passes.push((pass, ran, Times { wall_ms, device_ms }));
        done.keep(tensors.written(pass, StreamRef::DEFAULT)?, input);
        done.keep(tensors.written_f32(pass, StreamRef::DEFAULT)?, input);
    }
    Ok(done)
}

/// The time by the device's clock. With a block mask, sinks or expressions only the wall clock is used.
fn time_on_device(
    attention: &Attention,
    input: &Input,
    pass: Pass,
) -> Result<Option<f64>, Failure> {
    let problem = attention.problem();
    let has_edits = problem.score().is_some() || problem.mask_expression().is_some();
    match problem.block_mask().is_some() || problem.has_sinks() || has_edits {
        true => Ok(None),
        false => {
            let (algorithm, order) = (attention.algorithm(), problem.order());
            let variant = Variant {
                pass,
                algorithm,
                order,
            };
            gpu::device_ms(attention.device(), *problem, &input.lengths, &variant)
        }
    }
}

/// Runs once to warm up, then for a while; the median in milliseconds.
fn timed(
    mut call: impl FnMut() -> Result<Ran, ferroflash::Error>,
) -> Result<(Ran, f64), ferroflash::Error> {
    let start = Instant::now();
    let mut ran = call()?;
    let first = start.elapsed();
    let mut times = Vec::new();
    let measuring = Instant::now();
    // What takes seconds (the emulator) is run once.
    while first < MEASURED && (times.is_empty() || measuring.elapsed() < MEASURED) {
        let start = Instant::now();
        ran = call()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    if times.is_empty() {
        times.push(first.as_secs_f64() * 1e3);
    }
    Ok((ran, median(times)))
}

/// Prints what ran, why, and how long it took.
pub fn print_passes(done: &Done) {
    for (pass, ran, times) in &done.passes {
        let name = format!("{pass:?}").to_lowercase();
        let wall_ms = times.wall_ms;
        let time = match times.device_ms {
            Some(ms) => {
                format!("{ms:.4} ms on the device, {wall_ms:.3} ms with compiling and copies")
            }
            None => format!("{wall_ms:.3} ms"),
        };
        say!("{name:<10} {} on {}: {time}", ran.algorithm, ran.backend);
        for kernel in &ran.kernels {
            say!("           kernel {kernel}");
        }
        say!(
            "           extra memory {} bytes; standard attention would need {}",
            ran.extra_bytes,
            ran.standard_bytes
        );
        for candidate in &ran.candidates {
            say!("           {candidate}");
        }
    }
}

/// How far the results lie from the stored ones, those that are stored.
pub fn comparisons(input: &Input, rounding: Rounding, done: &Done) -> Vec<Comparison> {
    let of_result = |name| {
        let (values, stored) = (done.values.get(name)?, input.expected.get(name)?);
        Some(compare(name, rounding, values, stored))
    };
    RESULTS.into_iter().filter_map(of_result).collect()
}

/// Prints them; whether all agree.
pub fn print_comparison(input: &Input, rounding: Rounding, done: &Done) -> bool {
    say!("{}", Comparison::header());
    let comparisons = comparisons(input, rounding, done);
    for comparison in &comparisons {
        say!("{comparison}");
    }
    for name in RESULTS {
        if done.values.contains_key(name) && !input.expected.contains_key(name) {
            say!("{name:<6} not in the file");
        }
    }
    comparisons.iter().all(Comparison::agrees)
}

/// The input's metadata, with the problem that was computed and its backend.
fn metadata(input: &Input, problem: &Problem, done: &Done) -> HashMap<String, String> {
    let mut metadata = input.metadata.clone();
    let mut set = |name: &str, value: String| metadata.insert(name.to_owned(), value);
    for (name, word) in MaskWords::metadata(problem.mask()) {
        set(name, word);
    }
    set("softmax_scale", problem.scale().to_string());
    set("layout", "bshd".into());
    set("lse_layout", "bhs".into());
    let ran = done
        .passes
        .iter()
        .map(|(pass, ran, _)| format!("{pass:?}: {} on {}", ran.algorithm, ran.backend));
    set(
        "source",
        format!(
            "ferroflash {}; {}",
            env!("CARGO_PKG_VERSION"),
            ran.collect::<Vec<_>>().join("; ")
        ),
    );
    metadata
}
