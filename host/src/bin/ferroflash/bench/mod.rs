//! `ferroflash bench`: time on random inputs, of every schedule that can run, in one process and shuffled order.
//!
//! Shapes and floating-point operations are counted as the FlashAttention papers do: heads · head_dim and
//! batch · seqlen stay the same while the length grows; 4 · batch · heads · seqlen² · head_dim operations forward,
//! half of them under a causal mask, 2.5 times as many backward. Where v has another head_dim_v, 2 · (head_dim + head_dim_v)
//! stand for 4 · head_dim, and 2 · (3 · head_dim + 2 · head_dim_v) backward. Where q and k are not of one length, one of them stands
//! for each factor of seqlen², and the triangle that a causal mask hides is as wide as the shorter one.
//!
//! | file | what |
//! |---|---|
//! | [`cases`] | which problems and variants |
//! | [`subject`] | a problem's tensors, and passes on them: one of the next three |
//! | [`gpu`] | on a GPU, the L2 cache flushed before each call; for `ferroflash profile`, launch by launch |
//! | [`decode`] | on a GPU, `--decode`: from a graph of many calls |
//! | [`host`] | on the processor and the emulator |
//! | [`row`] | a line of results |
//! | [`beside`] | `--compare`: lines beside their predictions, as CSV and drawn |

mod beside;
mod cases;
mod decode;
mod gpu;
mod host;
mod row;
mod subject;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use ferroflash::{Attention, Device, Dtype, Pass, Problem};
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::arguments::BenchArguments;
use crate::compare::compare;
use crate::expressions::Named;
use crate::failure::Failure;
use crate::input::Bytes;
use crate::lengths::Lengths;
use crate::print::say;
use beside::Beside;
use cases::Case;
use decode::{Pool, SharedPool};
pub use gpu::launches;
use row::Row;
pub use row::flops;
pub use subject::{Effort, Variant, normal};
use subject::{Ready, Results, Subject, median};

/// Measures and prints.
pub fn bench(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    let device = arguments.on.device()?;
    eprintln!("device: {device} ({})", device.why());
    let cases = cases::cases(arguments, &device)?;
    match arguments.dtype.into() {
        Dtype::Bf16 => measure_all::<half::bf16>(&cases, &device, arguments)?,
        Dtype::F16 => measure_all::<half::f16>(&cases, &device, arguments)?,
        Dtype::F32 => measure_all::<f32>(&cases, &device, arguments)?,
    }
    arguments.on.report_kernel_cache(&device);
    Ok(ExitCode::SUCCESS)
}

fn measure_all<T: Bytes>(
    cases: &[Case],
    device: &Device,
    arguments: &BenchArguments,
) -> Result<(), Failure> {
    let bar = ProgressBar::new(cases.len() as u64).with_style(style());
    let mut beside = Beside::new(arguments, device)?;
    if !arguments.json {
        let header = beside
            .as_ref()
            .map_or_else(Row::header, |_| Beside::header());
        say!("{header}");
    }
    let mut random = SmallRng::seed_from_u64(0);
    let pool = match device.as_cuda() {
        Some(cuda) if arguments.decode => {
            let pool = Pool::<T>::new(cuda, cases, &mut random)?;
            Some(Arc::new(Mutex::new(pool)))
        }
        _ => None,
    };
    for case in cases {
        bar.set_message(case.in_words());
        let rows = measure(case, device, arguments, pool.as_ref(), &mut random)?;
        bar.suspend(|| {
            for row in rows {
                let line = match (&mut beside, arguments.json) {
                    (Some(beside), json) => beside.add(&row, json)?,
                    (None, true) => row.json(),
                    (None, false) => row.to_string(),
                };
                say!("{line}");
            }
            Ok::<(), Failure>(())
        })?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    beside.map_or(Ok(()), |beside| beside.write(arguments))
}

/// Milliseconds of one pass by the device's own clock, on random tensors of its memory; `None` where there is no GPU.
pub fn device_ms(
    attention: &Attention,
    lengths: &Lengths,
    pass: Pass,
) -> Result<Option<f64>, Failure> {
    let problem = *attention.problem();
    match problem.dtype() {
        Dtype::Bf16 => device_ms_of::<half::bf16>(attention, problem, lengths, pass),
        Dtype::F16 => device_ms_of::<half::f16>(attention, problem, lengths, pass),
        Dtype::F32 => device_ms_of::<f32>(attention, problem, lengths, pass),
    }
}

fn device_ms_of<T: Bytes>(
    attention: &Attention,
    problem: Problem,
    lengths: &Lengths,
    pass: Pass,
) -> Result<Option<f64>, Failure> {
    if attention.device().as_cuda().is_none() {
        return Ok(None);
    }
    let mut random = SmallRng::seed_from_u64(0);
    let mut subject = Subject::<T>::new(
        attention.device(),
        problem,
        lengths.clone(),
        Named::default(),
        &mut random,
    )?;
    let variant = Variant {
        pass,
        algorithm: attention.algorithm(),
        order: problem.order(),
    };
    let mut ready = subject.prepare(&variant)?;
    let brief = Effort {
        warm_up_ms: 15,
        rep_ms: 20,
    };
    subject.round(&mut ready, brief).map(Some)
}

/// A row per variant: those that cannot run say why.
fn measure<T: Bytes>(
    case: &Case,
    device: &Device,
    arguments: &BenchArguments,
    pool: Option<&SharedPool<T>>,
    random: &mut SmallRng,
) -> Result<Vec<Row>, Failure> {
    let mut subject = match pool {
        None => Subject::<T>::new(
            device,
            case.problem,
            case.lengths.clone(),
            case.named,
            random,
        )?,
        Some(pool) => match decode::Tensors::new(device, case, pool, random) {
            Ok(tensors) => Subject::Decode(Box::new(tensors)),
            Err(skipped) => {
                let rows = case.variants.iter();
                let rows = rows.map(|variant| Row::failed(case, variant, device, &skipped));
                return Ok(rows.collect());
            }
        },
    };
    let mut ready = Vec::new();
    for variant in &case.variants {
        ready.push(subject.prepare(variant));
    }
    drop_wrong(&mut subject, case.problem.dtype(), &mut ready)?;
    let mut times = vec![Vec::new(); ready.len()];
    let effort = Effort {
        warm_up_ms: arguments.warm_up,
        rep_ms: arguments.rep,
    };
    for _ in 0..arguments.rounds.max(1) {
        let mut order: Vec<usize> = (0..ready.len()).collect();
        order.shuffle(random);
        for idx in order {
            if let Ok(ready) = &mut ready[idx] {
                times[idx].push(subject.round(ready, effort)?);
            }
        }
    }
    let mut rows = Vec::new();
    for ((variant, ready), times) in case.variants.iter().zip(&mut ready).zip(&mut times) {
        rows.push(match ready {
            Err(failure) => Row::failed(case, variant, device, failure),
            Ok(ready) => {
                let host_us = subject.host_us(ready)?;
                Row::measured(case, variant, device, ready, median(times), host_us)
            }
        });
    }
    Ok(rows)
}

/// Takes variants out of the measurement whose results differ from those of the first: no time counts for a wrong
/// answer.
fn drop_wrong<T: Bytes>(
    subject: &mut Subject<T>,
    dtype: Dtype,
    ready: &mut [Result<Ready, Failure>],
) -> Result<(), Failure> {
    let mut first: Option<Results> = None;
    for variant in ready.iter_mut() {
        let Ok(call) = variant else { continue };
        let results = subject.results(call)?;
        let Some(first) = &first else {
            first = Some(results);
            continue;
        };
        let comparisons = results
            .iter()
            .zip(first)
            .map(|((name, values), (_, reference))| compare(name, dtype, values, reference));
        // Both may be as far from the truth as is allowed, in opposite directions.
        let wrong = comparisons
            .into_iter()
            .find(|comparison| 2.0 * comparison.allowed_rms < comparison.rms);
        if let Some(wrong) = wrong {
            *variant = Err(Failure::Option(format!(
                "not measured: {} differs from the first variant's by {:.1e} (rms), allowed {:.1e}",
                wrong.name,
                wrong.rms,
                2.0 * wrong.allowed_rms
            )));
        }
    }
    Ok(())
}

/// On a terminal only; hidden elsewhere.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}")
        .unwrap_or(ProgressStyle::default_bar())
}
