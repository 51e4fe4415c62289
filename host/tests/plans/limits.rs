//! Where a plan's conditions end: what just fits, and what is one too many.

use ferroflash_kernels::params::MAX_ROWS;
use ferroflash_kernels::variants::Kind;

use super::*;

/// On this device.
fn planned(
    problem: &ProblemBuilder,
    pass: Pass,
    asked: Algorithm,
    device: &DeviceInfo,
) -> Result<Plan, PlanError> {
    let checked = without_tensors(&problem.build().unwrap(), pass, Location::Cuda(0)).unwrap();
    plan(&checked, device, Backend::Cuda, Some(asked))
}

#[test]
fn a_workspace_that_just_fits_is_planned() {
    let h200 = DeviceInfo::h200();
    let of =
        |device: &DeviceInfo| planned(&llama_like(), Pass::Backward, Algorithm::Flash3, device);
    let needed = of(&h200).unwrap().workspace.n_bytes();
    let with = |memory_bytes| {
        of(&DeviceInfo {
            memory_bytes,
            ..h200.clone()
        })
    };
    assert!(with(needed).is_ok());
    let refused = with(needed - 1).unwrap_err().to_string();
    assert!(refused.contains(&needed.to_string()), "{refused}");
}

#[test]
fn memory_beside_the_arguments_is_the_workspace_or_the_cpus() {
    let on_a_gpu = plan_of(llama_like(), Pass::Backward, None).unwrap();
    assert_eq!(on_a_gpu.extra_bytes(), on_a_gpu.workspace.n_bytes());
    let problem = llama_like().build().unwrap();
    let checked = without_tensors(&problem, Pass::Backward, Location::Host).unwrap();
    let on_the_cpu = plan(&checked, &DeviceInfo::cpu(), Backend::Cpu, None).unwrap();
    let n_bytes = on_the_cpu.extra_bytes();
    // A few tiles of each thread.
    assert!(n_bytes > 1024, "{n_bytes}");
    let line = format!("  memory    {n_bytes} bytes\n");
    assert!(on_the_cpu.to_string().contains(&line), "{on_the_cpu}");
}

/// The window of the first query begins at the first key, or behind it.
#[test]
fn nothing_is_cleared_where_each_key_is_seen() {
    let clears = |seqlen_k| {
        let problem = llama_like().seqlen_q(64).seqlen_k(seqlen_k);
        let problem = problem.mask(Mask::Window {
            left: Some(100),
            right: Some(0),
        });
        let plan = plan_of(problem, Pass::Backward, Some(Algorithm::Flash3)).unwrap();
        plan.launches[0].variant.kind == Kind::Clear
    };
    assert!(!clears(164));
    assert!(clears(165));
}

/// Sequences that say themselves where they lie are counted from a place in the middle, too.
#[test]
fn packed_rows_are_half_as_many_at_most() {
    const MOST: usize = MAX_ROWS as usize;
    let refused = |problem: ProblemBuilder| {
        let planned = planned(
            &problem,
            Pass::Forward,
            Algorithm::Flash3,
            &DeviceInfo::h200(),
        );
        planned.is_err_and(|error| error.to_string().contains("total_k"))
    };
    let small = || llama_like().heads(1).seqlen(64).head_dim(64);
    assert!(!refused(small().packed_k(MOST / 2)));
    assert!(refused(small().packed_k(MOST / 2 + 1)));
    let long = small().batch(1).seqlen_k(MOST);
    assert!(planned(&long, Pass::Forward, Algorithm::Flash3, &DeviceInfo::h200()).is_ok());
}

#[test]
fn devices_have_names_of_their_own() {
    let devices = [
        DeviceInfo::cpu(),
        DeviceInfo::a100(),
        DeviceInfo::h200(),
        DeviceInfo::rtx3060(),
        DeviceInfo::rtx4090(),
        DeviceInfo::emulated(),
        DeviceInfo::emulated_hopper(),
    ];
    let names = devices.map(|device| device.name);
    let distinct: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
}
