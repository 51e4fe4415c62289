//! The functions that `cust` 0.3.2 is linked against, each a forwarder into the driver.
//!
//! The list has the functions that `cust` itself calls, not all that `cust_raw` declares: a program that calls more through `cust::sys` does not
//! link, and the linker names the missing function. The compiler checks each signature against the
//! declaration in `cust_raw`.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

use cust_raw::*;

use crate::entry::entry;
use crate::error::ask;
use crate::result::known;

/// Defines each function: finds it in the driver, calls it, and maps the code that it returns.
macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            match entry!($name($($argument: $type),*)) {
                Ok(()) => CUresult::CUDA_SUCCESS,
                Err(failure) => known(failure.code),
            }
        }

        const _: unsafe extern "C" fn($($type),*) -> CUresult = cust_raw::$name;
    )*};
}

forward! {
    // Start, devices.
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
    fn cuDeviceTotalMem_v2(n_bytes: *mut usize, device: CUdevice);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuInit(flags: c_uint);

    // Contexts.
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
    fn cuCtxGetCacheConfig(config: *mut CUfunc_cache);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxGetFlags(flags: *mut c_uint);
    fn cuCtxGetLimit(value: *mut usize, limit: CUlimit);
    fn cuCtxGetSharedMemConfig(config: *mut CUsharedconfig);
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxSetCacheConfig(config: CUfunc_cache);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxSetLimit(limit: CUlimit, value: usize);
    fn cuCtxSetSharedMemConfig(config: CUsharedconfig);
    fn cuCtxSynchronize();

    // Modules and linking.
    fn cuLinkAddData_v2(
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
        n_options: c_uint, options: *mut CUjit_option, values: *mut *mut c_void
    );
    fn cuLinkComplete(state: CUlinkState, cubin: *mut *mut c_void, size: *mut usize);
    fn cuLinkCreate_v2(
        n_options: c_uint, options: *mut CUjit_option, values: *mut *mut c_void, state: *mut CUlinkState
    );
    fn cuLinkDestroy(state: CUlinkState);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleGetGlobal_v2(address: *mut CUdeviceptr, n_bytes: *mut usize, module: CUmodule, name: *const c_char);
    fn cuModuleLoad(module: *mut CUmodule, path: *const c_char);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, n_options: c_uint, options: *mut CUjit_option,
        values: *mut *mut c_void
    );
    fn cuModuleUnload(module: CUmodule);

    // Memory.
    fn cuDestroyExternalMemory(memory: CUexternalMemory);
    fn cuExternalMemoryGetMappedBuffer(
        address: *mut CUdeviceptr, memory: CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    );
    fn cuImportExternalMemory(memory: *mut CUexternalMemory, descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
    fn cuMemAdvise(address: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice);
    fn cuMemAllocAsync(address: *mut CUdeviceptr, n_bytes: usize, stream: CUstream);
    fn cuMemAllocHost_v2(address: *mut *mut c_void, n_bytes: usize);
    fn cuMemAllocManaged(address: *mut CUdeviceptr, n_bytes: usize, flags: c_uint);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, n_bytes: usize);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemPrefetchAsync(address: CUdeviceptr, count: usize, to: CUdevice, stream: CUstream);
    fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D);
    fn cuMemcpyAtoH_v2(to: *mut c_void, from: CUarray, offset: usize, n_bytes: usize);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, n_bytes: usize, stream: CUstream);
    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, n_bytes: usize);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, n_bytes: usize, stream: CUstream);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, n_bytes: usize);
    fn cuMemcpyHtoA_v2(to: CUarray, offset: usize, from: *const c_void, n_bytes: usize);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, n_bytes: usize, stream: CUstream);
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, n_bytes: usize);
    fn cuMemsetD16Async(to: CUdeviceptr, value: c_ushort, n_elems: usize, stream: CUstream);
    fn cuMemsetD16_v2(to: CUdeviceptr, value: c_ushort, n_elems: usize);
    fn cuMemsetD32Async(to: CUdeviceptr, value: c_uint, n_elems: usize, stream: CUstream);
    fn cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, n_elems: usize);
    fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, n_elems: usize, stream: CUstream);
    fn cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, n_elems: usize);

    // Streams and events.
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);

    // Kernels.
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetCacheConfig(function: CUfunction, config: CUfunc_cache);
    fn cuFuncSetSharedMemConfig(function: CUfunction, config: CUsharedconfig);
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void
    );
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        n_bytes: *mut usize, function: CUfunction, n_blocks: c_int, block: c_int
    );
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        n_blocks: *mut c_int, function: CUfunction, block: c_int, shared_bytes: usize
    );
    fn cuOccupancyMaxPotentialBlockSize(
        min_grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_bytes_of_block: CUoccupancyB2DSize,
        shared_bytes: usize, block_limit: c_int
    );

    // Graphs.
    fn cuGraphAddKernelNode(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, n_dependencies: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS
    );
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    fn cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, n_edges: *mut usize);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, n_nodes: *mut usize);
    fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS);
    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);

    // Arrays, textures, surfaces.
    fn cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR);
    fn cuArray3DGetDescriptor_v2(descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray);
    fn cuArrayDestroy(array: CUarray);
    fn cuSurfObjectCreate(surface: *mut CUsurfObject, descriptor: *const CUDA_RESOURCE_DESC);
    fn cuSurfObjectDestroy(surface: CUsurfObject);
    fn cuSurfObjectGetResourceDesc(descriptor: *mut CUDA_RESOURCE_DESC, surface: CUsurfObject);
    fn cuTexObjectCreate(
        texture: *mut CUtexObject, descriptor: *const CUDA_RESOURCE_DESC,
        texture_descriptor: *const CUDA_TEXTURE_DESC, view_descriptor: *const CUDA_RESOURCE_VIEW_DESC
    );
    fn cuTexObjectDestroy(texture: CUtexObject);
    fn cuTexObjectGetResourceDesc(descriptor: *mut CUDA_RESOURCE_DESC, texture: CUtexObject);
}

/// It must also work without a driver: `cust` formats its errors with it, and a formatter that fails panics.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    if text.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let answer =
        ask(c"cuGetErrorString", error as u32).unwrap_or_else(|| match crate::driver_present() {
            true => c"the driver has no description of this error",
            false => c"no CUDA driver: libcuda.so.1 could not be opened",
        });
    // SAFETY: the caller gives a place to write to, or null, which was refused above.
    unsafe { text.write(answer.as_ptr()) };
    CUresult::CUDA_SUCCESS
}

const _: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult =
    cust_raw::cuGetErrorString;
