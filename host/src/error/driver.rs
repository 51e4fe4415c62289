//! What the driver says, or why there is none; kernels that cannot be loaded.

use std::ops::Range;

use std::io::ErrorKind;
use std::path::PathBuf;

use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::spec::text::SpecialiseError;

use super::PtxasError;

/// The device cannot be had, or its driver refused a call.
///
/// The [module](crate::error) has an example.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is a driver, but not this device.
    #[error(
        "there is no CUDA device {ordinal}; the driver shows {n_devices}: see CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// The device asked for.
        ordinal: u32,
        /// How many there are.
        n_devices: u32,
    },
    /// No CUDA context was given, or none is current in this thread.
    #[error(
        "there is no CUDA context: none was given, or none is current in this thread. Open the device first"
    )]
    NoContext,
    /// This program was built without kernels.
    #[error("this program was built without kernels: {detail}")]
    NoKernels {
        /// Why, and what to do.
        detail: String,
    },
    /// The driver is older than the kernels need.
    #[error("the CUDA driver supports CUDA {}.{}; the kernels need {}.{}: install a newer driver", found.0, found.1, needed.0, needed.1)]
    DriverTooOld {
        /// CUDA version of the driver, `(major, minor)`.
        found: (u32, u32),
        /// Version needed.
        needed: (u32, u32),
    },
    /// The device has too little memory.
    #[error("the device has {free_bytes} bytes free; {needed_bytes} are needed")]
    OutOfMemory {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// A kernel of the list is not among those that were built into this program.
    #[error(
        "kernel {kernel} was not built into this program: build ferroflash again, without FERROFLASH_KERNELS"
    )]
    NotEmbedded {
        /// Name of the variant.
        kernel: &'static str,
    },
    /// A kernel that was built into this program cannot be unpacked.
    #[error("kernel {kernel} in this program is damaged: build ferroflash again")]
    CorruptKernel {
        /// Name of the variant.
        kernel: &'static str,
    },
    /// The text of a kernel in this program does not ask for the constants that its row says.
    #[error("kernel {kernel}: {source}")]
    Specialise {
        /// Name of the variant.
        kernel: &'static str,
        /// What does not fit.
        source: SpecialiseError,
    },
    /// The driver's compiler made a kernel that would wait without end; it is not launched.
    #[error(
        "kernel {kernel} ({spec}) takes {registers} registers, {blocks_per_sm} blocks fit a multiprocessor; needed are exactly \
         {needed_registers} registers and {needed_blocks_per_sm} blocks"
    )]
    WouldHang {
        /// Name of the variant.
        kernel: &'static str,
        /// The constants that it was compiled with.
        spec: Spec,
        /// Registers of a thread.
        registers: u32,
        /// Registers of a thread that its warpgroups share out.
        needed_registers: u32,
        /// Blocks that fit on one multiprocessor.
        blocks_per_sm: u32,
        /// Blocks that have to fit.
        needed_blocks_per_sm: u32,
    },
    /// The driver could not compile or load a kernel.
    #[error("kernel {kernel}: {source}")]
    Load {
        /// Name of the variant.
        kernel: &'static str,
        /// What it said, with its compiler's log.
        source: Box<ferroflash_driver::extra::module::LoadError>,
    },
    /// The folder of a kernel cache does not serve.
    #[error("the kernel cache {} cannot be {needed}: {detail}", folder.display())]
    KernelCache {
        /// As it was given.
        folder: PathBuf,
        /// What was to be done with it: made, found, read, written to.
        needed: &'static str,
        /// What the system says.
        kind: ErrorKind,
        /// The same in words.
        detail: String,
    },
    /// `ptxas` does not serve, where a program compiles kernels ahead or names it.
    #[error(transparent)]
    Ptxas(Box<PtxasError>),
    /// A copy within a buffer that leaves it, or overlaps itself.
    #[error(
        "elements {from:?} were to be copied to those from {to} on, in a buffer of {n_elems}; allowed: both inside, without a common element"
    )]
    CopyWithin {
        /// What was to be copied.
        from: Range<usize>,
        /// Where to.
        to: usize,
        /// Elements of the buffer.
        n_elems: usize,
    },
    /// A copy between host and device of another length than the buffer.
    #[error("the buffer has {needed} elements; the host memory has {given}")]
    CopyLength {
        /// Elements of the buffer.
        needed: usize,
        /// Elements given.
        given: usize,
    },
    /// A stream of another device, or of another context, was given for work on a buffer.
    #[error(
        "the stream belongs to another device than the memory; needed: a stream of the memory's device"
    )]
    StreamElsewhere,
    /// An earlier call on the queue was enqueued in part, and the queue could not be waited for then.
    #[error(
        "an earlier call on this queue was enqueued in part: the queue has to be synchronised first"
    )]
    QueuePoisoned,
    /// The queue is being captured into a graph.
    #[error("the queue is being captured into a graph: it takes prepared calls and nothing else")]
    QueueCaptured,
    /// What captured a queue put another queue in its place.
    #[error(
        "the queue was replaced while it was captured, so there is no graph: capture again, and keep the queue"
    )]
    QueueReplaced,
    /// A stream of the device is being captured into a graph, by this thread or another, and the call is not allowed then; or a
    /// capture was spoiled by such a call.
    #[error(
        "a stream of the device is being captured into a graph; the call is refused, or makes the capture invalid: {source}"
    )]
    Capture {
        /// In the driver's own words; its codes are 900 to 908.
        source: ferroflash_driver::DriverError,
    },
    /// There is no driver, or a call of it failed: in the driver's own words.
    #[error(transparent)]
    Call(ferroflash_driver::DriverError),
}

impl From<ferroflash_driver::DriverError> for DriverError {
    fn from(source: ferroflash_driver::DriverError) -> DriverError {
        match source.code() {
            Some(900..=908) => DriverError::Capture { source },
            _ => DriverError::Call(source),
        }
    }
}

impl From<PtxasError> for DriverError {
    fn from(error: PtxasError) -> DriverError {
        DriverError::Ptxas(Box::new(error))
    }
}
