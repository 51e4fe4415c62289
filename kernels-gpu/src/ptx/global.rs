//! Loads and stores of global memory. Addresses are 64-bit.

mod loads;

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::global;

pub use loads::{ld_global_u8, ld_global_x2_or};

/// `ld.global.b16`: 2 bytes of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_u16(addr: u64) -> u16 {
    bodies! {
        x: u16 = ptx!("ld.global.b16 {x}, [{a}];", x = out(reg16) x, a = in(reg64) addr, options(nostack, readonly));
        cpu: u16::from_le_bytes(global::load("ld.global.b16", addr))
    }
}

/// `ld.global.b32`: 4 bytes of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_u32(addr: u64) -> u32 {
    bodies! {
        x: u32 = ptx!("ld.global.b32 {x}, [{a}];", x = out(reg32) x, a = in(reg64) addr, options(nostack, readonly));
        cpu: u32::from_le_bytes(global::load("ld.global.b32", addr))
    }
}

/// `ld.global.v2.b32`: 8 bytes of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_x2(addr: u64) -> [u32; 2] {
    bodies! {
        mut x = [0; 2], ptx!(
            "ld.global.v2.b32 {{{x0}, {x1}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], a = in(reg64) addr,
            options(nostack, readonly)
        );
        cpu: global::words::<2, 8>(global::load("ld.global.v2.b32", addr))
    }
}

/// `ld.global.v4.b32`: 16 bytes of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_x4(addr: u64) -> [u32; 4] {
    bodies! {
        mut x = [0; 4], ptx!(
            "ld.global.v4.b32 {{{x0}, {x1}, {x2}, {x3}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], x2 = out(reg32) x[2], x3 = out(reg32) x[3],
            a = in(reg64) addr,
            options(nostack, readonly)
        );
        cpu: global::words::<4, 16>(global::load("ld.global.v4.b32", addr))
    }
}

/// `ld.global.f32`: 4 bytes of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_f32(addr: u64) -> f32 {
    bodies! {
        x: f32 = ptx!("ld.global.f32 {x}, [{a}];", x = out(reg32) x, a = in(reg64) addr, options(nostack, readonly));
        cpu: f32::from_le_bytes(global::load("ld.global.f32", addr))
    }
}

/// `ld.global.v4.f32`: 16 bytes of global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_global_f32x4(addr: u64) -> [f32; 4] {
    bodies! {
        mut x = [0.0; 4], ptx!(
            "ld.global.v4.f32 {{{x0}, {x1}, {x2}, {x3}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], x2 = out(reg32) x[2], x3 = out(reg32) x[3],
            a = in(reg64) addr,
            options(nostack, readonly)
        );
        cpu: global::words::<4, 16>(global::load("ld.global.v4.f32", addr)).map(f32::from_bits)
    }
}

/// `st.global.u8`: a byte to global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_u8(addr: u64, x: u8) {
    bodies! {
        ptx!("st.global.u8 [{a}], {x};", a = in(reg64) addr, x = in(reg32) u32::from(x), options(nostack));
        cpu: global::store("st.global.u8", addr, x.to_le_bytes())
    }
}

/// `st.global.b16`: 2 bytes to global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_u16(addr: u64, x: u16) {
    bodies! {
        ptx!("st.global.b16 [{a}], {x};", a = in(reg64) addr, x = in(reg16) x, options(nostack));
        cpu: global::store("st.global.b16", addr, x.to_le_bytes())
    }
}

/// `st.global.b32`: 4 bytes to global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_u32(addr: u64, x: u32) {
    bodies! {
        ptx!("st.global.b32 [{a}], {x};", a = in(reg64) addr, x = in(reg32) x, options(nostack));
        cpu: global::store("st.global.b32", addr, x.to_le_bytes())
    }
}

/// `st.global.v2.b32`: 8 bytes to global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_x2(addr: u64, x: [u32; 2]) {
    bodies! {
        ptx!(
            "st.global.v2.b32 [{a}], {{{x0}, {x1}}};",
            a = in(reg64) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1],
            options(nostack)
        );
        cpu: global::store("st.global.v2.b32", addr, global::bytes::<2, 8>(x))
    }
}

/// `st.global.v4.b32`: 16 bytes to global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_x4(addr: u64, x: [u32; 4]) {
    bodies! {
        ptx!(
            "st.global.v4.b32 [{a}], {{{x0}, {x1}, {x2}, {x3}}};",
            a = in(reg64) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: global::store("st.global.v4.b32", addr, global::bytes::<4, 16>(x))
    }
}

/// `st.global.f32`: 4 bytes to global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_f32(addr: u64, x: f32) {
    bodies! {
        ptx!("st.global.f32 [{a}], {x};", a = in(reg64) addr, x = in(reg32) x, options(nostack));
        cpu: global::store("st.global.f32", addr, x.to_le_bytes())
    }
}

/// `st.global.v4.f32`: 16 bytes to global memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in global memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_f32x4(addr: u64, x: [f32; 4]) {
    bodies! {
        ptx!(
            "st.global.v4.f32 [{a}], {{{x0}, {x1}, {x2}, {x3}}};",
            a = in(reg64) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: global::store(
            "st.global.v4.f32",
            addr,
            global::bytes::<4, 16>(x.map(f32::to_bits)),
        )
    }
}

/// `@p st.global.b32`: 4 bytes to global memory where `predicate` holds.
///
/// PTX 1.0, sm_10.
///
/// The predicate stands inside the instruction: a branch around the store would make the compiler copy the code
/// that follows into both of its paths.
///
/// # Safety
/// Where `predicate` holds, as [`st_global_u32`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_u32_if(addr: u64, x: u32, predicate: bool) {
    bodies! {
        ptx!(
            "{{ .reg .pred p;",
            "setp.ne.u32 p, {p}, 0;",
            "@p st.global.b32 [{a}], {x}; }}",
            p = in(reg32) predicate as u32, a = in(reg64) addr, x = in(reg32) x, options(nostack)
        );
        cpu: if predicate {
            global::store("st.global.b32", addr, x.to_le_bytes());
        }
    }
}

/// `@p st.global.f32`: 4 bytes to global memory where `predicate` holds.
///
/// PTX 1.0, sm_10.
///
/// The predicate stands inside the instruction: a branch around the store would make the compiler copy the code
/// that follows into both of its paths.
///
/// # Safety
/// Where `predicate` holds, as [`st_global_f32`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_f32_if(addr: u64, x: f32, predicate: bool) {
    bodies! {
        ptx!(
            "{{ .reg .pred p;",
            "setp.ne.u32 p, {p}, 0;",
            "@p st.global.f32 [{a}], {x}; }}",
            p = in(reg32) predicate as u32, a = in(reg64) addr, x = in(reg32) x, options(nostack)
        );
        cpu: if predicate {
            global::store("st.global.f32", addr, x.to_le_bytes());
        }
    }
}

/// `@p st.global.v2.b32`: 8 bytes to global memory where `predicate` holds.
///
/// PTX 1.0, sm_10.
///
/// The predicate stands inside the instruction: a branch around the store would make the compiler copy the code
/// that follows into both of its paths.
///
/// # Safety
/// Where `predicate` holds, as [`st_global_x2`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_x2_if(addr: u64, x: [u32; 2], predicate: bool) {
    bodies! {
        ptx!(
            "{{ .reg .pred p;",
            "setp.ne.u32 p, {p}, 0;",
            "@p st.global.v2.b32 [{a}], {{{x0}, {x1}}}; }}",
            p = in(reg32) predicate as u32, a = in(reg64) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1],
            options(nostack)
        );
        cpu: if predicate {
            global::store("st.global.v2.b32", addr, global::bytes::<2, 8>(x));
        }
    }
}

/// `@p st.global.v4.b32`: 16 bytes to global memory where `predicate` holds.
///
/// PTX 1.0, sm_10.
///
/// The predicate stands inside the instruction: a branch around the store would make the compiler copy the code
/// that follows into both of its paths.
///
/// # Safety
/// Where `predicate` holds, as [`st_global_x4`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_global_x4_if(addr: u64, x: [u32; 4], predicate: bool) {
    bodies! {
        ptx!(
            "{{ .reg .pred p;",
            "setp.ne.u32 p, {p}, 0;",
            "@p st.global.v4.b32 [{a}], {{{x0}, {x1}, {x2}, {x3}}}; }}",
            p = in(reg32) predicate as u32, a = in(reg64) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1],
            x2 = in(reg32) x[2], x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: if predicate {
            global::store("st.global.v4.b32", addr, global::bytes::<4, 16>(x));
        }
    }
}
