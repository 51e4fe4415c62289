//! The GPU: devices, streams, memory and kernels, on top of the driver, which is opened when a program first asks for a device.
//!
//! | file | what |
//! |---|---|
//! | [`device`] | an open device: its context, its limits, its kernels |
//! | `context` | the context that a device works in |
//! | [`queue`] | a stream with the workspace of the calls on it |
//! | [`graph`] | calls captured once and launched often |
//! | [`stream`], [`event`] | the order and the time of asynchronous work |
//! | [`memory`] | buffers, and the views of them that tensors are made of |
//! | [`module`] | embedded PTX → kernels of one device, compiled when first wanted |
//! | [`kernel_cache`] | compiled kernels in a folder, for later processes |
//! | `launch` | the kernels of a plan, enqueued |
//! | `marks`, `stamps` | for a profile: events between them, and the records that a profiled kernel has written |
//! | `tensor_map` | descriptions of a launch's tensors for Hopper's copy engine |
//! | `probe` | one instruction of the kernels, run alone: for tests |
//!
//! Work is enqueued and runs while the host goes on; only the functions that say so wait. A call makes the device's
//! context current for its duration where it is not, and leaves the thread as it was.
//!
//! ```no_run
//! use ferroflash::backend::cuda::DeviceBuffer;
//! use ferroflash::{Device, Queue};
//!
//! let device = Device::cuda(0)?;
//! let gpu = device.as_cuda().expect("it is a GPU");
//! gpu.keep_kernels_in("kernels")?; // so that the next process need not compile them
//! let queue = Queue::new(gpu)?;
//! let x = DeviceBuffer::from_slice(gpu, &[1f32, 2.0, 3.0], queue.stream())?;
//! assert_eq!(x.to_vec(queue.stream())?, [1.0, 2.0, 3.0]);
//! # Ok::<(), ferroflash::Error>(())
//! ```

mod captures;
mod context;
pub mod device;
mod embedded;
pub mod event;
pub mod graph;
pub mod kernel_cache;
pub(crate) mod launch;
mod marks;
pub mod memory;
pub mod module;
#[cfg(feature = "emulator")]
pub mod probe;
pub mod queue;
mod stamps;
pub mod stream;
mod tensor_map;

pub use device::{CudaDevice, MemoryInfo};
#[cfg(feature = "stand-ins")]
pub use embedded::use_stand_ins;
pub use embedded::{missing_kernels, needed_cuda, origin_of_kernels};
pub use event::Event;
pub use ferroflash_driver::sys;
pub use graph::Graph;
pub use kernel_cache::{CacheFault, CompiledKernel, KernelCacheUse, KernelCompiler, Origin, Ptxas};
pub use memory::DeviceBuffer;
pub use module::Kernel;
pub use queue::Queue;
pub use stream::{Stream, StreamRef};
