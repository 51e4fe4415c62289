//! `ferroflash run`: attention on a file's tensors, compared with the results stored beside them.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ferroflash::{
    Attention, Dtype, Gradients, OutputGradients, Outputs, Pass, Problem, Ran, Saved, Tensor,
    TensorMut,
};

use crate::arguments::{Passes, RunArguments};
use crate::bench;
use crate::compare::{Comparison, compare};
use crate::expressions::FileGiven;
use crate::failure::{DIFFERS, Failure};
use crate::input::{self, Bytes, Input, RESULTS};
use crate::mask::MaskWords;
use crate::output;
use crate::posed::{Elements, in_words};
use crate::print::say;

/// A pass is run again until this much time is measured, and at least twice.
const MEASURED: Duration = Duration::from_millis(200);

/// Reads, computes, prints, compares, writes.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let input = input::read(&arguments.input)?;
    if let Some(output) = &arguments.output {
        output::not_the_input("--output", &arguments.input, output)?;
    }
    let passes = match (arguments.pass, &input.d_o) {
        (Some(Passes::Both), None) => {
            return Err(Failure::Option(
                "--pass both needs the tensor d_o, which the file lacks".into(),
            ));
        }
        (Some(passes), _) => passes,
        (None, Some(_)) => Passes::Both,
        (None, None) => Passes::Forward,
    };
    let builder = arguments.problem.problem(&input, &arguments.input)?;
    let problem = builder.order(arguments.order.into()).build()?;
    let given = arguments.problem.given(&input)?;
    let device = arguments.on.device()?;
    let mut attention = Attention::new(&device, problem)?;
    if let Some(algorithm) = arguments.algorithm.algorithm() {
        attention = attention.with_algorithm(algorithm);
    }
    say!(
        "input      {}: {}",
        arguments.input.display(),
        in_words(&problem)
    );
    say!("device     {device} ({})", device.why());
    if passes == Passes::Both && input.d_lse.is_some() {
        say!("gradients  from d_o and d_lse");
    }
    let done = match input.dtype {
        Dtype::Bf16 => compute::<half::bf16>(&attention, &input, &given, passes)?,
        Dtype::F16 => compute::<half::f16>(&attention, &input, &given, passes)?,
        Dtype::F32 => compute::<f32>(&attention, &input, &given, passes)?,
    };
    print_passes(&done);
    let differs = !print_comparison(arguments, &input, &problem, &done);
    if let Some(output) = &arguments.output {
        output::write(output, &done.results, metadata(&input, &problem, &done))?;
        say!("written    {}", output.display());
    }
    arguments.on.report_kernel_cache(&device);
    Ok(if differs {
        ExitCode::from(DIFFERS)
    } else {
        ExitCode::SUCCESS
    })
}

/// How long a pass took.
struct Times {
    /// By the clock on the wall, in milliseconds.
    wall_ms: f64,
    /// By the clock of the device, where it has one.
    device_ms: Option<f64>,
}

/// Everything that was computed.
struct Done {
    passes: Vec<(Pass, Ran, Times)>,
    results: Vec<output::Result>,
    /// As f32, by name.
    values: HashMap<&'static str, Vec<f32>>,
}

impl Done {
    fn keep<T: Bytes>(&mut self, name: &'static str, shape: &[usize], elements: &[T]) {
        self.results
            .push(output::Result::new(name, shape, elements));
        self.values.insert(
            name,
            elements.iter().map(|element| element.to_f32()).collect(),
        );
    }
}

fn compute<T: Bytes>(
    attention: &Attention,
    input: &Input,
    given: &FileGiven,
    passes: Passes,
) -> Result<Done, Failure> {
    let problem = attention.problem();
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let (shape_v, shape_o) = (problem.shape_v(), problem.shape_o());
    let elements = Elements::<T>::of(input);
    let inputs = elements.inputs(input, given)?;
    let zero = T::from_f32(0.0);
    let mut o = vec![zero; shape_o.iter().product()];
    let mut lse = vec![0f32; problem.shape_lse().iter().product()];

    let mut done = Done {
        passes: Vec::new(),
        results: Vec::new(),
        values: HashMap::new(),
    };
    let (ran, wall_ms) = timed(|| {
        let o = TensorMut::bshd(&mut o, shape_o)?;
        attention.forward(&inputs, &mut Outputs::new(o, &mut lse))
    })?;
    let device_ms = time_on_device(attention, input, Pass::Forward)?;
    let times = Times { wall_ms, device_ms };
    done.passes.push((Pass::Forward, ran, times));
    done.keep("o", &input::o_shape(&input.q, &input.v), &o);
    done.keep("lse", &input::lse_shape(&input.q), &lse);

    if let (Passes::Both, Some(stored)) = (passes, &input.d_o) {
        let d_o: Vec<T> = input::elements(&stored.bytes);
        let mut of_output = OutputGradients::new(&Tensor::bshd(&d_o, stored.shape)?);
        of_output.d_lse = input.d_lse.as_ref().map(Into::into);
        let saved = Saved::new(&Tensor::bshd(&o, shape_o)?, &lse);
        let (mut d_q, mut d_k, mut d_v) = (
            vec![zero; elements.q.len()],
            vec![zero; elements.k.len()],
            vec![zero; elements.v.len()],
        );
        let mut d_sinks = input.sinks.as_ref().map(|sinks| vec![0f32; sinks.len()]);
        let (ran, wall_ms) = timed(|| {
            let mut gradients = Gradients::new(
                TensorMut::bshd(&mut d_q, shape_q)?,
                TensorMut::bshd(&mut d_k, shape_k)?,
                TensorMut::bshd(&mut d_v, shape_v)?,
            );
            gradients.d_sinks = d_sinks.as_mut().map(Into::into);
            attention.backward(&inputs, &saved, &of_output, &mut gradients)
        })?;
        let device_ms = time_on_device(attention, input, Pass::Backward)?;
        let times = Times { wall_ms, device_ms };
        done.passes.push((Pass::Backward, ran, times));
        done.keep("d_q", &input.q.dims, &d_q);
        done.keep("d_k", &input.k.dims, &d_k);
        done.keep("d_v", &input.v.dims, &d_v);
        if let Some(d_sinks) = d_sinks {
            done.keep("d_sinks", &[d_sinks.len()], &d_sinks);
        }
    }
    Ok(done)
}

/// The time by the device's clock. With a block mask, sinks or expressions only that on the wall is measured.
fn time_on_device(
    attention: &Attention,
    input: &Input,
    pass: Pass,
) -> Result<Option<f64>, Failure> {
    let problem = attention.problem();
    let has_edits = problem.score().is_some() || problem.mask_expression().is_some();
    match problem.block_mask().is_some() || problem.has_sinks() || has_edits {
        true => Ok(None),
        false => bench::device_ms(attention, &input.lengths, pass),
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
        times.push(start.elapsed());
    }
    times.sort();
    let median = times.get(times.len() / 2).unwrap_or(&first);
    Ok((ran, median.as_secs_f64() * 1e3))
}

fn print_passes(done: &Done) {
    for (pass, ran, times) in &done.passes {
        let name = format!("{pass:?}").to_lowercase();
        let wall_ms = times.wall_ms;
        let time = match times.device_ms {
            Some(ms) => {
                format!("{ms:.4} ms on the device, {wall_ms:.3} ms with the copies there and back")
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

/// Prints how far the results lie from the stored ones; whether all agree.
fn print_comparison(
    arguments: &RunArguments,
    input: &Input,
    problem: &Problem,
    done: &Done,
) -> bool {
    if input.expected.is_empty() {
        say!("compared   nothing: the file holds no results");
        return true;
    }
    if arguments.problem.is_another(input, problem) {
        say!(
            "compared   nothing: the options ask for another problem than the file's results answer"
        );
        return true;
    }
    say!("{}", Comparison::header());
    let mut agree = true;
    for name in RESULTS {
        match (done.values.get(name), input.expected.get(name)) {
            (Some(values), Some(stored)) => {
                let comparison = compare(name, problem.dtype(), values, stored);
                say!("{comparison}");
                agree &= comparison.agrees();
            }
            (Some(_), None) => say!("{name:<6} not in the file"),
            (None, _) => {}
        }
    }
    agree
}

/// The input's metadata, with what was computed and by what.
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
