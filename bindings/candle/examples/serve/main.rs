//! Serves a small transformer as an engine does: requests come at random times, share batches, and share a cache in pages. Every
//! answer is compared byte by byte with plain generation; a difference ends the program with exit code 1.
//!
//! ```console
//! $ cargo run --release --example serve
//! $ cargo run --release --example serve -- --pages 16 --rate 1000    # a full pool: sequences wait and are preempted
//! $ cargo run --release --example serve --features cuda -- --device cuda --requests 500 --rate 100
//! ```
//!
//! `engine.rs` is the loop, `scheduler.rs` says who runs, `pages.rs` who has which pages, and `forward.rs` is one step: append with
//! rotary embedding, then attention over pages. The model is that of the example `train`.

mod args;
#[allow(dead_code, reason = "its clock is the training's")]
#[path = "../train/attention.rs"]
mod attention;
mod check;
mod engine;
mod forward;
#[allow(dead_code, reason = "a part of it is the training's")]
#[path = "../train/model.rs"]
mod model;
mod pages;
mod report;
mod scheduler;
mod sequence;
#[allow(dead_code, reason = "a part of it is the training's")]
#[path = "../train/weights.rs"]
mod weights;
mod workload;

use anyhow::{Context, Result};
use args::{Args, DeviceArg};
use candle_core::Device;
use clap::Parser;

/// Two layers of three heads of 32, in bf16: what `train --layers 2 --heads 3 --head-dim 32 --save` writes.
const WEIGHTS: &[u8] = include_bytes!("weights.safetensors");

fn main() -> Result<()> {
    let args = Args::parse();
    let device = match args.device {
        DeviceArg::Cpu => Device::Cpu,
        DeviceArg::Cuda => {
            Device::new_cuda(0).context("--device cuda: build with --features cuda")?
        }
    };
    let (workload, sizes) = (args.workload(), args.sizes());
    let file = match &args.weights {
        Some(path) => &std::fs::read(path).with_context(|| path.display().to_string())?,
        None => WEIGHTS,
    };
    let model = weights::load(file, workload.most_rows(), args.dtype(), &device)?;
    let config = model.config();
    println!(
        "model: {} layers, {} heads of {}; {:?}",
        config.layers, config.heads, config.head_dim, config.dtype
    );
    let served = engine::serve(&model, &workload.requests(), &sizes, &device)?;
    if args.texts {
        report::print_texts(&served.sequences);
    }
    report::print(&served, &sizes);
    let checked = check::check(&model, &served.sequences, args.margin(), &device)?;
    report::print_check(&checked, args.margin());
    Ok(())
}
