//! What a run says at its end.

use std::time::Duration;

use crate::training::{Speed, Training};

/// Loss, speed, and attention's part of the time.
pub fn print(training: &Training) {
    let Training {
        label,
        losses,
        held_out,
        speed,
        ..
    } = training;
    let first = losses.first().copied().unwrap_or(f32::NAN);
    let last = tail(losses);
    let held_out = held_out.last().map_or(f32::NAN, |&(_, loss)| loss);
    println!(
        "{label}: loss {first:.4} to {last:.4} (last tenth of the steps), held out {held_out:.4}"
    );
    println!("  {:.0} tokens/s", speed.tokens_per_second);
    print_attention(speed);
    if training.skipped > 0 {
        println!("  {} steps skipped", training.skipped);
    }
    if let Some(bytes) = training.peak_bytes {
        println!(
            "  at most {:.2} GiB of the GPU's memory in use, by all programs, asked every 2 ms",
            bytes as f64 / f64::from(1 << 30)
        );
    }
}

fn print_attention(speed: &Speed) {
    let share = |part: Duration| 100.0 * part.as_secs_f64() / speed.step.as_secs_f64();
    let ms = |duration: Duration| 1e3 * duration.as_secs_f64();
    println!(
        "  attention forward: {:.1} of {:.1} ms a step, {:.1} % (clock around its calls, every tenth step)",
        ms(speed.forward),
        ms(speed.step),
        share(speed.forward)
    );
    println!(
        "  attention forward and backward: {:.1} ms, {:.1} % of a step (alone on the same shapes, times layers)",
        ms(speed.both_passes),
        share(speed.both_passes)
    );
}

/// How far two loss curves lie apart.
pub struct Distance {
    pub mean: f32,
    pub largest: f32,
}

impl Distance {
    pub fn between(one: &[f32], other: &[f32]) -> Distance {
        let differences = || one.iter().zip(other).map(|(a, b)| (a - b).abs());
        let count = one.len().min(other.len()).max(1);
        Distance {
            mean: differences().sum::<f32>() / count as f32,
            largest: differences().fold(0.0, f32::max),
        }
    }
}

/// The distance between two trainings, in words.
pub fn print_distance(one: &Training, other: &Training) {
    let Distance { mean, largest } = Distance::between(&one.losses, &other.losses);
    println!(
        "|{} − {}|: mean {mean:.2e}, largest {largest:.2e} nats, over {} steps",
        one.label,
        other.label,
        one.losses.len().min(other.losses.len())
    );
}

/// The mean of the last tenth.
fn tail(losses: &[f32]) -> f32 {
    let count = (losses.len() / 10).max(1);
    let last = &losses[losses.len().saturating_sub(count)..];
    last.iter().sum::<f32>() / last.len() as f32
}
