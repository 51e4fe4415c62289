//! Every instruction of the kernels on a GPU: its device body against its body on the emulator, bit for bit where it is
//! exact. (That the emulator's bodies are right and do not depend on the order of threads, `kernels-gpu` tests itself.)

use conformance::subject::CUDA;
use ferroflash::Device;
use ferroflash::backend::cuda::probe::Probes;
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::kernels::probes::hopper::ProbeMaps;
use ferroflash_kernels::kernels::probes::{CLUSTER_PROBES, HOPPER_PROBES, PROBES, Probe};
use ferroflash_kernels::spec::PROBE_SPEC;
use ferroflash_kernels::variants::Arch;

/// Inputs that each probe is given.
const INPUTS: std::ops::Range<u64> = 0..20;

/// The output of a probe on the emulator, its threads in the order of a seed.
fn emulated(probe: &Probe, input: &[u32], seed: u64) -> Vec<u32> {
    let mut output = probe.output();
    let mut memory = GlobalMemory::new();
    let (from, to) = (
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
    let maps = ProbeMaps::new(from, to);
    let ran = emu::run(&launch, &Options::seeded(seed), &mut memory, &|| {
        probe.run(from, to, &maps)
    });
    ran.unwrap_or_else(|fault| {
        panic!("{} with its threads in order {seed}: {fault}", probe.name())
    });
    drop(memory);
    output
}

#[test]
fn device_bodies_agree_with_emulated_bodies() {
    if CUDA.is_absent() {
        return;
    }
    let device = Device::cuda(0).unwrap();
    let probes = Probes::load(device.as_cuda().unwrap()).unwrap();
    let mut failures = Vec::new();
    let hopper: [&[Probe]; 2] = match Arch::Sm90a.runs_on(device.info().compute_capability) {
        true => [HOPPER_PROBES, CLUSTER_PROBES],
        false => [&[], &[]],
    };
    'probes: for probe in PROBES.iter().chain(hopper.into_iter().flatten()) {
        // A probe that hangs takes the whole program with it: its name is then the last to be said.
        eprintln!("{}", probe.name());
        for seed in INPUTS {
            let input = probe.input(seed);
            let on_gpu = match probes.run(probe, &input) {
                Ok(output) => output.expect("the input is as long as the probe says"),
                // After such an error the device runs nothing more in this program.
                Err(error) => {
                    failures.push(format!(
                        "{}, input {seed}: {error}; the rest has not run",
                        probe.name()
                    ));
                    break 'probes;
                }
            };
            if let Err(at) = probe.compare(&on_gpu, &emulated(probe, &input, seed)) {
                failures.push(format!(
                    "{}, input {seed}: GPU and emulator {at:x?}",
                    probe.name()
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
