//! The functions under the driver's names.

use std::sync::Once;

use super::{devices, graph, kernels, link, tensor_map, work};
use crate::entry::Address;
use crate::library;

/// Puts this driver in the place of the real one, once in this process; before anything asks for a driver.
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
    cuStreamDestroy_v2: work::destroy_stream,
    cuStreamGetCtx: work::context_of_stream,
    cuStreamSynchronize: work::synchronize_stream,
    cuStreamWaitEvent: work::wait_for_event,
    cuEventCreate: work::create_event,
    cuEventDestroy_v2: work::destroy_event,
    cuEventRecord: work::record_event,
    cuEventSynchronize: work::synchronize_event,
    cuEventElapsedTime: work::elapsed,
    cuMemAlloc_v2: work::allocate,
    cuMemFree_v2: work::free,
    cuMemGetInfo_v2: work::memory_info,
    cuMemcpyHtoDAsync_v2: work::copy,
    cuMemcpyDtoHAsync_v2: work::copy,
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
    cuGraphDestroy: graph::destroy,
    cuGraphExecDestroy: graph::destroy_ready,
    cuMemsetD8Async: work::fill,
    cuTensorMapEncodeTiled: tensor_map::encode,
}
