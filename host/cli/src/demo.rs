//! `ferroflash demo`: attention on a small input of the command's own, checked against float64, then a longer one measured.

mod exact;

use std::collections::HashMap;
use std::process::ExitCode;

use clap::{Args, Parser};
use ferroflash::{Attention, Backend, Device, Dtype, Mask, Pass, Precision, Problem};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::arguments::{Arguments, Command};
use crate::bench;
use crate::compare::{Comparison, Rounding};
use crate::device::DeviceWords;
use crate::expressions::Given;
use crate::failure::{DIFFERS, DONE, Failure};
use crate::input::{Bytes, Input, Lengths, Stored, with_element};
use crate::mask::MaskWords;
use crate::posed::in_words;
use crate::print::{LITERAL, say, waiting};
use crate::run::{Done, comparisons, compute, print_comparison, print_passes};
use crate::tensors::normal;
use exact::{Sizes, exact};

/// Options of `demo`.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// What runs it.
    #[command(flatten)]
    pub on: DeviceWords,
}

/// Two query heads share a key head. The emulator is slow and gets few rows.
const SMALL: Sizes = Sizes {
    seqlen: 512,
    heads_q: 4,
    heads_k: 2,
    head_dim: 64,
};
const SMALL_EMULATED: Sizes = Sizes {
    seqlen: 96,
    heads_q: 2,
    heads_k: 1,
    ..SMALL
};

/// What is measured: some seconds of a GPU, and of a processor.
const LONG_ON_GPU: &str = "ferroflash bench --seqs 8192 --hdims 128 --causal 1 --order deterministic --rounds 1 --unchecked";
const LONG_ON_CPU: &str =
    "ferroflash bench --seqs 1024 --tokens 1024 --width 1024 --hdims 128 --causal 1 --rounds 1";

/// Runs, checks, measures.
pub fn demo(arguments: &DemoArguments) -> Result<ExitCode, Failure> {
    let device = arguments.on.device()?;
    say!("1/2 A small input, forward and backward, checked against attention in float64");
    let agrees = check(&device)?;
    let measured = match device.backend() {
        Backend::Cuda => Some(LONG_ON_GPU),
        Backend::Cpu => Some(LONG_ON_CPU),
        Backend::Emulated => None,
    };
    match measured {
        Some(line) => {
            say!("\n2/2 A longer input, measured: {LITERAL}{line}{LITERAL:#}");
            measure(line, &device)?;
        }
        None => say!("\n2/2 Nothing is measured: the emulator's time says nothing of a GPU's"),
    }
    arguments.on.report_kernel_cache(&device);
    say!(
        "\nNext: {LITERAL}ferroflash bench --report report.html{LITERAL:#} measures more and writes a page."
    );
    Ok(ExitCode::from(if agrees { DONE } else { DIFFERS }))
}

/// Runs both passes on random tensors and prints what ran, why, and how far the results are from float64's; whether all agree.
fn check(device: &Device) -> Result<bool, Failure> {
    let Small {
        problem,
        rounding,
        input,
        done,
    } = Small::run(device, Dtype::Bf16, Precision::default())?;
    say!("input      random, {}", in_words(&problem));
    say!("device     {device} ({})", device.why());
    print_passes(&done);
    Ok(print_comparison(&input, rounding, &done))
}

/// The small input, and what a device gave for it.
pub struct Small {
    /// Causal attention.
    pub problem: Problem,
    /// How its products are rounded.
    pub rounding: Rounding,
    /// Random tensors, and float64's results.
    pub input: Input,
    /// What ran.
    pub done: Done,
}

impl Small {
    /// Runs both passes on tensors of this type.
    pub fn run(device: &Device, dtype: Dtype, precision: Precision) -> Result<Small, Failure> {
        let sizes = match device.backend() {
            Backend::Emulated => SMALL_EMULATED,
            _ => SMALL,
        };
        let problem = Problem::builder(dtype)
            .seqlen(sizes.seqlen)
            .heads_q(sizes.heads_q)
            .heads_k(sizes.heads_k)
            .head_dim(sizes.head_dim)
            .mask(Mask::Causal)
            .precision(precision)
            .build()?;
        let input = with_element!(dtype, T => input::<T>(&problem, sizes))?;
        let attention = Attention::new(device, problem)?;
        let passes = &[Pass::Forward, Pass::Backward];
        let done = compute(&attention, &input, Given::default(), passes)?;
        Ok(Small {
            problem,
            rounding: Rounding::of(&problem, device.backend()),
            input,
            done,
        })
    }

    /// How far the results are from float64's.
    pub fn comparisons(&self) -> Vec<Comparison> {
        comparisons(&self.input, self.rounding, &self.done)
    }
}

/// Random tensors of a causal problem, and what float64 gives for them.
fn input<T: Bytes>(problem: &Problem, sizes: Sizes) -> Result<Input, Failure> {
    let _bar = waiting("the reference in float64");
    let mut random = SmallRng::seed_from_u64(0);
    let mut tensor = |shape: [usize; 4]| normal::<T>(shape.iter().product(), &mut random);
    let (shape_q, shape_k) = (problem.shape_q(), problem.shape_k());
    let (q, d_o) = (tensor(shape_q)?, tensor(shape_q)?);
    let (k, v) = (tensor(shape_k)?, tensor(shape_k)?);
    let wide = |tensor: &Vec<T>| tensor.iter().map(|x| f64::from(x.to_f32())).collect();
    let scale = f64::from(problem.scale());
    let expected = exact(sizes, scale, [&q, &k, &v, &d_o].map(wide));
    let stored = |tensor: &[T], shape: [usize; 4]| Stored {
        dims: shape.to_vec(),
        shape,
        bytes: bytemuck::cast_slice(tensor).to_vec(),
    };
    Ok(Input {
        dtype: problem.dtype(),
        q: stored(&q, shape_q),
        k: stored(&k, shape_k),
        v: stored(&v, shape_k),
        d_o: Some(stored(&d_o, shape_q)),
        d_lse: None,
        lengths: Lengths::default(),
        block_mask: None,
        sinks: None,
        others: HashMap::new(),
        expected,
        metadata: HashMap::new(),
        mask: MaskWords::default(),
        softmax_scale: None,
    })
}

/// Runs this command line of `ferroflash bench` on the device.
fn measure(line: &str, device: &Device) -> Result<(), Failure> {
    let parsed = Arguments::try_parse_from(line.split(' '));
    let parsed = parsed.map_err(|error| Failure::Option(error.to_string()))?;
    match parsed.command {
        Command::Bench(arguments) => bench::on(&arguments, device).map(|_| ()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_parses() {
        for line in [LONG_ON_GPU, LONG_ON_CPU] {
            let parsed = Arguments::try_parse_from(line.split(' ')).expect("it parses");
            assert!(matches!(parsed.command, Command::Bench(_)));
        }
    }
}
