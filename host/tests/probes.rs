//! Every instruction of the kernels: its device body on a GPU against its CPU body on the emulator.
#![cfg(feature = "emulator")]

use ferroflash::backend::cuda::probe::Probes;
use ferroflash::{Device, Error};
use ferroflash_kernels::emu::{self, GlobalMemory, Launch, Options};
use ferroflash_kernels::kernels::probes::{PROBES, Probe};

/// The output of a probe on the emulator.
fn emulated(probe: &Probe, input: &[u32]) -> Vec<u32> {
    let mut output = probe.output();
    let mut memory = GlobalMemory::new();
    let addresses = (
        memory.input("input", input),
        memory.output("output", &mut output),
    );
    let launch = Launch {
        grid: 1,
        threads: probe.threads,
        shared_bytes: probe.shared_bytes,
        resident_blocks: 1,
    };
    let run = emu::run(&launch, &Options::seeded(1), &mut memory, &|| {
        (probe.run)(addresses.0, addresses.1)
    });
    run.unwrap_or_else(|fault| panic!("{}: {fault}", probe.name));
    drop(memory);
    output
}

/// The probes on the first GPU; `None`, said aloud, on a machine without one.
fn probes() -> Option<Probes> {
    match Device::cuda(0) {
        Ok(device) => {
            let cuda = device.as_cuda().expect("a CUDA device");
            Some(Probes::load(cuda).expect("the probes load"))
        }
        Err(Error::Driver(error)) => {
            let required = std::env::var("REQUIRE").as_deref() == Ok("cuda");
            assert!(!required, "REQUIRE=cuda, but: {error}");
            eprintln!("not run: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn device_bodies_agree_with_cpu_bodies() {
    let Some(probes) = probes() else { return };
    let mut failed = Vec::new();
    for probe in PROBES {
        for seed in 0..20 {
            let input = probe.input(seed);
            let on_gpu = probes
                .run(probe, &input)
                .expect(probe.name)
                .expect("an input of its size");
            if let Err(at) = probe.compare(&on_gpu, &emulated(probe, &input)) {
                failed.push(format!(
                    "{} seed {seed}: GPU and emulator: {at:x?}",
                    probe.name
                ));
                break;
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
