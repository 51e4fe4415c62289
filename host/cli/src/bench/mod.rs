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
//! | [`beside`] | `--compare`: lines beside their predictions |

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
use ferroflash_lab::compare::HEADER;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::arguments::BenchArguments;
use crate::compare::compare;
use crate::expressions::Named;
use crate::failure::{DIFFERS, Failure};
use crate::input::Bytes;
use crate::lengths::Lengths;
use crate::print::say;
use beside::Beside;
use cases::Case;
use decode::{Pool, SharedPool};
pub use gpu::launches;
use row::Row;
pub use subject::{Effort, Variant, normal};
use subject::{Ready, Results, Subject, median};

/// Measures and prints.
pub fn bench(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    let device = arguments.on.device()?;
    eprintln!("device: {device} ({})", device.why());
    let cases = cases::cases(arguments, &device)?;
    let n_wrong = match arguments.dtype.into() {
        Dtype::Bf16 => measure_all::<half::bf16>(&cases, &device, arguments)?,
        Dtype::F16 => measure_all::<half::f16>(&cases, &device, arguments)?,
        Dtype::F32 => measure_all::<f32>(&cases, &device, arguments)?,
    };
    arguments.on.report_kernel_cache(&device);
    Ok(exit_code(n_wrong))
}

/// What the command ends with, and says, when so many variants gave wrong results.
fn exit_code(n_wrong: usize) -> ExitCode {
    if n_wrong == 0 {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "error: {n_wrong} variants gave wrong results and were not measured; their rows say which"
    );
    ExitCode::from(DIFFERS)
}

/// How many variants gave wrong results.
fn measure_all<T: Bytes>(
    cases: &[Case],
    device: &Device,
    arguments: &BenchArguments,
) -> Result<usize, Failure> {
    let bar = ProgressBar::new(cases.len() as u64).with_style(style());
    let mut beside = Beside::new(arguments, device)?;
    if !arguments.json {
        let header = beside
            .as_ref()
            .map_or_else(Row::header, |_| HEADER.to_owned());
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
    let mut n_wrong = 0;
    for case in cases {
        bar.set_message(case.in_words());
        let rows = measure(case, device, arguments, pool.as_ref(), &mut random)?;
        n_wrong += rows.iter().filter(|row| row.is_wrong()).count();
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
    beside.map_or(Ok(()), |beside| beside.write(arguments))?;
    Ok(n_wrong)
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
    if !arguments.unchecked {
        drop_wrong(&mut subject, case, &mut ready)?;
    }
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

/// Takes variants out of the measurement whose results are wrong: no time counts for a wrong answer.
fn drop_wrong<T: Bytes>(
    subject: &mut Subject<T>,
    case: &Case,
    ready: &mut [Result<Ready, Failure>],
) -> Result<(), Failure> {
    if ready.iter().all(Result::is_err) {
        return Ok(());
    }
    let mut reference = Reference::new(subject.reference(case.pass)?);
    for variant in ready.iter_mut() {
        let Ok(call) = variant else { continue };
        let results = subject.results(call)?;
        if let Err(wrong) = reference.judge(results, case.problem.dtype()) {
            *variant = Err(wrong);
        }
    }
    Ok(())
}

/// What variants' results are held to.
struct Reference {
    /// In words.
    whose: &'static str,
    results: Option<Results>,
}

impl Reference {
    /// The processor's results or, without them, those of the first variant that is judged.
    fn new(of_processor: Option<Results>) -> Reference {
        Reference {
            whose: match of_processor {
                Some(_) => "the processor's",
                None => "the first variant's",
            },
            results: of_processor,
        }
    }

    /// An error where these are others.
    fn judge(&mut self, results: Results, dtype: Dtype) -> Result<(), Failure> {
        let Some(reference) = &self.results else {
            self.results = Some(results);
            return Ok(());
        };
        let pairs = results.iter().zip(reference);
        let mut comparisons =
            pairs.map(|((name, values), (_, reference))| compare(name, dtype, values, reference));
        // Both may be as far from the truth as is allowed, in opposite directions.
        let wrong = comparisons.find(|comparison| 2.0 * comparison.allowed_rms < comparison.rms);
        wrong.map_or(Ok(()), |wrong| {
            Err(Failure::Differs(format!(
                "not measured: {} differs from {} by {:.1e} (rms), allowed {:.1e}",
                wrong.name,
                self.whose,
                wrong.rms,
                2.0 * wrong.allowed_rms
            )))
        })
    }
}

/// On a terminal only; hidden elsewhere.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}")
        .unwrap_or(ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests;
