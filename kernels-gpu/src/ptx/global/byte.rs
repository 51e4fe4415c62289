//! A load of one byte.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::global;

/// `ld.global.u8`: a byte of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address lies in global memory, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_u8(addr: u64) -> u8 {
    #[cfg(target_arch = "nvptx64")]
    {
        let x: u32;
        ptx!("ld.global.u8 {x}, [{a}];", x = out(reg32) x, a = in(reg64) addr, options(nostack, readonly));
        x as u8
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        u8::from_le_bytes(global::load("ld.global.u8", addr))
    }
}
