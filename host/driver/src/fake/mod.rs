//! A CUDA driver made of Rust functions, for tests on machines without one: device memory is host memory, kernels are recorded instead of run.
//!
//! It enforces the rules of the real driver that are easily broken: calls need a current context, each thread has its own
//! stack of contexts, handles are valid from creation to destruction and in their context, shared memory above 48 KB must be allowed, and captured
//! work is neither waited for nor run.

mod allocator;
mod devices;
mod graph;
mod kernels;
mod link;
mod tensor_map;
#[cfg(all(test, feature = "cust"))]
mod tests;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use graph::Capture;

use crate::entry::Address;
use crate::library;

pub use allocator::{CountingAllocator, allocations};

/// A driver call that enqueues, waits, allocates or loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Memory was allocated.
    Allocate {
        /// The number of bytes.
        n_bytes: usize,
    },
    /// Memory was freed.
    Free,
    /// PTX was to be compiled to a cubin.
    Compile,
    /// A module was to be loaded, from PTX or from a cubin.
    Load,
    /// A module was unloaded.
    Unload,
    /// The host waited for a stream, an event or a context.
    Synchronize,
    /// A copy was enqueued.
    Copy {
        /// On this stream.
        stream: usize,
    },
    /// A filling of memory was enqueued.
    Fill {
        /// Where.
        address: usize,
        /// With what.
        value: u8,
        /// How many bytes.
        n_bytes: usize,
        /// On this stream.
        stream: usize,
    },
    /// An event was recorded on a stream.
    RecordEvent {
        /// On this stream.
        stream: usize,
    },
    /// A tensor map was encoded.
    EncodeTensorMap,
    /// A kernel was enqueued.
    Launch(Launch),
    /// A graph was enqueued.
    LaunchGraph {
        /// The kernels captured in it.
        launches: Vec<Launch>,
        /// On this stream.
        stream: usize,
    },
}

/// When a kernel's blocks begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Each when there is room for it.
    Single,
    /// All at once: `cuLaunchCooperativeKernel`.
    Together,
}

/// A kernel that was enqueued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its name.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// When its blocks begin.
    pub beginning: Beginning,
    /// Handle of the stream.
    pub stream: usize,
    /// The bytes of its one parameter.
    pub params: Vec<u8>,
}

/// The driver's state: tests read and change it.
#[derive(Debug)]
pub struct State {
    /// Version of CUDA, 1000 · major + 10 · minor.
    pub version: c_int,
    /// Compute capability of the devices.
    pub compute_capability: (c_int, c_int),
    /// Bytes that may still be allocated.
    pub free_bytes: usize,
    /// What loading a module returns, and the compiler's log if that is an error.
    pub load_answer: (u32, &'static CStr),
    /// What loading a cubin returns.
    pub cubin_answer: u32,
    /// How many threads must compile at the same time before any of them continues; those that wait too long get an error.
    pub compile_together: u32,
    /// How many have begun to compile since this was last set to 0.
    pub compiling: u32,
    /// The buffer for the log of linkers.
    logs: BTreeMap<usize, kernels::Logs>,
    /// The calls since this was last set to an empty list; `None`: they are not recorded.
    pub calls: Option<Vec<Call>>,
    /// The kernels: bytes of the parameter of the kernel with this name.
    pub params_bytes: fn(&str) -> Option<usize>,
    /// Registers of a thread of the kernel with this name.
    pub registers: fn(&str) -> c_int,
    /// How many more kernels are accepted before one is refused; `None`: all.
    pub launches_left: Option<u32>,
    /// What waiting for a stream or a context returns.
    pub synchronize_answer: u32,
    /// What the filling of memory returns.
    pub fill_answer: u32,
    /// Captures, by stream.
    captures: BTreeMap<usize, Capture>,
    /// Live objects, by handle or address.
    pub alive: BTreeMap<usize, Kind>,
    /// How often the context of each device is retained.
    pub retained: [i32; N_DEVICES],
    next_handle: usize,
}

/// The object of a handle, and its context.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    Stream {
        context: usize,
    },
    Event {
        context: usize,
    },
    Module {
        context: usize,
    },
    Function {
        context: usize,
        name: String,
        shared_bytes: i32,
    },
    Memory {
        n_bytes: usize,
    },
    Linker {
        context: usize,
        cubin: Vec<u8>,
    },
    Graph {
        launches: Vec<Launch>,
    },
    ReadyGraph {
        context: usize,
        launches: Vec<Launch>,
    },
}

/// How many devices there are.
pub const N_DEVICES: usize = 2;
/// Streaming multiprocessors of a device.
pub const N_SMS: u32 = 132;
/// Bytes of memory of a device.
pub const TOTAL_BYTES: usize = 1 << 30;
/// Handles of the devices' contexts.
pub const CONTEXTS: [usize; N_DEVICES] = [0xc0, 0xc1];
/// Handle of a context of the first device that is not its primary one.
pub const OTHER_CONTEXT: usize = 0xcc;

static STATE: Mutex<State> = Mutex::new(State {
    version: 13000,
    compute_capability: (9, 0),
    free_bytes: TOTAL_BYTES,
    load_answer: (0, c""),
    cubin_answer: 0,
    compile_together: 0,
    compiling: 0,
    logs: BTreeMap::new(),
    calls: None,
    params_bytes: |_| None,
    registers: |_| 128,
    launches_left: None,
    synchronize_answer: 0,
    fill_answer: 0,
    captures: BTreeMap::new(),
    alive: BTreeMap::new(),
    retained: [0; N_DEVICES],
    next_handle: 0x1000,
});

thread_local! {
    /// What `cuInit` returns in this thread.
    static INIT_ANSWER: Cell<u32> = const { Cell::new(0) };
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The driver's state.
pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The contexts of this thread, the current one last.
pub fn contexts() -> Vec<usize> {
    STACK.with_borrow(Clone::clone)
}

/// Sets what `cuInit` returns in this thread.
pub fn answer_init_with(code: u32) {
    INIT_ANSWER.set(code);
}

impl State {
    fn record(&mut self, call: Call) {
        if let Some(calls) = &mut self.calls {
            calls.push(call);
        }
    }

    /// How many streams are captured.
    pub fn n_captures(&self) -> usize {
        self.captures.len()
    }

    fn create(&mut self, kind: Kind) -> usize {
        self.next_handle += 0x100;
        self.alive.insert(self.next_handle, kind);
        self.next_handle
    }
}

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const ILLEGAL_STATE: u32 = 401;
const NOT_FOUND: u32 = 500;
const OUT_OF_RESOURCES: u32 = 701;
const LAUNCH_TIMEOUT: u32 = 702;
const TOO_LARGE_TOGETHER: u32 = 720;
const CAPTURE_UNSUPPORTED: u32 = 900;
const CAPTURE_INVALIDATED: u32 = 901;
const CAPTURE_UNMATCHED: u32 = 903;
const CAPTURE_WRONG_THREAD: u32 = 908;

/// The current context; 0 if there is none.
fn current() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Calls `write` and returns success, if a context is current.
fn in_context(write: impl FnOnce(usize) -> u32) -> u32 {
    match current() {
        0 => INVALID_CONTEXT,
        context => write(context),
    }
}

fn write<T>(to: *mut T, value: T) -> u32 {
    // SAFETY: callers of a driver give places to write to.
    unsafe { to.write(value) };
    0
}

/// Destroys the object of a handle.
extern "C" fn destroy(handle: usize) -> u32 {
    in_context(|_| match state().alive.remove(&handle) {
        Some(_) => 0,
        None => INVALID_HANDLE,
    })
}

/// Continues if the stream belongs to the current context, as the default stream does.
fn on_stream(stream: usize, go_on: impl FnOnce() -> u32) -> u32 {
    in_context(|context| {
        let alive = state().alive.get(&stream) == Some(&Kind::Stream { context });
        if alive || stream == 0 {
            go_on()
        } else {
            INVALID_HANDLE
        }
    })
}

/// Replaces the real driver by this one, once in this process; call it before anything asks for a driver.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the functions have the types of cuda.h, with handles and addresses as `usize`.
        let installed = unsafe { library::install(TABLE) };
        installed.expect("nothing asks for a driver earlier");
    });
}

macro_rules! table {
    ($($name:ident: $function:path,)*) => {
        static TABLE: &[(&str, Address)] = &[$((stringify!($name), Address($function as *const ()))),*];
    };
}

table! {
    cuInit: devices::init,
    cuDriverGetVersion: devices::driver_version,
    cuGetErrorName: devices::error_name,
    cuGetErrorString: devices::error_string,
    cuDeviceGetCount: devices::device_count,
    cuDeviceGet: devices::device_get,
    cuDeviceGetName: devices::device_name,
    cuDeviceGetAttribute: devices::device_attribute,
    cuDeviceTotalMem_v2: devices::device_memory,
    cuDeviceGetUuid_v2: devices::device_uuid,
    cuDevicePrimaryCtxRetain: devices::retain,
    cuDevicePrimaryCtxRelease_v2: devices::release,
    cuCtxGetCurrent: devices::get_current,
    cuCtxGetDevice: devices::of_current,
    cuCtxSetCurrent: devices::set_current,
    cuCtxPushCurrent_v2: devices::push,
    cuCtxPopCurrent_v2: devices::pop,
    cuCtxSynchronize: devices::synchronize,
    cuStreamCreate: work::create_stream,
    cuStreamCreateWithPriority: work::create_stream_of_cust,
    cuStreamDestroy_v2: destroy,
    cuStreamGetCtx: work::context_of_stream,
    cuStreamSynchronize: work::synchronize_stream,
    cuStreamWaitEvent: work::wait_for_event,
    cuEventCreate: work::create_event,
    cuEventDestroy_v2: destroy,
    cuEventRecord: work::record_event,
    cuEventSynchronize: work::synchronize_event,
    cuEventElapsedTime: work::elapsed,
    cuMemAlloc_v2: work::allocate,
    cuMemFree_v2: work::free,
    cuMemGetInfo_v2: work::memory_info,
    cuMemcpyHtoDAsync_v2: work::copy,
    cuMemcpyDtoHAsync_v2: work::copy,
    cuMemcpyDtoDAsync_v2: work::copy,
    cuLinkCreate_v2: link::create,
    cuLinkAddData_v2: link::add,
    cuLinkComplete: link::complete,
    cuLinkDestroy: link::destroy_linker,
    cuModuleLoadDataEx: kernels::load,
    cuModuleUnload: kernels::unload,
    cuModuleGetFunction: kernels::get_function,
    cuFuncSetAttribute: kernels::set_attribute,
    cuFuncGetAttribute: kernels::attribute,
    cuOccupancyMaxActiveBlocksPerMultiprocessor: kernels::occupancy,
    cuLaunchKernel: kernels::launch,
    cuLaunchCooperativeKernel: kernels::launch_together,
    cuStreamBeginCapture_v2: graph::begin,
    cuStreamEndCapture: graph::end,
    cuGraphInstantiateWithFlags: graph::instantiate,
    cuGraphLaunch: graph::launch,
    cuGraphDestroy: graph::remove,
    cuGraphExecDestroy: graph::remove,
    cuMemsetD8Async: work::fill,
    cuTensorMapEncodeTiled: tensor_map::encode,
}
