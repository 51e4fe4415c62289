//! A load of one byte, and one that may not happen.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::global;

/// `ld.global.u8`: a byte of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_u8(addr: u64) -> u8 {
    bodies! {
        x: u32 = ptx!("ld.global.u8 {x}, [{a}];", x = out(reg32) x, a = in(reg64) addr, options(nostack, readonly)) => x as u8;
        cpu: u8::from_le_bytes(global::load("ld.global.u8", addr))
    }
}

/// `@p ld.global.v2.b32`: 8 bytes of global memory where `predicate` holds, else `otherwise`.
///
/// PTX 1.0, sm_10.
///
/// The predicate stands inside the instruction: behind a branch ptxas does not know whether the lanes of a warp are together.
///
/// # Safety
/// Where `predicate` holds, as [`super::ld_global_x2`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_x2_or(addr: u64, otherwise: [u32; 2], predicate: bool) -> [u32; 2] {
    bodies! {
        mut x = otherwise, ptx!(
            "{{ .reg .pred p;",
            "setp.ne.u32 p, {p}, 0;",
            "@p ld.global.v2.b32 {{{x0}, {x1}}}, [{a}]; }}",
            p = in(reg32) predicate as u32, a = in(reg64) addr, x0 = inout(reg32) x[0], x1 = inout(reg32) x[1],
            options(nostack, readonly)
        );
        cpu: if predicate {
            global::words::<2, 8>(global::load("ld.global.v2.b32", addr))
        } else {
            otherwise
        }
    }
}
