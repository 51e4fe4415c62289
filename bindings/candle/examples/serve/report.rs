//! What a run says at its end: speed, the cache's use, latencies.

use std::time::Duration;

use crate::check::Checked;
use crate::engine::{Served, Sizes, StepRecord};
use crate::sequence::Sequence;

/// The tables of a run.
pub fn print(served: &Served, sizes: &Sizes) {
    let Served {
        sequences, steps, ..
    } = served;
    let seconds = served.elapsed.as_secs_f64();
    let generated: usize = sequences.iter().map(|done| done.generated().len()).sum();
    let computed: usize = steps.iter().map(|step| step.tokens).sum();
    let mixed = steps
        .iter()
        .filter(|step| step.decoding > 0 && step.decoding < step.sequences)
        .count();
    println!("requests                  {:>10}", sequences.len());
    println!("seconds                   {seconds:>10.2}");
    println!(
        "tokens generated          {generated:>10}  {:.0} a second",
        generated as f64 / seconds
    );
    println!(
        "tokens computed           {computed:>10}  {:.0} a second, prompts and repetitions included",
        computed as f64 / seconds
    );
    println!(
        "steps                     {:>10}  {mixed} of them prefill and decode",
        steps.len()
    );
    println!(
        "sequences a step          {:>10.1}",
        mean(steps, |step| step.sequences as f64)
    );
    println!("preemptions               {:>10}", served.preemptions);
    print_cache(served, sizes);
    print_latencies(sequences);
}

fn print_cache(served: &Served, sizes: &Sizes) {
    let Sizes {
        n_pages, page_size, ..
    } = *sizes;
    let pages = mean(&served.steps, |step| step.pages as f64);
    let rows = mean(&served.steps, |step| step.rows as f64);
    println!(
        "cache                     {n_pages:>10}  pages of {page_size} rows, {:.1} MiB in all layers",
        served.cache_bytes as f64 / f64::from(1 << 20)
    );
    println!(
        "pages in use              {pages:>10.1}  mean; peak {}, at the end {}",
        served.peak_pages, served.pages_left
    );
    println!(
        "rows used                 {:>9.1}%  of the pages in use",
        100.0 * rows / (pages * page_size as f64)
    );
}

fn print_latencies(sequences: &[Sequence]) {
    let first = |done: &Sequence| Some(*done.times.first()? - done.request.arrival);
    let first: Vec<Duration> = sequences.iter().filter_map(first).collect();
    let between = |done: &Sequence| -> Vec<Duration> {
        let pairs = done.times.windows(2);
        pairs.map(|pair| pair[1] - pair[0]).collect()
    };
    let between: Vec<Duration> = sequences.iter().flat_map(between).collect();
    println!("latency, ms                      p50        p90        p99        max");
    for (what, durations) in [
        ("to the first token", first),
        ("from token to token", between),
    ] {
        let durations = Sorted::new(durations);
        print!("{what:<25}");
        for percent in [50, 90, 99, 100] {
            print!(
                " {:>10.1}",
                1e3 * durations.percentile(percent).as_secs_f64()
            );
        }
        println!();
    }
}

/// What the check has found.
pub fn print_check(checked: &Checked, margin: f32) {
    let Checked {
        bytes,
        others,
        widest,
    } = checked;
    print!("checked: {bytes} bytes");
    match others {
        0 => println!(", all those of plain generation"),
        _ => println!(
            "; plain generation prefers another one {others} times, by at most {widest:.3} (allowed: {margin})"
        ),
    }
}

/// What was asked and answered.
pub fn print_texts(sequences: &[Sequence]) {
    for done in sequences {
        let text = |bytes| String::from_utf8_lossy(bytes).escape_debug().to_string();
        println!(
            "{:>4}  {} | {}",
            done.request.id,
            text(&done.request.prompt),
            text(done.generated())
        );
    }
}

fn mean(steps: &[StepRecord], of: impl Fn(&StepRecord) -> f64) -> f64 {
    steps.iter().map(of).sum::<f64>() / steps.len().max(1) as f64
}

/// Durations in their order.
pub struct Sorted(Vec<Duration>);

impl Sorted {
    pub fn new(mut durations: Vec<Duration>) -> Sorted {
        durations.sort_unstable();
        Sorted(durations)
    }

    /// The least one that so many percent of all do not exceed; 0 where there are none.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}
