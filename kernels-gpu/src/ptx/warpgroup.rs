//! Instructions of a warpgroup as a whole: its registers.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::warpgroup;

/// `setmaxnreg.dec.sync.aligned.u32 N`: each thread of the warpgroup gives back its registers above `N`.
///
/// PTX 8.0, sm_90a.
///
/// # Safety
/// All four warps of the warpgroup reach it; `N` is a multiple of 8 in 24 ..= 256, and not above what the threads hold.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn setmaxnreg_dec<const N: u32>() {
    bodies! {
        ptx!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const N, options(nostack));
        cpu: warpgroup::release_registers("setmaxnreg.dec", N)
    }
}

/// `setmaxnreg.inc.sync.aligned.u32 N`: each thread of the warpgroup waits for registers up to `N`.
///
/// The registers of a block are those at its launch: more than other warpgroups have given back is never granted.
///
/// PTX 8.0, sm_90a.
///
/// # Safety
/// All four warps of the warpgroup reach it; `N` is a multiple of 8 in 24 ..= 256, and not below what the threads hold.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn setmaxnreg_inc<const N: u32>() {
    bodies! {
        ptx!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const N, options(nostack));
        cpu: warpgroup::take_registers("setmaxnreg.inc", N)
    }
}
