//! Accesses of global memory by which threads of different blocks meet.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::atomic;

/// `red.relaxed.gpu.global.add.f32`: adds `x` to the number at `addr`, in no particular order.
///
/// PTX 6.0, sm_70.
///
/// # Safety
/// `addr` is in global memory, 4-byte aligned, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn red_add_f32(addr: u64, x: f32) {
    bodies! {
        ptx!(
            "red.relaxed.gpu.global.add.f32 [{a}], {x};",
            a = in(reg64) addr, x = in(reg32) x,
            options(nostack)
        );
        cpu: {
            atomic::update("red.relaxed.add.f32", addr, atomic::Order::Relaxed, |old| (f32::from_bits(old) + x).to_bits());
        }
    }
}

/// `red.relaxed.gpu.global.add.v4.f32`: adds four numbers to the four at `addr`, each in no particular order.
///
/// PTX 8.1, sm_90.
///
/// # Safety
/// `addr` is in global memory, 16-byte aligned, and its 16 bytes were written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn red_add_f32x4(addr: u64, x: [f32; 4]) {
    bodies! {
        ptx!(
            "red.relaxed.gpu.global.add.v4.f32 [{a}], {{{x0}, {x1}, {x2}, {x3}}};",
            a = in(reg64) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: atomic::add_f32x4("red.relaxed.add.v4.f32", addr, x)
    }
}

/// `@p red.relaxed.gpu.global.add.v4.f32`, where `predicate` is not 0: as [`red_add_f32x4`].
///
/// PTX 8.1, sm_90.
///
/// The predicate stands inside the instruction: behind a branch ptxas does not know whether the lanes of a warp are together.
///
/// # Safety
/// Where `predicate` is not 0, as [`red_add_f32x4`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn red_add_f32x4_if(addr: u64, x: [f32; 4], predicate: u32) {
    bodies! {
        ptx!(
            "{{ .reg .pred p; setp.ne.u32 p, {p}, 0; @p red.relaxed.gpu.global.add.v4.f32 [{a}], {{{x0}, {x1}, {x2}, {x3}}}; }}",
            p = in(reg32) predicate, a = in(reg64) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1],
            x2 = in(reg32) x[2], x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: if predicate != 0 {
            atomic::add_f32x4("red.relaxed.add.v4.f32", addr, x)
        }
    }
}

/// `atom.relaxed.gpu.global.add.u32`: adds `x` to the number at `addr` and gives what was there.
///
/// PTX 6.0, sm_70.
///
/// # Safety
/// `addr` is in global memory, 4-byte aligned, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn atom_add_u32(addr: u64, x: u32) -> u32 {
    bodies! {
        old: u32 = ptx!(
            "atom.relaxed.gpu.global.add.u32 {old}, [{a}], {x};",
            old = out(reg32) old, a = in(reg64) addr, x = in(reg32) x,
            options(nostack)
        );
        cpu: atomic::update(
            "atom.relaxed.add.u32",
            addr,
            atomic::Order::Relaxed,
            |old| old.wrapping_add(x),
        )
    }
}

/// `atom.relaxed.gpu.global.inc.u32`: adds 1 to the number at `addr`, which becomes 0 where it was `last`, and gives what
/// was there.
///
/// PTX 6.0, sm_70.
///
/// # Safety
/// `addr` is in global memory, 4-byte aligned, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn atom_inc_u32(addr: u64, last: u32) -> u32 {
    bodies! {
        old: u32 = ptx!(
            "atom.relaxed.gpu.global.inc.u32 {old}, [{a}], {last};",
            old = out(reg32) old, a = in(reg64) addr, last = in(reg32) last,
            options(nostack)
        );
        cpu: atomic::update(
            "atom.relaxed.inc.u32",
            addr,
            atomic::Order::Relaxed,
            |old| if old >= last { 0 } else { old + 1 },
        )
    }
}

/// `red.release.gpu.global.add.u32`: adds `x` to the number at `addr` after all this thread did before.
///
/// PTX 6.0, sm_70.
///
/// What other threads of the block did before a barrier that this thread also passed counts as done by this thread.
///
/// # Safety
/// `addr` is in global memory, 4-byte aligned, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn red_release_add_u32(addr: u64, x: u32) {
    bodies! {
        ptx!(
            "red.release.gpu.global.add.u32 [{a}], {x};",
            a = in(reg64) addr, x = in(reg32) x,
            options(nostack)
        );
        cpu: {
            atomic::update("red.release.add.u32", addr, atomic::Order::Release, |old| old.wrapping_add(x));
        }
    }
}

/// `ld.acquire.gpu.global.u32`: the number at `addr`; what its writer released is visible afterwards.
///
/// PTX 6.0, sm_70.
///
/// # Safety
/// `addr` is in global memory, 4-byte aligned, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_acquire_u32(addr: u64) -> u32 {
    bodies! {
        x: u32 = ptx!("ld.acquire.gpu.global.u32 {x}, [{a}];", x = out(reg32) x, a = in(reg64) addr, options(nostack));
        cpu: atomic::load("ld.acquire.u32", addr, atomic::Order::Acquire)
    }
}

/// `ld.relaxed.gpu.global.u32`: the number at `addr`, which other threads may be changing.
///
/// PTX 6.0, sm_70.
///
/// # Safety
/// `addr` is in global memory, 4-byte aligned, and was written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_relaxed_u32(addr: u64) -> u32 {
    bodies! {
        x: u32 = ptx!("ld.relaxed.gpu.global.u32 {x}, [{a}];", x = out(reg32) x, a = in(reg64) addr, options(nostack));
        cpu: atomic::load("ld.relaxed.u32", addr, atomic::Order::Relaxed)
    }
}

/// `st.release.gpu.global.u32`: stores `x` after all this thread did before.
///
/// PTX 6.0, sm_70.
///
/// # Safety
/// `addr` is in global memory, 4-byte aligned.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn st_release_u32(addr: u64, x: u32) {
    bodies! {
        ptx!("st.release.gpu.global.u32 [{a}], {x};", a = in(reg64) addr, x = in(reg32) x, options(nostack));
        cpu: atomic::store("st.release.u32", addr, atomic::Order::Release, x)
    }
}

/// `fence.acq_rel.gpu`: orders this thread's accesses before it before those after it, for all threads of the GPU.
///
/// PTX 6.0, sm_70.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn fence_acq_rel_gpu() {
    bodies! {
        ptx!("fence.acq_rel.gpu;", options(nostack));
        cpu: atomic::fence("fence.acq_rel.gpu")
    }
}
