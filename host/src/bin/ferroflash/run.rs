//! `ferroflash run`: attention on a file's tensors, compared with the results stored beside them.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ferroflash::arguments::Argument;
use ferroflash::{
    Attention, Dtype, Gradients, Inputs, Layout, OutputGradients, Outputs, Pass, Problem,
    ProblemBuilder, Ran, Saved, Tensor, TensorMut,
};

use crate::arguments::{Passes, RunArguments};
use crate::bench;
use crate::compare::{Comparison, compare};
use crate::failure::{DIFFERS, Failure};
use crate::input::{self, Bytes, Input, RESULTS, elements};
use crate::mask::MaskWords;
use crate::output;
use crate::print::say;

/// A pass is run again until this much time is measured, and at least twice.
const MEASURED: Duration = Duration::from_millis(200);

/// Reads, computes, prints, compares, writes.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let input = input::read(&arguments.input)?;
    if let Some(output) = &arguments.output {
        output::not_the_input(&arguments.input, output)?;
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
    let problem = problem(arguments, &input)?;
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
        Dtype::Bf16 => compute::<half::bf16>(&attention, &input, passes)?,
        Dtype::F16 => compute::<half::f16>(&attention, &input, passes)?,
        Dtype::F32 => compute::<f32>(&attention, &input, passes)?,
    };
    print_passes(&done);
    let differs = !print_comparison(&input, &problem, &done);
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

fn problem(arguments: &RunArguments, input: &Input) -> Result<Problem, Failure> {
    let mask = arguments.mask.or(input.mask).mask();
    let builder = Problem::of(
        input.dtype,
        Layout::bshd(input.q.shape)?,
        Layout::bshd(input.k.shape)?,
    )
    .head_dim_v(input.v.shape[3])
    .mask(mask.map_err(Failure::Option)?)
    .order(arguments.order.into());
    let builder = of_lengths(builder, input);
    let builder = match &input.block_mask {
        Some(map) => builder.block_mask(map.mask()),
        None => builder,
    };
    let problem = match arguments.softmax_scale.or(input.softmax_scale) {
        Some(scale) => builder.softmax_scale(scale).build()?,
        None => builder.build()?,
    };
    if let Some(map) = &input.block_mask {
        // Sizes of blocks that make no sense are the first thing to say.
        ferroflash::validate::sizes(&problem)?;
        map.fits(&problem).map_err(|what| Failure::Contents {
            path: arguments.input.clone(),
            what,
        })?;
    }
    Ok(problem)
}

/// With the lengths that the file gives: packed sides, their number of sequences and their longest one.
fn of_lengths(builder: ProblemBuilder, input: &Input) -> ProblemBuilder {
    let q = input.lengths.of_packed(Argument::CuSeqlensQ);
    let k = input.lengths.of_packed(Argument::CuSeqlensK);
    let (total_q, total_k) = (input.q.shape[1], input.k.shape[1]);
    let builder = match q {
        None => builder,
        Some((_, longest)) => builder.packed_q(total_q).seqlen_q(longest),
    };
    let builder = match k {
        None => builder,
        Some((_, longest)) => builder.packed_k(total_k).seqlen_k(longest),
    };
    // Of a side that is not packed, the batch entries count.
    match (q, k) {
        (Some((n, _)), _) => builder.batch(n),
        (None, _) => builder,
    }
}

fn in_words(problem: &Problem) -> String {
    let mask = problem.mask();
    let blocks = problem.block_mask();
    let blocks = blocks.map_or(String::new(), |blocks| format!(", {blocks}"));
    let values = match problem.head_dim_v() {
        columns if columns == problem.head_dim() => String::new(),
        columns => format!(", head_dim_v {columns}"),
    };
    format!(
        "{} q {:?} k {:?}{values}, {mask}{blocks}, softmax_scale {}",
        problem.dtype(),
        problem.shape_q(),
        problem.shape_k(),
        problem.scale()
    )
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
    passes: Passes,
) -> Result<Done, Failure> {
    let problem = attention.problem();
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let (shape_v, shape_o) = (problem.shape_v(), problem.shape_o());
    let (q, k, v): (Vec<T>, Vec<T>, Vec<T>) = (
        elements(&input.q.bytes),
        elements(&input.k.bytes),
        elements(&input.v.bytes),
    );
    let zero = T::from_f32(0.0);
    let mut o = vec![zero; shape_o.iter().product()];
    let mut lse = vec![0f32; problem.shape_lse().iter().product()];
    let inputs = input.lengths.put(Inputs::new(
        &Tensor::bshd(&q, shape_q)?,
        &Tensor::bshd(&k, input.k.shape)?,
        &Tensor::bshd(&v, input.v.shape)?,
    ));
    let inputs = match &input.block_mask {
        Some(map) => map.put(inputs),
        None => inputs,
    };

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
        let d_o: Vec<T> = elements(&stored.bytes);
        let mut of_output = OutputGradients::new(&Tensor::bshd(&d_o, stored.shape)?);
        of_output.d_lse = input.d_lse.as_ref().map(Into::into);
        let saved = Saved::new(&Tensor::bshd(&o, shape_o)?, &lse);
        let (mut d_q, mut d_k, mut d_v) = (
            vec![zero; q.len()],
            vec![zero; k.len()],
            vec![zero; v.len()],
        );
        let (ran, wall_ms) = timed(|| {
            let mut gradients = Gradients::new(
                TensorMut::bshd(&mut d_q, shape_q)?,
                TensorMut::bshd(&mut d_k, shape_k)?,
                TensorMut::bshd(&mut d_v, shape_v)?,
            );
            attention.backward(&inputs, &saved, &of_output, &mut gradients)
        })?;
        let device_ms = time_on_device(attention, input, Pass::Backward)?;
        let times = Times { wall_ms, device_ms };
        done.passes.push((Pass::Backward, ran, times));
        done.keep("d_q", &input.q.dims, &d_q);
        done.keep("d_k", &input.k.dims, &d_k);
        done.keep("d_v", &input.v.dims, &d_v);
    }
    Ok(done)
}

/// The time by the device's clock. With a block mask only that on the wall is measured.
fn time_on_device(
    attention: &Attention,
    input: &Input,
    pass: Pass,
) -> Result<Option<f64>, Failure> {
    match input.block_mask {
        Some(_) => Ok(None),
        None => bench::device_ms(attention, &input.lengths, pass),
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
fn print_comparison(input: &Input, problem: &Problem, done: &Done) -> bool {
    let stored_scale = input.softmax_scale.unwrap_or(problem.default_scale());
    if input.expected.is_empty() {
        say!("compared   nothing: the file holds no results");
        return true;
    }
    if input.mask.mask() != Ok(problem.mask()) || stored_scale != problem.scale() {
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
