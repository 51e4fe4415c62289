//! One instruction of the kernels, run alone on a GPU: for the tests that compare it with its CPU body.

use std::ffi::CString;
use std::ptr::from_ref;
use std::sync::Arc;

use ferroflash_driver::extra::function::{self, LaunchSize};
use ferroflash_driver::extra::module::{self, Image};
use ferroflash_driver::extra::stream;
use ferroflash_driver::sys::CUmodule;
use ferroflash_kernels::kernels::probes::hopper::ProbeMaps;
use ferroflash_kernels::kernels::probes::{Probe, Takes};
use ferroflash_kernels::spec::text::specialise;
use ferroflash_kernels::spec::{Constant, PROBE_SPEC, Spec};
use ferroflash_kernels::variants::Arch;

use super::device::CudaDevice;
use super::embedded;
use super::memory::Memory;
use super::stream::{Stream, StreamRef};
use super::tensor_map::encode_map;
use crate::dtype::Dtype;
use crate::error::DriverError;

/// The text of the probes, with the constants that their emulated twins run with.
fn specialised(arch: Arch) -> Result<CString, DriverError> {
    let corrupt = || DriverError::CorruptKernel { kernel: MODULE };
    let text = embedded::ptx(MODULE, arch)?.into_string();
    let text = text.map_err(|_| corrupt())?;
    let text = specialise(&text, Spec::of(&Constant::ALL), PROBE_SPEC).map_err(|source| {
        DriverError::Specialise {
            kernel: MODULE,
            source,
        }
    })?;
    CString::new(text).map_err(|_| corrupt())
}

/// Name of the PTX module that holds all probes.
const MODULE: &str = "probes";

/// The probes, loaded on a device.
#[derive(Debug)]
pub struct Probes {
    module: CUmodule,
    stream: Stream,
}

impl Probes {
    /// Loads those of the newest architecture that the device runs: it has the probes of older ones too.
    pub fn load(device: &Arc<CudaDevice>) -> Result<Probes, DriverError> {
        let arch = if Arch::Sm90a.runs_on(device.info().compute_capability) {
            Arch::Sm90a
        } else {
            Arch::Sm80
        };
        let ptx = specialised(arch)?;
        let stream = Stream::new(device)?;
        let _current = device.enter()?;
        // SAFETY: the context of the device is current; the module is complete PTX, which the driver checks.
        match unsafe { module::load(Image::Ptx(&ptx)) } {
            Ok((module, _)) => Ok(Probes { module, stream }),
            Err(source) => Err(DriverError::Load {
                kernel: MODULE,
                source: Box::new(source),
            }),
        }
    }

    /// Runs a probe on an input and gives its output; `None` where the input is shorter than the probe reads.
    pub fn run(&self, probe: &Probe, input: &[u32]) -> Result<Option<Vec<u32>>, DriverError> {
        let mut output = probe.output();
        if input.len() < probe.input_len() {
            return Ok(None);
        }
        let device = self.stream.device();
        let from = Memory::new(device, size_of_val(input) as u64)?;
        let to = Memory::new(device, size_of_val(output.as_slice()) as u64)?;
        let size = LaunchSize {
            // The entry itself says that they are a cluster.
            grid: probe.cluster(),
            threads: probe.threads(),
            shared_bytes: probe.shared_bytes(),
        };
        let name = CString::new(probe.entry()).map_err(|_| DriverError::NotEmbedded {
            kernel: probe.entry(),
        })?;
        let addresses = [from.address(), to.address()];
        let on = StreamRef::from(&self.stream).as_raw();
        let _current = device.enter()?;
        let mut maps = ProbeMaps::new(from.address(), to.address());
        if probe.takes() == Takes::TensorMaps {
            for map in maps.each() {
                *map = encode_map(map, Dtype::Bf16)?;
            }
        }
        // SAFETY: the module is loaded in the current context. A probe takes two addresses and
        // at most tensor maps besides; it reads as many words of its input and writes as many of its output as its row
        // says, which both buffers hold: only the lists of the kernels make probes. Host memory is borrowed until the
        // copies have been waited for.
        unsafe {
            let function = module::function(self.module, &name)?;
            function::allow_dynamic_shared(function, size.shared_bytes)?;
            stream::copy_to_device(
                from.address(),
                input.as_ptr().cast(),
                size_of_val(input),
                on,
            )?;
            stream::fill(to.address(), 0, size_of_val(output.as_slice()), on)?;
            let params = [
                from_ref(&addresses[0]).cast(),
                from_ref(&addresses[1]).cast(),
                from_ref(&maps).cast(),
            ];
            function::launch_with(function, size, on, params)?;
            let n_bytes = size_of_val(output.as_slice());
            stream::copy_to_host(output.as_mut_ptr().cast(), to.address(), n_bytes, on)?;
        }
        self.stream.synchronize()?;
        Ok(Some(output))
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        if let Ok(_current) = self.stream.device().enter() {
            // SAFETY: nobody holds a function of the module, and `run` waits for its work. An error can only be that
            // of earlier work.
            let _ = unsafe { module::unload(self.module) };
        }
    }
}
