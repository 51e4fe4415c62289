//! Another library of the same process: it opens the driver by itself, and has a context, a stream and memory of its own.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use libloading::{Library, Symbol};

type Handle = *mut c_void;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: calls that may wait are refused in every thread of the process.
const GLOBAL: c_int = 0;

/// Which context the library works in.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The device's primary one, as PyTorch and candle do.
    Primary,
    /// One that it has created.
    Created,
}

/// The library; its context is current in the thread that made it. What it has stays until the process ends.
pub struct Foreign {
    driver: Library,
    pub context: Handle,
    pub stream: Handle,
}

/// Calls a function of the driver, which must succeed.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the function has this type in cuda.h; handles and addresses are those of this library.
        let code = unsafe {
            let function: Symbol<unsafe extern "C" fn($($type),*) -> c_uint> =
                $driver.get(stringify!($name).as_bytes()).unwrap();
            function($($argument),*)
        };
        assert_eq!(code, 0, stringify!($name));
    }};
}

impl Foreign {
    /// On the first device; the reason where there is no driver.
    pub fn new(kind: Kind) -> Result<Foreign, libloading::Error> {
        // SAFETY: the driver's initialisation has no conditions.
        let driver = unsafe { Library::new("libcuda.so.1")? };
        call!(driver, cuInit(0 => c_uint));
        let (mut context, mut stream): (Handle, Handle) = (null_mut(), null_mut());
        match kind {
            Kind::Created => {
                call!(driver, cuCtxCreate_v2(&mut context => *mut Handle, 0 => c_uint, 0 => c_int));
            }
            Kind::Primary => {
                call!(driver, cuDevicePrimaryCtxRetain(&mut context => *mut Handle, 0 => c_int));
                call!(driver, cuCtxPushCurrent_v2(context => Handle));
            }
        }
        call!(driver, cuStreamCreate(&mut stream => *mut Handle, NON_BLOCKING => c_uint));
        Ok(Foreign {
            driver,
            context,
            stream,
        })
    }

    /// Memory with these bytes.
    pub fn upload(&self, bytes: &[u8]) -> u64 {
        let mut address = 0;
        call!(self.driver, cuMemAlloc_v2(&mut address => *mut u64, bytes.len() => usize));
        self.write(address, bytes);
        address
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        let (from, n_bytes) = (bytes.as_ptr(), bytes.len());
        call!(self.driver, cuMemcpyHtoD_v2(address => u64, from => *const u8, n_bytes => usize));
    }

    /// What lies there when the stream's work is done.
    pub fn read(&self, address: u64, n_bytes: usize) -> Vec<u8> {
        call!(self.driver, cuStreamSynchronize(self.stream => Handle));
        let mut bytes = vec![0; n_bytes];
        let to = bytes.as_mut_ptr();
        call!(self.driver, cuMemcpyDtoH_v2(to => *mut u8, address => u64, n_bytes => usize));
        bytes
    }

    /// What `work` enqueues on the stream, as a graph that is ready.
    pub fn capture(&self, work: impl FnOnce()) -> Handle {
        let (mut graph, mut ready): (Handle, Handle) = (null_mut(), null_mut());
        call!(self.driver, cuStreamBeginCapture_v2(self.stream => Handle, GLOBAL => c_int));
        work();
        call!(self.driver, cuStreamEndCapture(self.stream => Handle, &mut graph => *mut Handle));
        call!(self.driver, cuGraphInstantiateWithFlags(&mut ready => *mut Handle, graph => Handle, 0 => u64));
        ready
    }

    pub fn launch(&self, graph: Handle) {
        call!(self.driver, cuGraphLaunch(graph => Handle, self.stream => Handle));
    }

    /// Takes the context away from the thread.
    pub fn leave(&self) {
        let mut context: Handle = null_mut();
        call!(self.driver, cuCtxPopCurrent_v2(&mut context => *mut Handle));
        assert_eq!(context, self.context);
    }
}
