//! Trains a transformer on bytes, from scratch, with attention by ferroflash or by candle's own operations, and lets it
//! write some text.
//!
//! ```console
//! $ cargo run --release --example train
//! $ cargo run --release --example train -- --attention both --plot loss.svg
//! $ cargo run --release --example train --features cuda -- --preset large
//! ```
//!
//! `trainer.rs` is one step and `training.rs` all of them; `attention.rs` calls ferroflash.

mod args;
mod attention;
mod generate;
mod memory;
#[allow(dead_code, reason = "the example serve uses the rest")]
mod model;
mod optimizer;
mod plot;
mod probe;
mod report;
mod scaling;
mod text;
mod trainer;
mod training;
#[allow(dead_code, reason = "the example serve uses the rest")]
mod weights;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use args::{Args, Choice, DeviceArg, Preset, Sizes, Type};
use attention::Backend;
use candle_core::Device;
use clap::Parser;
use generate::{Past, generate};
use model::Config;
use optimizer::Hyperparameters;
use text::Text;
use training::{Plan, Training, train};

fn main() -> Result<()> {
    let args = Args::parse();
    let sizes = args.sizes();
    ensure!(
        args.force_overflow.is_none() || sizes.dtype == Type::F16,
        "--force-overflow is given; allowed: with --dtype f16 only, which has a loss scale"
    );
    ensure!(
        args.force_overflow.is_none_or(|step| step < sizes.steps),
        "--force-overflow names a step that is not trained; allowed: less than --steps ({})",
        sizes.steps
    );
    let device = match sizes.device {
        DeviceArg::Cpu => Device::Cpu,
        DeviceArg::Cuda => {
            Device::new_cuda(0).context("--device cuda: build with --features cuda")?
        }
    };
    let text = read_text(&args)?;
    text.check(sizes.seqlen)?;
    let plan = plan(&args, &sizes, &text, &device);
    introduce(&plan);
    let trainings = run(&plan, args.attention, args.seed)?;
    for training in &trainings {
        report::print(training);
    }
    compare(&trainings);
    if let Some(path) = &args.plot {
        plot::draw(path, &trainings)?;
        println!("loss curves: {}", path.display());
    }
    if let (Some(path), Some(training)) = (&args.save, trainings.first()) {
        weights::save(&training.trainer.model, path)?;
        println!("weights: {}", path.display());
    }
    match trainings.first() {
        Some(training) if args.generate > 0 => write_text(&args, training, &device),
        _ => Ok(()),
    }
}

/// The files of `--text`; by default those of the repository: its Markdown, for the large preset its Rust too.
fn read_text(args: &Args) -> Result<Text> {
    if !args.text.is_empty() {
        return Text::read(&args.text, &[".md", ".rs", ".txt"]);
    }
    // Where the example was built, or where it is started.
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = if built.is_dir() {
        built
    } else {
        PathBuf::from(".")
    };
    match args.preset {
        Preset::Small => Text::read(&[root], &[".md"]),
        Preset::Large => Text::read(&[root], &[".md", ".rs"]),
    }
}

fn plan<'a>(args: &Args, sizes: &Sizes, text: &'a Text, device: &'a Device) -> Plan<'a> {
    Plan {
        text,
        device,
        config: Config {
            layers: sizes.layers,
            heads: sizes.heads,
            head_dim: sizes.head_dim,
            positions: sizes.seqlen.max(args.prompt.len() + args.generate),
            dtype: sizes.dtype.into(),
        },
        hyperparameters: Hyperparameters {
            learning_rate: sizes.learning_rate,
            weight_decay: 0.1,
            clip: 1.0,
            warm_up: (sizes.steps / 10).min(100),
            steps: sizes.steps,
        },
        batch: sizes.batch,
        seqlen: sizes.seqlen,
        seed: args.seed,
        patience: args.scale_doubles_after,
        force_overflow: args.force_overflow,
        log_every: args.log_every,
        validate_every: args.validate_every.unwrap_or((sizes.steps / 5).max(1)),
        validation_batches: args.validation_batches,
    }
}

fn introduce(plan: &Plan) {
    let Config {
        layers,
        heads,
        head_dim,
        dtype,
        ..
    } = &plan.config;
    let Text {
        train,
        held_out,
        files,
    } = plan.text;
    println!(
        "text: {files} files, {} bytes to learn, {} held out",
        train.len(),
        held_out.len()
    );
    println!(
        "model: {layers} layers, {heads} heads of {head_dim}; {dtype:?} over f32 master weights"
    );
    println!(
        "{} steps of {} · {} bytes",
        plan.hyperparameters.steps, plan.batch, plan.seqlen
    );
}

/// One training, or for `both` and `fp8` three: the third, with other initial weights, says how much a difference means.
fn run(plan: &Plan, choice: Choice, seed: u64) -> Result<Vec<Training>> {
    let start = |label: &str, backend, weights_seed| {
        println!("training: {label}");
        train(plan, label, backend, weights_seed)
    };
    match choice {
        Choice::Ferroflash => Ok(vec![start("ferroflash", Backend::Ferroflash, seed)?]),
        Choice::Candle => Ok(vec![start("candle", Backend::Candle, seed)?]),
        Choice::Both | Choice::Fp8 => {
            let mut trainings = vec![start("ferroflash", Backend::Ferroflash, seed)?];
            let (label, other) = match choice {
                Choice::Fp8 => ("ferroflash, 8 bits", Backend::Fp8),
                _ => ("candle", Backend::Candle),
            };
            match start(label, other, seed) {
                Ok(training) => trainings.push(training),
                // Without its loss curve there is nothing to compare with: no third training either.
                Err(error) if out_of_memory(&error) => {
                    println!("{label}: out of memory ({error})");
                    return Ok(trainings);
                }
                Err(error) => return Err(error),
            }
            let label = "ferroflash, other weights";
            trainings.push(start(label, Backend::Ferroflash, seed.wrapping_add(1))?);
            Ok(trainings)
        }
    }
}

/// The driver's words, whatever candle has wrapped around them.
fn out_of_memory(error: &anyhow::Error) -> bool {
    let text = format!("{error:?}").to_lowercase();
    ["out of memory", "out_of_memory"]
        .iter()
        .any(|words| text.contains(words))
}

/// How far the curves of `both` or `fp8` lie apart, and how far two seeds do.
fn compare(trainings: &[Training]) {
    let [ours, candles, others] = trainings else {
        return;
    };
    report::print_distance(ours, candles);
    report::print_distance(ours, others);
}

fn write_text(args: &Args, training: &Training, device: &Device) -> Result<()> {
    let choice = match args.temperature as f32 {
        0.0 => generate::Choice::Greedy,
        temperature => generate::Choice::Sampled {
            temperature,
            seed: args.seed,
        },
    };
    let past = match args.no_cache {
        true => Past::Recomputed,
        false => Past::Cached,
    };
    let model = training.trainer.model.frozen()?;
    let prompt = args.prompt.as_bytes();
    let start = Instant::now();
    let attention = &training.attention;
    let bytes = generate(
        &model,
        attention,
        prompt,
        args.generate,
        choice,
        past,
        device,
    )?;
    let speed = bytes.len() as f64 / start.elapsed().as_secs_f64();
    println!(
        "generated by {}, {speed:.0} bytes/s:\n\n{}{}",
        attention.backend(),
        args.prompt,
        String::from_utf8_lossy(&bytes)
    );
    Ok(())
}
