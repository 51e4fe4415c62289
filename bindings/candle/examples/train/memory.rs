//! The most memory in use on a GPU while something runs.
//!
//! candle keeps no count. So a thread asks the driver every two milliseconds how much of the GPU's memory is taken, by all
//! programs; peaks in between are missed.

#[cfg(feature = "cuda")]
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use candle_core::Device;

/// A watch over the memory of one GPU.
#[cfg(feature = "cuda")]
pub struct PeakMemory {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<usize>>,
}

#[cfg(feature = "cuda")]
impl PeakMemory {
    /// Begins to watch; `None` on the CPU.
    pub fn watch(device: &Device) -> Option<PeakMemory> {
        let Device::Cuda(cuda) = device else {
            return None;
        };
        let context = cuda.cuda_stream().context().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut peak = 0;
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((free, total)) = context.mem_get_info() {
                    peak = peak.max(total - free);
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            peak
        });
        let thread = Some(thread);
        Some(PeakMemory { stop, thread })
    }

    /// The most bytes seen, or `None` if the driver never said.
    pub fn finish(mut self) -> Option<usize> {
        self.stop.store(true, Ordering::Relaxed);
        let peak = self.thread.take()?.join().ok();
        peak.filter(|&peak| peak > 0)
    }
}

/// A training that fails ends the watch too.
#[cfg(feature = "cuda")]
impl Drop for PeakMemory {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Nothing to watch: this build has no CUDA.
#[cfg(not(feature = "cuda"))]
pub struct PeakMemory;

#[cfg(not(feature = "cuda"))]
impl PeakMemory {
    pub fn watch(_device: &Device) -> Option<PeakMemory> {
        None
    }

    pub fn finish(self) -> Option<usize> {
        None
    }
}
