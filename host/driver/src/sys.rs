//! The driver's handles as cuda.h declares them: addresses that only the driver follows. Other libraries declare the same as their own types; `cast`
//! converts between them.
#![allow(non_camel_case_types, missing_docs, reason = "the names are cuda.h's")]

use std::ffi::c_int;

macro_rules! handles {
    ($($name:ident: $target:ident;)*) => {$(
        #[repr(C)]
        pub struct $target {
            opaque: [u8; 0],
        }

        pub type $name = *mut $target;
    )*};
}

handles! {
    CUcontext: CUctx_st;
    CUevent: CUevent_st;
    CUfunction: CUfunc_st;
    CUgraph: CUgraph_st;
    CUgraphExec: CUgraphExec_st;
    CUlinkState: CUlinkState_st;
    CUmodule: CUmod_st;
    CUstream: CUstream_st;
}

/// A device: its index in the driver's list.
pub type CUdevice = c_int;

/// An address in device memory.
pub type CUdeviceptr = u64;
