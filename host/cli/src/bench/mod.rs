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
//! | [`arguments`] | options |
//! | [`cases`] | which problems and variants |
//! | [`subject`] | what is measured: passes on a problem's tensors, by one of the next three |
//! | [`gpu`] | on a GPU, the L2 cache flushed before each call; for `ferroflash profile`, launch by launch |
//! | [`decode`] | on a GPU, `--decode`: from a graph of many calls |
//! | [`host`] | on the processor and the emulator |
//! | [`row`] | a line of results |
//! | [`beside`] | `--compare`: lines beside their predictions |
//! | [`report`] | `--report`: a page with a chart, a table and the machine |

pub mod arguments;
mod beside;
mod cases;
mod decode;
pub mod gpu;
mod host;
mod report;
mod row;
mod subject;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use ferroflash::Device;
use ferroflash_lab::compare::HEADER;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::compare::{Rounding, compare};
use crate::failure::{DIFFERS, DONE, Failure};
use crate::input::{Bytes, with_element};
use crate::output;
use crate::print::{HEADING, error, progress, say};
use crate::tensors::Tensors;
use arguments::BenchArguments;
use beside::Beside;
use cases::Case;
use decode::{Decode, Pool, SharedPool};
use gpu::OnGpu;
use host::OnHost;
use report::Report;
use row::{Check, Row};
pub use subject::{Effort, Variant, median, scheduled};
use subject::{Ready, Results, Subject, compared};

/// Measures and prints.
pub fn bench(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    let device = arguments.on.device()?;
    eprintln!("device: {device} ({})", device.why());
    let done = on(arguments, &device)?;
    arguments.on.report_kernel_cache(&device);
    Ok(done)
}

/// Measures on a device, whatever the options say of one.
pub fn on(arguments: &BenchArguments, device: &Device) -> Result<ExitCode, Failure> {
    let cases = cases::cases(arguments, device)?;
    let report = match &arguments.report {
        Some(_) => Some(Report::new(arguments, device)?),
        None => None,
    };
    let rows = with_element!(arguments.dtype, T => measure_all::<T>(&cases, device, arguments))?;
    let n_wrong = rows.iter().filter(|row| row.is_wrong()).count();
    let mut agrees = true;
    if let (Some(report), Some(path)) = (report, &arguments.report) {
        agrees = report.agrees();
        output::replace(path, report.html(&rows)?.as_bytes())?;
    }
    Ok(exit_code(n_wrong, agrees))
}

/// What the command ends with, and says, when so many variants gave wrong results, and when a report's small input agrees with float64 or not.
fn exit_code(n_wrong: usize, agrees: bool) -> ExitCode {
    if 0 < n_wrong {
        error(format_args!(
            "variants that gave wrong results and were not measured: {n_wrong}; their rows say which"
        ));
    }
    if !agrees {
        error("results of a small input differ from float64's; the report says which");
    }
    ExitCode::from(if n_wrong == 0 && agrees {
        DONE
    } else {
        DIFFERS
    })
}

/// A row for each variant of each case, printed as it is measured.
fn measure_all<T: Bytes>(
    cases: &[Case],
    device: &Device,
    arguments: &BenchArguments,
) -> Result<Vec<Row>, Failure> {
    let bar = progress(cases.len());
    let mut beside = Beside::new(arguments, device)?;
    if !arguments.json {
        let header = beside
            .as_ref()
            .map_or_else(Row::header, |_| HEADER.to_owned());
        say!("{HEADING}{header}{HEADING:#}");
    }
    let mut random = SmallRng::seed_from_u64(0);
    let pool = match device.as_cuda() {
        Some(cuda) if arguments.decode => {
            let pool = Pool::<T>::new(cuda, cases, &mut random)?;
            Some(Arc::new(Mutex::new(pool)))
        }
        _ => None,
    };
    let mut all = Vec::new();
    for case in cases {
        bar.set_message(case.in_words());
        let rows = measure(case, device, arguments, pool.as_ref(), &mut random)?;
        bar.suspend(|| {
            for row in &rows {
                let line = match (&mut beside, arguments.json) {
                    (Some(beside), json) => beside.add(row, json)?,
                    (None, true) => row.json(),
                    (None, false) => row.to_string(),
                };
                say!("{line}");
            }
            Ok::<(), Failure>(())
        })?;
        all.extend(rows);
        bar.inc(1);
    }
    bar.finish_and_clear();
    beside.map_or(Ok(()), |beside| beside.write(arguments))?;
    Ok(all)
}

/// A row per variant: those that cannot run say why.
fn measure<T: Bytes>(
    case: &Case,
    device: &Device,
    arguments: &BenchArguments,
    pool: Option<&SharedPool<T>>,
    random: &mut SmallRng,
) -> Result<Vec<Row>, Failure> {
    let (problem, lengths, named) = (case.problem, &case.lengths, case.named);
    if let Some(pool) = pool {
        return match Decode::new(device, case, pool, random) {
            Ok(subject) => measure_on(subject, case, device, arguments, random),
            Err(skipped) => {
                let rows = case.variants.iter();
                let rows = rows.map(|variant| Row::failed(case, variant, device, &skipped));
                Ok(rows.collect())
            }
        };
    }
    if device.as_cuda().is_some() {
        let subject = OnGpu::<T>::new(device, problem, lengths, named, random)?;
        return measure_on(subject, case, device, arguments, random);
    }
    let tensors = Tensors::<T>::random(problem, lengths, named, random, None)?;
    let subject = OnHost::new(device, tensors)?;
    measure_on(subject, case, device, arguments, random)
}

fn measure_on<T: Bytes, S: Subject<T>>(
    mut subject: S,
    case: &Case,
    device: &Device,
    arguments: &BenchArguments,
    random: &mut SmallRng,
) -> Result<Vec<Row>, Failure> {
    let variants = case.variants.iter();
    let mut ready: Vec<_> = variants.map(|variant| subject.prepare(variant)).collect();
    let checks = match arguments.unchecked {
        true => vec![None; ready.len()],
        false => drop_wrong(&mut subject, case, device, &mut ready)?,
    };
    let mut times = vec![Vec::new(); ready.len()];
    for _ in 0..arguments.rounds.max(1) {
        let mut order: Vec<usize> = (0..ready.len()).collect();
        order.shuffle(random);
        for idx in order {
            if let Ok(ready) = &mut ready[idx] {
                times[idx].push(subject.round(&mut ready.call, arguments.effort)?);
            }
        }
    }
    let mut rows = Vec::new();
    let variants = case.variants.iter().zip(checks);
    for (((variant, check), ready), times) in variants.zip(ready).zip(times) {
        rows.push(match ready {
            Err(failure) => Row::failed(case, variant, device, &failure),
            Ok(ready) => {
                let measured = row::Measured {
                    ms: median(times),
                    extra_bytes: ready.extra_bytes,
                    host_us: subject.host_us(&ready.call)?,
                    n_views: subject.n_views(),
                    check,
                };
                Row::measured(case, variant, device, ready.algorithm, measured)
            }
        });
    }
    Ok(rows)
}

/// Takes variants out of the measurement whose results are wrong: no time counts for a wrong answer. Returns the worst result of each other variant.
fn drop_wrong<T: Bytes, S: Subject<T>>(
    subject: &mut S,
    case: &Case,
    device: &Device,
    ready: &mut [Result<Ready<S::Call>, Failure>],
) -> Result<Vec<Option<Check>>, Failure> {
    let mut checks = vec![None; ready.len()];
    if ready.iter().all(Result::is_err) {
        return Ok(checks);
    }
    let mut reference = Reference::new(subject.reference(case.pass)?.map(compared));
    for (variant, check) in ready.iter_mut().zip(&mut checks) {
        let Ok(Ready { call, .. }) = variant else {
            continue;
        };
        let results = compared(subject.results(call)?);
        match reference.judge(results, Rounding::of(&case.problem, device.backend())) {
            Ok(worst) => *check = worst,
            Err(wrong) => *variant = Err(wrong),
        }
    }
    Ok(checks)
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

    /// The result with the largest error relative to what is allowed, if there is a reference; an error if it exceeds that.
    fn judge(&mut self, results: Results, rounding: Rounding) -> Result<Option<Check>, Failure> {
        let Some(reference) = &self.results else {
            self.results = Some(results);
            return Ok(None);
        };
        let pairs = results.iter().zip(reference);
        let checks = pairs.map(|((name, values), (_, reference))| {
            let comparison = compare(name, rounding, values, reference);
            Check {
                name,
                rms: comparison.rms,
                // Both may be as far from the truth as is allowed, in opposite directions.
                allowed_rms: 2.0 * comparison.allowed_rms,
            }
        });
        // Equal results use nothing of what is allowed, even if nothing is allowed.
        let used = |check: &Check| match check.rms == 0.0 {
            true => 0.0,
            false => check.rms / check.allowed_rms,
        };
        let worst = checks.max_by(|a, b| used(a).total_cmp(&used(b)));
        match worst {
            Some(check) if 1.0 < used(&check) => Err(Failure::Differs(format!(
                "not measured: {} differs from {} by {:.1e} (rms), allowed {:.1e}",
                check.name, self.whose, check.rms, check.allowed_rms
            ))),
            within => Ok(within),
        }
    }
}

#[cfg(test)]
mod tests;
