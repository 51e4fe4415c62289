//! Passes that are called directly, on tensors in the memory of the host: the CPU, the emulator.

use std::time::Instant;

use ferroflash::backend::cuda::StreamRef;
use ferroflash::{Attention, Backend, Device, Error, Pass};

use super::subject::{Effort, Ready, Subject, Variant, median, n_calls, warm_up};
use crate::failure::Failure;
use crate::input::Bytes;
use crate::tensors::{Tensors, Written};

/// The tensors of one problem.
pub struct OnHost<T: Bytes> {
    device: Device,
    tensors: Tensors<T>,
}

impl<T: Bytes> OnHost<T> {
    /// o and lse become what the forward pass gives.
    pub fn new(device: &Device, mut tensors: Tensors<T>) -> Result<OnHost<T>, Failure> {
        let attention = Attention::new(device, tensors.operands.problem)?;
        tensors.run(&attention, Pass::Forward)?;
        let device = device.clone();
        Ok(OnHost { device, tensors })
    }
}

impl<T: Bytes> Subject<T> for OnHost<T> {
    type Call = (Attention, Pass);

    fn prepare(&mut self, variant: &Variant) -> Result<Ready<Self::Call>, Failure> {
        let attention = variant.attention(&self.device, self.tensors.operands.problem)?;
        let plan = attention.explain(variant.pass)?.plan.map_err(Error::from)?;
        Ok(Ready {
            algorithm: plan.algorithm,
            extra_bytes: plan.extra_bytes(),
            call: (attention, variant.pass),
        })
    }

    fn reference(&self, pass: Pass) -> Result<Option<Written<T>>, Failure> {
        match self.device.backend() {
            Backend::Cpu => Ok(None),
            _ => self.tensors.reference(pass, StreamRef::DEFAULT).map(Some),
        }
    }

    fn results(&mut self, (attention, pass): &Self::Call) -> Result<Written<T>, Failure> {
        self.tensors.run(attention, *pass)?;
        self.tensors.written(*pass, StreamRef::DEFAULT)
    }

    /// By the wall clock.
    fn round(
        &mut self,
        (attention, pass): &mut Self::Call,
        effort: Effort,
    ) -> Result<f64, Failure> {
        let mut call = || self.tensors.run(attention, *pass).map(|_| ());
        let one = warm_up(effort.warm_up_ms, || Ok(call()?))?;
        let mut times = Vec::new();
        for _ in 0..n_calls(one, effort.rep_ms) {
            let start = Instant::now();
            call()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(times))
    }
}
