//! Barriers of a block and of a warp. They order shared and global memory among those who take part.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::barrier;

/// `bar.sync id, threads`: waits until `threads` threads of the block have come to barrier `id`.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// All 32 lanes of the warp reach it together; `id < 16`; `threads` is a multiple of 32 and the same for all who come.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn barrier_sync(id: u32, threads: u32) {
    bodies! {
        ptx!("bar.sync {id}, {n};", id = in(reg32) id, n = in(reg32) threads, options(nostack));
        cpu: barrier::sync("bar.sync", id, threads)
    }
}

/// `bar.arrive id, threads`: counts as one of the `threads` of barrier `id` without waiting.
///
/// PTX 2.0, sm_20.
///
/// # Safety
/// As [`barrier_sync`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn barrier_arrive(id: u32, threads: u32) {
    bodies! {
        ptx!("bar.arrive {id}, {n};", id = in(reg32) id, n = in(reg32) threads, options(nostack));
        cpu: barrier::arrive("bar.arrive", id, threads)
    }
}

/// `bar.red.or.pred id, threads`: as [`barrier_sync`], and gives whether `x` holds in any of the threads. Whoever comes to
/// the barrier must bring a predicate.
///
/// PTX 2.0, sm_20.
///
/// # Safety
/// As [`barrier_sync`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn barrier_red_or(id: u32, threads: u32, x: bool) -> bool {
    bodies! {
        y: u32 = ptx!(
            "{{ .reg .pred p, q;",
            "setp.ne.u32 p, {x}, 0;",
            "bar.red.or.pred q, {id}, {n}, p;",
            "selp.u32 {y}, 1, 0, q; }}",
            y = out(reg32) y, x = in(reg32) x as u32, id = in(reg32) id, n = in(reg32) threads, options(nostack)
        ) => y != 0;
        cpu: barrier::red_or("bar.red.or.pred", id, threads, x)
    }
}

/// `bar.sync 0`: waits until all threads of the block have come.
///
/// PTX 1.0, sm_10.
///
/// # Safety
/// All threads of the block reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn barrier_sync_all() {
    bodies! {
        ptx!("bar.sync 0;", options(nostack));
        cpu: barrier::sync_all("bar.sync 0")
    }
}

/// `bar.warp.sync 0xffffffff`: all lanes of the warp see afterwards what any of them wrote before.
///
/// PTX 6.0, sm_30.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn warp_sync() {
    bodies! {
        ptx!("bar.warp.sync 0xffffffff;", options(nostack));
        cpu: barrier::warp_sync("bar.warp.sync")
    }
}
