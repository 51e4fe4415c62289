//! A whole training: steps, validation, a progress bar, and what was measured on the way.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::Device;
use indicatif::{ProgressBar, ProgressStyle};

use crate::attention::{Attention, Backend};
use crate::memory::PeakMemory;
use crate::model::Config;
use crate::optimizer::{Hyperparameters, Update};
use crate::probe;
use crate::scaling::{Change, LossScale};
use crate::text::{Sampler, Text};
use crate::trainer::{Overflow, Step, Trainer};

/// Of so many steps one has its attention calls timed. On a GPU that makes the step wait, so tokens per second are those
/// of the others.
const TIMED: usize = 10;

/// What all trainings of a run have in common.
pub struct Plan<'a> {
    pub text: &'a Text,
    pub device: &'a Device,
    pub config: Config,
    pub hyperparameters: Hyperparameters,
    pub batch: usize,
    pub seqlen: usize,
    /// Of the batches. They are the same in every training.
    pub seed: u64,
    pub patience: usize,
    pub force_overflow: Option<usize>,
    pub log_every: usize,
    pub validate_every: usize,
    pub validation_batches: usize,
}

/// A training that has ended.
pub struct Training {
    pub label: String,
    pub attention: Attention,
    pub trainer: Trainer,
    /// By step.
    pub losses: Vec<f32>,
    /// Steps done, and the held-out loss then.
    pub held_out: Vec<(usize, f32)>,
    pub skipped: usize,
    pub speed: Speed,
    pub peak_bytes: Option<usize>,
}

/// Where the time goes.
#[derive(Default)]
pub struct Speed {
    pub tokens_per_second: f64,
    /// The mean step, in the steps whose attention is timed.
    pub step: Duration,
    /// All attention calls of such a step, forward.
    pub forward: Duration,
    /// Attention alone on the same shapes, forward and backward, times the number of layers.
    pub both_passes: Duration,
}

/// Adds up durations.
#[derive(Default)]
struct Mean {
    sum: Duration,
    count: u32,
}

impl Mean {
    fn add(&mut self, duration: Duration) {
        self.sum += duration;
        self.count += 1;
    }

    fn get(&self) -> Duration {
        self.sum / self.count.max(1)
    }
}

/// Trains a model of the plan whose initial weights are made of `weights_seed`.
pub fn train(plan: &Plan, label: &str, backend: Backend, weights_seed: u64) -> Result<Training> {
    let Plan { text, device, .. } = plan;
    let steps = plan.hyperparameters.steps;
    let attention = Attention::new(backend);
    let mut trainer = Trainer::new(
        plan.config.clone(),
        plan.hyperparameters.clone(),
        plan.patience,
        weights_seed,
        device,
    )?;
    let mut batches = Sampler::new(&text.train, plan.seed);
    let validation = text.validation(plan.validation_batches, plan.batch, plan.seqlen, device)?;
    let memory = PeakMemory::watch(device);
    let bar = progress_bar(label, steps);
    let (mut losses, mut held_out) = (Vec::with_capacity(steps), Vec::new());
    let (mut timed, mut forward, mut others) = <(Mean, Mean, Mean)>::default();
    let mut skipped = 0;
    for step in 0..steps {
        let batch = batches.draw(plan.batch, plan.seqlen, device)?;
        let overflow = match plan.force_overflow {
            Some(forced) if forced == step => Overflow::Forced,
            _ => Overflow::Natural,
        };
        let is_timed = step % TIMED == (TIMED / 2).min(steps - 1);
        if is_timed {
            attention.start_clock();
        }
        let start = Instant::now();
        let done = trainer.step(&batch, &attention, overflow)?;
        device.synchronize()?;
        let elapsed = start.elapsed();
        if is_timed {
            forward.add(attention.stop_clock());
            timed.add(elapsed);
        } else if step > 0 {
            others.add(elapsed);
        }
        losses.push(done.loss);
        skipped += usize::from(done.update == Update::Skipped);
        log_scale(&bar, step, &done, trainer.loss_scale.as_ref());
        log_step(&bar, plan, step, &done);
        if (step + 1).is_multiple_of(plan.validate_every) || step + 1 == steps {
            let loss = trainer.validate(&validation, &attention)?;
            held_out.push((step + 1, loss));
            bar.suspend(|| println!("  step {:>5}  held out {loss:.4}", step + 1));
        }
    }
    bar.finish_and_clear();
    let peak_bytes = memory.and_then(PeakMemory::finish);
    let layer = probe::both_passes(&plan.config, plan.batch, plan.seqlen, &attention, device)?;
    // A training of one or two steps has no others.
    let usual = if others.count > 0 { &others } else { &timed };
    let tokens = (plan.batch * plan.seqlen) as f64;
    Ok(Training {
        label: label.to_owned(),
        attention,
        trainer,
        losses,
        held_out,
        skipped,
        speed: Speed {
            tokens_per_second: tokens / usual.get().as_secs_f64(),
            step: timed.get(),
            forward: forward.get(),
            both_passes: layer * plan.config.layers as u32,
        },
        peak_bytes,
    })
}

/// Hidden where the output is no terminal.
fn progress_bar(label: &str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    let template = "{prefix} {wide_bar} {pos}/{len}  {msg}  {elapsed} of {duration}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_prefix(label.to_owned())
}

fn log_step(bar: &ProgressBar, plan: &Plan, step: usize, done: &Step) {
    bar.set_message(format!("loss {:.3}", done.loss));
    bar.inc(1);
    let Update::Moved { norm } = done.update else {
        return;
    };
    if step.is_multiple_of(plan.log_every) {
        let rate = plan.hyperparameters.rate(step);
        bar.suspend(|| {
            println!(
                "  step {step:>5}  loss {:.4}  gradient norm {norm:.3}  learning rate {rate:.2e}",
                done.loss
            );
        });
    }
}

/// Says when a step was skipped, and what became of the loss scale.
fn log_scale(bar: &ProgressBar, step: usize, done: &Step, scale: Option<&LossScale>) {
    let scale = scale.map_or(1.0, LossScale::scale);
    let change = match (done.update, done.scale) {
        (Update::Skipped, Change::Halved) => {
            format!("a gradient is inf or NaN: step skipped, loss scale halved to {scale}")
        }
        (Update::Skipped, _) => "a gradient is inf or NaN: step skipped".to_owned(),
        (_, Change::Doubled) => format!("loss scale doubled to {scale}"),
        _ => return,
    };
    bar.suspend(|| println!("  step {step:>5}  {change}"));
}
