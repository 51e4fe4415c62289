//! Every probe on the emulator: no fault, every word of its output written, the same under every order of threads.
//! That the device's bodies agree is for a machine with a GPU.
#![cfg(feature = "emulator")]

use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::kernels::probes::hopper::ProbeMaps;
use ferroflash_kernels::kernels::probes::{CLUSTER_PROBES, HOPPER_PROBES, PROBES, Probe};
use ferroflash_kernels::spec::PROBE_SPEC;

fn all() -> impl Iterator<Item = &'static Probe> {
    PROBES.iter().chain(HOPPER_PROBES).chain(CLUSTER_PROBES)
}

fn run(probe: &Probe, input: &[u32], order: u64) -> Vec<u32> {
    let mut output = probe.output();
    let mut memory = GlobalMemory::new();
    let addresses = (
        memory.input("input", input),
        memory.output("output", &mut output),
    );
    let launch = Launch {
        grid: probe.cluster(),
        threads: probe.threads(),
        shared_bytes: probe.shared_bytes(),
        resident_blocks: probe.cluster(),
        blocks_per_sm: 1,
        cluster: probe.cluster(),
        spec: PROBE_SPEC,
    };
    let maps = ProbeMaps::new(addresses.0, addresses.1);
    emu::run(&launch, &Options::seeded(order), &mut memory, &|| {
        probe.run(addresses.0, addresses.1, &maps)
    })
    .unwrap_or_else(|fault| panic!("{}: {fault}", probe.name()));
    assert_eq!(memory.first_unwritten("output"), None, "{}", probe.name());
    output
}

#[test]
fn every_probe_runs_and_does_not_depend_on_the_order_of_threads() {
    for probe in all() {
        for seed in 0..3 {
            let input = probe.input(seed);
            let outputs: Vec<_> = (0..10).map(|order| run(probe, &input, order)).collect();
            for output in &outputs {
                assert_eq!(output, &outputs[0], "{}, seed {seed}", probe.name());
            }
        }
    }
}

#[test]
fn another_input_gives_another_output() {
    for probe in all().filter(|probe| probe.input_len() > 0) {
        let first = run(probe, &probe.input(0), 0);
        let differs = |seed| run(probe, &probe.input(seed), 0) != first;
        assert!((1..10).any(differs), "{}", probe.name());
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = all().map(|probe| probe.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all().count());
}

#[test]
fn a_disagreement_is_found() {
    for probe in all() {
        let left = run(probe, &probe.input(1), 0);
        assert_eq!(probe.compare(&left, &left), Ok(()));
        for index in 0..left.len() {
            let mut right = left.clone();
            // The sign and the exponent's lowest bit: no rounding hides them, unless both are NaN or both are 0.
            right[index] ^= 0x8080_0000;
            let number = f32::from_bits(left[index]);
            if number.is_finite() && number.abs() > 1e-3 {
                let found = probe.compare(&left, &right).unwrap_err();
                assert_eq!(found.index, index, "{}", probe.name());
            }
        }
    }
}
