//! The driver's functions, with the types that cuda.h gives them; enums are passed as integers.
#![allow(non_snake_case)]
#![expect(clippy::too_many_arguments, reason = "the parameters are the driver's")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::entry::entry;
use crate::error::DriverError;
use crate::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUlinkState,
    CUmodule, CUstream,
};

/// Defines each call: find the function in the driver, call it, give its failure as an error.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// The driver's function of this name.
        ///
        /// # Safety
        /// As the driver's documentation says.
        #[inline]
        pub(super) unsafe fn $name($($argument: $type),*) -> Result<(), DriverError> {
            entry!($name($($argument: $type),*)).map_err(DriverError::from)
        }
    )*};
}

calls! {
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxSynchronize();
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDeviceTotalMem_v2(n_bytes: *mut usize, device: CUdevice);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphExecDestroy(exec: CUgraphExec);
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    fn cuInit(flags: c_uint);
    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *const *const c_void
    );
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *const *const c_void,
        extra: *const *const c_void
    );
    fn cuLinkAddData_v2(
        state: CUlinkState, kind: c_int, data: *mut c_void, n_bytes: usize, name: *const c_char, n_options: c_uint,
        options: *mut c_int, values: *mut *mut c_void
    );
    fn cuLinkComplete(state: CUlinkState, cubin: *mut *mut c_void, n_bytes: *mut usize);
    fn cuLinkCreate_v2(
        n_options: c_uint, options: *mut c_int, values: *mut *mut c_void, state: *mut CUlinkState
    );
    fn cuLinkDestroy(state: CUlinkState);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, n_bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, n_bytes: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, n_bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(to: CUdeviceptr, value: u8, n_bytes: usize, stream: CUstream);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, n_options: c_uint, options: *mut c_int,
        values: *mut *mut c_void
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        n_blocks: *mut c_int, function: CUfunction, threads: c_int, shared_bytes: usize
    );
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuTensorMapEncodeTiled(
        map: *mut c_void, element: c_int, rank: c_uint, address: *mut c_void, sizes: *const u64, strides: *const u64,
        box_sizes: *const u32, element_strides: *const u32, interleave: c_int, swizzle: c_int, l2_promotion: c_int,
        fill: c_int
    );
}
