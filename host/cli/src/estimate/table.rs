//! Predictions as tables and as JSON.

use ferroflash_lab::estimate::sweep::Case;
use ferroflash_lab::estimate::{Estimate, Gpu, Roof};
use ferroflash_lab::words::{fp8, head_dims, sizes};
use serde_json::json;

use crate::failure::Failure;
use crate::print::say;
use crate::words::fp8_word;

/// A table for each pass.
pub fn print(gpu: &Gpu, cases: &[Case]) -> Result<(), Failure> {
    for case in cases {
        print_gpu(gpu, case)?;
        let problem = &case.problem;
        say!(
            "problem   {}, {}{}",
            sizes(problem),
            problem.mask(),
            fp8(problem)
        );
        for estimates in &case.passes {
            print_pass(estimates);
        }
        print_notes(gpu, std::slice::from_ref(case));
    }
    Ok(())
}

/// The GPU's limits.
fn print_gpu(gpu: &Gpu, case: &Case) -> Result<(), Failure> {
    let dtype = case.problem.dtype();
    let l2 = gpu
        .l2_bytes
        .map_or("L2 of a size that is not given".to_owned(), |bytes| {
            format!("{} MB of L2", bytes >> 20)
        });
    let e4m3 = match case.problem.fp8() {
        Some(_) if gpu.is_hopper() => format!(", {} of e4m3", gpu.peak_e4m3() / 1e12),
        _ => String::new(),
    };
    say!(
        "GPU       {}: {} TFLOP/s of {dtype}{e4m3}, {} GB/s, {} SMs with {} KB, {l2}",
        gpu.name,
        gpu.peak(dtype)? / 1e12,
        gpu.bandwidth / 1e9,
        gpu.n_sms,
        gpu.sram_bytes >> 10
    );
    Ok(())
}

fn print_pass(estimates: &[Estimate]) {
    let Some(first) = estimates.first() else {
        return;
    };
    say!(
        "\n{:<10}     GFLOP     HBM MB      L2 MB   FLOP/B   extra MB  bound by              µs speed-up",
        first.pass.name()
    );
    for estimate in estimates {
        let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        say!(
            "{:<10}{:>10.1}{:>11}{:>11}{:>9.0}{:>11}  {:<13}{:>11.1}{:>9.2}",
            estimate.algorithm.name(),
            estimate.flops() as f64 / 1e9,
            megabytes(estimate.hbm_bytes()),
            megabytes(estimate.l2_bytes()),
            estimate.intensity(),
            megabytes(estimate.extra_bytes),
            estimate.roof.name(),
            estimate.seconds * 1e6,
            estimate.speedup
        );
    }
    let least = first.least_bytes as f64 / 1e6;
    say!("          inputs and outputs, each once: {least:.1} MB");
}

/// A row for each length, times in µs and speed-ups over standard.
pub fn print_sweep(gpu: &Gpu, cases: &[Case]) -> Result<(), Failure> {
    let Some(first) = cases.first() else {
        return Ok(());
    };
    print_gpu(gpu, first)?;
    let problem = &first.problem;
    say!(
        "problem   {} batch {}, {} heads over {}, {}, {}{}; µs, speed-up over standard, what binds",
        problem.dtype(),
        problem.batch(),
        problem.heads_q(),
        problem.heads_k(),
        head_dims(problem),
        problem.mask(),
        fp8(problem)
    );
    for (pass, estimates) in first.passes.iter().enumerate() {
        let mut head = format!("\n{:<10}", estimates.first().map_or("", |e| e.pass.name()));
        for estimate in estimates {
            head.push_str(&format!("{:>22}", estimate.algorithm.name()));
        }
        say!("{head}");
        for case in cases {
            let mut row = format!("{:<10}", case.problem.seqlen_q());
            for estimate in &case.passes[pass] {
                let time = format!("{:.1}", estimate.seconds * 1e6);
                let (speedup, roof) = (estimate.speedup, initial(estimate.roof));
                row.push_str(&format!("{time:>12} ({speedup:>5.2}) {roof}"));
            }
            say!("{row}");
        }
    }
    let roofs = Roof::ALL.map(|roof| format!("{} {roof}", initial(roof)));
    say!("\nbound by: {}", roofs.join(", "));
    print_notes(gpu, cases);
    Ok(())
}

/// The first letter of a roof's name: no two have the same.
fn initial(roof: Roof) -> &'static str {
    &roof.name()[..1]
}

/// Which of these cannot be run by this program.
fn print_notes(gpu: &Gpu, cases: &[Case]) {
    let all = cases.iter().flat_map(|case| case.passes.iter().flatten());
    let mut missing: Vec<&str> = Vec::new();
    for estimate in all.filter(|estimate| estimate.has_kernels == Some(false)) {
        if !missing.contains(&estimate.algorithm.name()) {
            missing.push(estimate.algorithm.name());
        }
    }
    if !missing.is_empty() {
        let name = &gpu.name;
        say!(
            "\nnot all passes have kernels here for {name}: {}",
            missing.join(", ")
        );
    }
    say!(
        "\nA model: nine in ten times of flash2 and flash3 that were measured on an H200 are within 15 % of it; elsewhere it goes by analogy (documentation of ferroflash_lab::estimate)."
    );
}

/// An object a line: a schedule, pass and length.
pub fn print_json(gpu: &Gpu, cases: &[Case]) {
    for case in cases {
        let problem = &case.problem;
        for estimate in case.passes.iter().flatten() {
            let row = json!({
                "gpu": gpu.name,
                "dtype": problem.dtype().to_string(),
                "fp8": problem.fp8().map(|scales| fp8_word((scales, problem.fp8_sums()))),
                "batch": problem.batch(),
                "heads_q": problem.heads_q(),
                "heads_k": problem.heads_k(),
                "seqlen_q": problem.seqlen_q(),
                "seqlen_k": problem.seqlen_k(),
                "head_dim": problem.head_dim(),
                "head_dim_v": problem.head_dim_v(),
                "mask": problem.mask().to_string(),
                "pass": estimate.pass.name(),
                "algorithm": estimate.algorithm.name(),
                "flops": estimate.flops(),
                "exponentials": estimate.exponentials(),
                "hbm_bytes": estimate.hbm_bytes(),
                "l2_bytes": estimate.l2_bytes(),
                "least_bytes": estimate.least_bytes,
                "intensity": estimate.intensity(),
                "extra_bytes": estimate.extra_bytes,
                "bound_by": estimate.roof.name(),
                "seconds": estimate.seconds,
                "speedup": estimate.speedup,
                "has_kernels": estimate.has_kernels,
            });
            say!("{row}");
        }
    }
}
