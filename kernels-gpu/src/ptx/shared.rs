//! Loads and stores of shared memory. Addresses are those of the shared window: see [`super::special::shared_base`].

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::shared_access;

/// `ld.shared.b32`: 4 bytes of shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_shared_u32(addr: u32) -> u32 {
    bodies! {
        x: u32 = ptx!("ld.shared.b32 {x}, [{a}];", x = out(reg32) x, a = in(reg32) addr, options(nostack, readonly));
        cpu: {
            let [x] = shared_access::load("ld.shared.b32", addr);
            x
        }
    }
}

/// `ld.shared.v2.b32`: 8 bytes of shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_shared_x2(addr: u32) -> [u32; 2] {
    bodies! {
        mut x = [0; 2], ptx!(
            "ld.shared.v2.b32 {{{x0}, {x1}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], a = in(reg32) addr,
            options(nostack, readonly)
        );
        cpu: shared_access::load("ld.shared.v2.b32", addr)
    }
}

/// `ld.shared.v4.b32`: 16 bytes of shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_shared_x4(addr: u32) -> [u32; 4] {
    bodies! {
        mut x = [0; 4], ptx!(
            "ld.shared.v4.b32 {{{x0}, {x1}, {x2}, {x3}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], x2 = out(reg32) x[2], x3 = out(reg32) x[3],
            a = in(reg32) addr,
            options(nostack, readonly)
        );
        cpu: shared_access::load("ld.shared.v4.b32", addr)
    }
}

/// `ld.shared.f32`: one `f32` of shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_shared_f32(addr: u32) -> f32 {
    bodies! {
        x: f32 = ptx!("ld.shared.f32 {x}, [{a}];", x = out(reg32) x, a = in(reg32) addr, options(nostack, readonly));
        cpu: {
            let [x] = shared_access::load("ld.shared.f32", addr);
            f32::from_bits(x)
        }
    }
}

/// `st.shared.b32`: 4 bytes to shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_shared_u32(addr: u32, x: u32) {
    bodies! {
        ptx!("st.shared.b32 [{a}], {x};", a = in(reg32) addr, x = in(reg32) x, options(nostack));
        cpu: shared_access::store("st.shared.b32", addr, [x])
    }
}

/// `st.shared.v2.b32`: 8 bytes to shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_shared_x2(addr: u32, x: [u32; 2]) {
    bodies! {
        ptx!(
            "st.shared.v2.b32 [{a}], {{{x0}, {x1}}};",
            a = in(reg32) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1],
            options(nostack)
        );
        cpu: shared_access::store("st.shared.v2.b32", addr, x)
    }
}

/// `st.shared.v4.b32`: 16 bytes to shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_shared_x4(addr: u32, x: [u32; 4]) {
    bodies! {
        ptx!(
            "st.shared.v4.b32 [{a}], {{{x0}, {x1}, {x2}, {x3}}};",
            a = in(reg32) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: shared_access::store("st.shared.v4.b32", addr, x)
    }
}

/// `st.shared.f32`: one `f32` to shared memory.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// The address is in the block's shared memory, aligned to the size of the access; no other thread uses it now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_shared_f32(addr: u32, x: f32) {
    bodies! {
        ptx!("st.shared.f32 [{a}], {x};", a = in(reg32) addr, x = in(reg32) x, options(nostack));
        cpu: shared_access::store("st.shared.f32", addr, [x.to_bits()])
    }
}
