//! `ferroflash bench`: time on random inputs, of every schedule that can run, in one process and shuffled order.
//!
//! Shapes and floating-point operations are counted as the FlashAttention papers do: heads · head_dim and
//! batch · seqlen stay the same while the length grows; 4 · batch · heads · seqlen² · head_dim operations forward,
//! half of them under a causal mask, 2.5 times as many backward. Where q and k are not of one length, one of them stands
//! for each factor of seqlen², and the triangle that a causal mask hides is as wide as the shorter one.

mod gpu;
mod host;
mod row;
mod subject;

use std::process::ExitCode;

use ferroflash::{Attention, Device, Dtype, Pass, Problem};
use ferroflash_kernels::variants::Arch;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::arguments::{AlgorithmName, BenchArguments, BenchPass, OrderName};
use crate::compare::compare;
use crate::failure::Failure;
use crate::input::Bytes;
use crate::lengths::Lengths;
use crate::mask::{MaskWords, Side};
use crate::print::say;
use row::Row;
use subject::{Effort, Ready, Results, Subject, Variant, median};

/// Measures and prints.
pub fn bench(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    let device = arguments.backend.device()?;
    eprintln!("device: {device} ({})", device.why());
    let cases = cases(arguments, &device)?;
    let bar = ProgressBar::new(cases.len() as u64).with_style(style());
    if !arguments.json {
        say!("{}", Row::header());
    }
    let mut random = SmallRng::seed_from_u64(0);
    for case in cases {
        bar.set_message(case.in_words());
        let rows = match case.problem.dtype() {
            Dtype::Bf16 => case.measure::<half::bf16>(&device, arguments, &mut random)?,
            Dtype::F16 => case.measure::<half::f16>(&device, arguments, &mut random)?,
            Dtype::F32 => case.measure::<f32>(&device, arguments, &mut random)?,
        };
        bar.suspend(|| {
            for row in rows {
                say!(
                    "{}",
                    if arguments.json {
                        row.json()
                    } else {
                        row.to_string()
                    }
                );
            }
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(ExitCode::SUCCESS)
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
    let mut subject = Subject::<T>::new(attention.device(), problem, lengths.clone(), &mut random)?;
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

/// One problem and pass, of which every variant is measured.
struct Case {
    problem: Problem,
    /// Of each sequence, where they are packed.
    lens: Vec<usize>,
    lengths: Lengths,
    pass: Pass,
    variants: Vec<Variant>,
}

impl Case {
    fn in_words(&self) -> String {
        let p = &self.problem;
        let (batch, head_dim) = (p.batch(), p.head_dim());
        format!(
            "{:?} {:?} [{batch}, {}, {}, {head_dim}] [{batch}, {}, {}, {head_dim}]",
            self.pass,
            p.mask(),
            p.seqlen_q(),
            p.heads_q(),
            p.seqlen_k(),
            p.heads_k()
        )
    }

    /// A row per variant: those that cannot run say why.
    fn measure<T: Bytes>(
        &self,
        device: &Device,
        arguments: &BenchArguments,
        random: &mut SmallRng,
    ) -> Result<Vec<Row>, Failure> {
        let mut subject = Subject::<T>::new(device, self.problem, self.lengths.clone(), random)?;
        let mut ready = Vec::new();
        for variant in &self.variants {
            ready.push(subject.prepare(variant));
        }
        drop_wrong(&mut subject, self.problem.dtype(), &mut ready)?;
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
        for ((variant, ready), times) in self.variants.iter().zip(&mut ready).zip(&mut times) {
            rows.push(match ready {
                Err(failure) => Row::failed(self, variant, device, failure),
                Ok(ready) => {
                    let host_us = subject.host_us(ready)?;
                    Row::measured(self, variant, device, ready, median(times), host_us)
                }
            });
        }
        Ok(rows)
    }
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

/// All combinations, in the order of the peers' script: head_dim, mask, length, pass.
fn cases(arguments: &BenchArguments, device: &Device) -> Result<Vec<Case>, Failure> {
    let on_gpu = device.as_cuda().is_some();
    let longest = arguments.lengths.iter().copied().max();
    let seqs = match (arguments.seqs.is_empty(), on_gpu) {
        _ if longest.is_some() => longest.into_iter().collect(),
        (false, _) => arguments.seqs.clone(),
        (true, true) => vec![512, 1024, 2048, 4096, 8192, 16384],
        (true, false) => vec![512, 1024, 2048],
    };
    let tokens = arguments
        .tokens
        .unwrap_or(if on_gpu { 16384 } else { 2048 });
    let mut cases = Vec::new();
    for &head_dim in &arguments.hdims {
        for &causal in &arguments.causal {
            for &seqlen in &seqs {
                let seqlen_k = arguments.seqlen_k.unwrap_or(seqlen);
                let mask = MaskWords {
                    causal: Some(causal == 1),
                    window_left: Some(Side(arguments.window)),
                    window_right: None,
                    prefix: arguments.prefix.filter(|_| causal == 1),
                };
                let batch = tokens.checked_div(seqlen_k).unwrap_or(1).max(1);
                let heads = arguments.width.checked_div(head_dim).unwrap_or(1).max(1);
                let builder = Problem::builder(arguments.dtype.into())
                    .batch(batch)
                    .seqlen_q(seqlen)
                    .seqlen_k(seqlen_k)
                    .heads_q(heads)
                    .heads_k(arguments.heads_k.unwrap_or(heads))
                    .head_dim(head_dim)
                    .mask(mask.mask().map_err(Failure::Option)?);
                let lens = arguments.lengths.clone();
                let (builder, lengths) = if lens.is_empty() {
                    (builder, Lengths::default())
                } else {
                    let lengths = Lengths::packed(&lens).ok_or_else(|| {
                        Failure::Option("--lengths: their sum is beyond 32 bits".into())
                    })?;
                    let total = lens.iter().sum();
                    let builder = builder.batch(lens.len()).packed_q(total).packed_k(total);
                    (builder, lengths)
                };
                for &split_kv in &arguments.split_kv {
                    let builder = match split_kv {
                        0 => builder,
                        keys => builder.split_kv(keys),
                    };
                    let problem = builder.build()?;
                    ferroflash::validate::sizes(&problem)?;
                    for pass in &arguments.passes {
                        let pass = match pass {
                            BenchPass::Fwd => Pass::Forward,
                            BenchPass::Bwd => Pass::Backward,
                        };
                        cases.push(Case {
                            problem,
                            lens: lens.clone(),
                            lengths: lengths.clone(),
                            pass,
                            variants: variants(arguments, device, pass),
                        });
                    }
                }
            }
        }
    }
    Ok(cases)
}

/// The schedules to compare, each once per order where the order makes a difference.
fn variants(arguments: &BenchArguments, device: &Device, pass: Pass) -> Vec<Variant> {
    let on_gpu = device.as_cuda().is_some();
    let on_hopper = on_gpu && Arch::Sm90a.runs_on(device.info().compute_capability);
    let algorithms = match (arguments.algorithm.is_empty(), pass) {
        (false, _) => arguments.algorithm.clone(),
        (true, _) if !on_gpu => vec![AlgorithmName::Auto],
        // The first is what the others' results are compared with.
        (true, Pass::Forward | Pass::Backward) if on_hopper => vec![
            AlgorithmName::Flash2,
            AlgorithmName::Flash3,
            AlgorithmName::Standard,
        ],
        (true, _) => vec![AlgorithmName::Flash2, AlgorithmName::Standard],
    };
    let mut variants = Vec::new();
    for algorithm in algorithms {
        let ordered = pass == Pass::Backward && on_gpu && algorithm != AlgorithmName::Standard;
        let orders = if ordered {
            arguments.order.clone()
        } else {
            vec![OrderName::Deterministic]
        };
        for order in orders {
            variants.push(Variant {
                pass,
                algorithm: algorithm.algorithm(),
                order: order.into(),
            });
        }
    }
    variants
}

/// On a terminal only; hidden elsewhere.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}")
        .unwrap_or(ProgressStyle::default_bar())
}
