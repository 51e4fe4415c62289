//! A profile as tables and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::{Kernel, OfPass, Profile};
use crate::estimate::Gpu;
use crate::words::{flops, sizes};

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        let (major, minor) = device.compute_capability;
        writeln!(
            f,
            "GPU       {}: compute capability {major}.{minor}, {} SMs",
            device.name, device.n_sms
        )?;
        if let Err(error) = &self.gpu {
            writeln!(f, "          no peaks: {error}")?;
        }
        let problem = &self.problem;
        writeln!(
            f,
            "problem   {}, {}, {:?}",
            sizes(problem),
            problem.mask(),
            problem.order()
        )?;
        for pass in &self.passes {
            write_pass(f, pass, self.gpu.as_ref().ok())?;
        }
        Ok(())
    }
}

fn write_pass(f: &mut fmt::Formatter<'_>, pass: &OfPass, gpu: Option<&Gpu>) -> fmt::Result {
    writeln!(
        f,
        "\n{} with {}",
        pass.plan.pass.name(),
        pass.plan.algorithm
    )?;
    write_kernels(f, pass)?;
    let measured = pass.call_ms.map(|ms| ms / 1e3);
    let needed = flops(&pass.plan.problem, pass.plan.pass, &[]);
    let rate = |flops: f64| {
        let rate = flops / measured?;
        let of_peak = gpu.and_then(|gpu| gpu.peak(pass.plan.problem.dtype()).ok());
        let share = of_peak.map_or(String::new(), |peak| {
            format!(", {:.1} % of {}", 100.0 * rate / peak, peak / 1e12)
        });
        Some(format!(": {:.1} TFLOP/s{share}", rate / 1e12))
    };
    writeln!(
        f,
        "FLOPs     {:.1} G as the papers count{}",
        needed / 1e9,
        rate(needed).unwrap_or_default()
    )?;
    if let Some(one) = &pass.estimate {
        let executed = one.flops() as f64;
        writeln!(
            f,
            "          {:.1} G executed, in whole blocks{}",
            executed / 1e9,
            rate(executed).unwrap_or_default()
        )?;
        let bytes = one.hbm_bytes() as f64;
        let speed = measured.zip(gpu).map_or(String::new(), |(seconds, gpu)| {
            let (rate, peak) = (bytes / seconds, gpu.bandwidth);
            let share = 100.0 * rate / peak;
            format!(": {:.0} GB/s, {share:.1} % of {}", rate / 1e9, peak / 1e9)
        });
        writeln!(f, "HBM       {:.1} MB by count{speed}", bytes / 1e6)?;
        let beside = measured.map_or(String::new(), |seconds| {
            let ratio = seconds / one.seconds;
            format!(
                "; measured {:.1} µs, {ratio:.2} times as long",
                seconds * 1e6
            )
        });
        writeln!(
            f,
            "roof      {}: predicted {:.1} µs{beside}",
            one.roof,
            one.seconds * 1e6
        )?;
    } else if gpu.is_some() {
        writeln!(
            f,
            "roof      not estimated: the problem or the schedule is one that is not counted"
        )?;
    }
    write_idle(f, pass)
}

/// The idle fraction of the main kernel's time.
fn write_idle(f: &mut fmt::Formatter<'_>, pass: &OfPass) -> fmt::Result {
    match &pass.timeline {
        Err(reason) => writeln!(f, "idle      not simulated: {reason}")?,
        Ok(timeline) => {
            let idle = timeline.idle();
            writeln!(
                f,
                "idle      {:.1} % of the main kernel, simulated: {:.1} % beginnings and ends of tiles, {:.1} % waits at semaphores, {:.1} % without a tile",
                100.0 * idle.all(),
                100.0 * idle.edges,
                100.0 * idle.waits,
                100.0 * idle.without_tile
            )?;
        }
    }
    match &pass.measured {
        None => {}
        Some(Err(reason)) => writeln!(f, "          no time stamps: {reason}")?,
        Some(Ok(measured)) => writeln!(
            f,
            "          {:.1} % without a tile by time stamps of {}: {:.1} µs on {} SMs at {:.2} GHz, in ticks of {} ns",
            100.0 * measured.without_tile(),
            measured.kernel,
            measured.end() as f64 / 1e3,
            measured.n_sms(),
            measured.clock_ghz,
            measured.tick_ns
        )?,
    }
    Ok(())
}

/// A row for each launch.
fn write_kernels(f: &mut fmt::Formatter<'_>, pass: &OfPass) -> fmt::Result {
    let label = |kernel: &Kernel| kernel.launch.kernel().to_string();
    let labels = pass.kernels.iter().map(|one| label(one).chars().count());
    let width = labels.max().unwrap_or(0).max("the call as a whole".len());
    let counted = pass.kernels.iter().any(|one| one.counters.is_some());
    let more = match counted {
        true => format!(" {:>9} {:>9} {:>9}", "tensor %", "read MB", "write MB"),
        false => String::new(),
    };
    writeln!(
        f,
        "{:<width$}        µs share %     grid  threads   shared registers  blocks/SM{more}",
        "kernel"
    )?;
    let sum = pass.sum_ms();
    let us = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{:.1}", ms * 1e3));
    for kernel in &pass.kernels {
        let tile_config = &kernel.launch.variant.tile_config;
        let share = kernel.ms.zip(sum).map(|(ms, sum)| 100.0 * ms / sum);
        let registers = kernel.compiled.as_ref().map(|one| one.registers);
        let more = kernel.counters.map_or(String::new(), |counters| {
            let (read, written) = (counters.read_bytes / 1e6, counters.written_bytes / 1e6);
            format!(
                " {:>9.1} {read:>9.1} {written:>9.1}",
                counters.tensor_percent
            )
        });
        writeln!(
            f,
            "{:<width$} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9} {:>10}{more}",
            label(kernel),
            us(kernel.ms),
            share.map_or("-".to_owned(), |share| format!("{share:.1}")),
            kernel.launch.grid,
            tile_config.threads,
            tile_config.shared_bytes,
            registers.map_or("-".to_owned(), |n| n.to_string()),
            kernel.blocks_per_sm()
        )?;
    }
    if let (Some(_), Some(call)) = (sum, pass.call_ms) {
        writeln!(f, "{:<width$} {:>9}", "sum of launches", us(sum))?;
        writeln!(f, "{:<width$} {:>9}", "the call as a whole", us(Some(call)))?;
    }
    Ok(())
}

impl Profile {
    /// One object per pass.
    pub fn json(&self) -> Vec<Value> {
        let passes = self.passes.iter();
        passes.map(|pass| of_pass(self, pass)).collect()
    }
}

fn of_pass(profile: &Profile, pass: &OfPass) -> Value {
    let problem = &profile.problem;
    let gpu = profile.gpu.as_ref().ok();
    let estimate = pass.estimate.as_ref();
    let idle = pass.timeline.as_ref().map(|timeline| {
        let idle = timeline.idle();
        json!({
            "share": idle.all(),
            "edges": idle.edges,
            "waits": idle.waits,
            "without_tile": idle.without_tile,
        })
    });
    let measured = pass.measured.as_ref().and_then(|one| one.as_ref().ok());
    let profiled = measured.map(|measured| {
        json!({
            "kernel": measured.kernel,
            "without_tile": measured.without_tile(),
            "ns": measured.end(),
            "tick_ns": measured.tick_ns,
            "sms": measured.n_sms(),
            "clock_ghz": measured.clock_ghz,
        })
    });
    let not_profiled = pass.measured.as_ref().and_then(|one| one.as_ref().err());
    json!({
        "gpu": profile.device.name,
        "dtype": problem.dtype().to_string(),
        "batch": problem.batch(),
        "heads_q": problem.heads_q(),
        "heads_k": problem.heads_k(),
        "seqlen_q": problem.seqlen_q(),
        "seqlen_k": problem.seqlen_k(),
        "head_dim": problem.head_dim(),
        "head_dim_v": problem.head_dim_v(),
        "mask": problem.mask().to_string(),
        "order": format!("{:?}", problem.order()),
        "pass": pass.plan.pass.name(),
        "algorithm": pass.plan.algorithm.name(),
        "kernels": pass.kernels.iter().map(of_kernel).collect::<Vec<_>>(),
        "sum_ms": pass.sum_ms().filter(|_| pass.call_ms.is_some()),
        "ms": pass.call_ms,
        "flops": flops(problem, pass.plan.pass, &[]),
        "peak_flops": gpu.and_then(|gpu| gpu.peak(problem.dtype()).ok()),
        "bandwidth": gpu.map(|gpu| gpu.bandwidth),
        "executed_flops": estimate.map(|one| one.flops()),
        "hbm_bytes": estimate.map(|one| one.hbm_bytes()),
        "bound_by": estimate.map(|one| one.roof.name()),
        "predicted_ms": estimate.map(|one| one.seconds * 1e3),
        "extra_bytes": pass.plan.workspace.n_bytes(),
        "idle": idle.as_ref().ok(),
        "not_simulated": pass.timeline.as_ref().err().map(ToString::to_string),
        "stamps": profiled,
        "not_profiled": not_profiled.map(ToString::to_string),
    })
}

fn of_kernel(kernel: &Kernel) -> Value {
    let tile_config = &kernel.launch.variant.tile_config;
    let compiled = kernel.compiled.as_ref();
    let counters = kernel.counters.as_ref();
    json!({
        "kernel": kernel.launch.variant.name,
        "spec": kernel.launch.spec.to_string(),
        "ms": kernel.ms,
        "grid": kernel.launch.grid,
        "threads": tile_config.threads,
        "shared_bytes": tile_config.shared_bytes,
        "registers": compiled.map(|one| one.registers),
        "local_bytes": compiled.map(|one| one.local_bytes),
        "blocks_per_sm": kernel.blocks_per_sm(),
        "tensor_percent": counters.map(|one| one.tensor_percent),
        "dram_read_bytes": counters.map(|one| one.read_bytes),
        "dram_written_bytes": counters.map(|one| one.written_bytes),
    })
}
