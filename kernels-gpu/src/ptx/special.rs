//! Special registers: the index of a thread, and the beginning of its block's shared memory.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::lane;

// The size is given at launch. Every kernel of a module shares this declaration.
#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 1024 .b8 shared_memory[];");

/// `mov.u32 r, %tid.x`: this thread's index in its block.
///
/// PTX 1.0, sm_10.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn thread_idx_x() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %tid.x;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: lane::thread_idx()
    }
}

/// `mov.u32 r, %ctaid.x`: this block's index in the grid.
///
/// PTX 1.0, sm_10.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn block_idx_x() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %ctaid.x;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: lane::block_idx()
    }
}

/// `mov.u32 r, %ntid.x`: threads of a block.
///
/// PTX 1.0, sm_10.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn block_dim_x() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %ntid.x;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: lane::block_dim()
    }
}

/// `mov.u32 r, %nctaid.x`: blocks of the grid.
///
/// PTX 1.0, sm_10.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn grid_dim_x() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %nctaid.x;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: lane::grid_dim()
    }
}

/// `mov.b32`: `x`, as a number of which the compiler knows nothing: what follows from it is worked out where it is wanted, and
/// not kept in registers from before a loop.
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn opaque(x: u32) -> u32 {
    bodies! {
        y: u32 = ptx!("mov.b32 {y}, {x};", y = out(reg32) y, x = in(reg32) x, options(nomem, nostack));
        cpu: x
    }
}

/// `mov.u32 r, %laneid`: this thread's index in its warp.
///
/// PTX 1.3, sm_10.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn lane_idx() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %laneid;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: lane::lane_idx()
    }
}

/// `mov.u32 r, %smid`: the multiprocessor that the thread runs on now.
///
/// PTX 1.3, sm_10.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sm_id() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, %smid;", x = out(reg32) x, options(nomem, nostack));
        cpu: lane::sm_id()
    }
}

/// `mov.u64 r, %globaltimer`: nanoseconds by a clock that all multiprocessors have in common. It goes on in ticks: of 32 ns on some GPUs,
/// of 1 µs on others.
///
/// PTX 3.1, sm_30.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn global_timer() -> u64 {
    bodies! {
        // It must not move past a barrier or an access to memory.
        x: u64 = ptx!("mov.u64 {x}, %globaltimer;", x = out(reg64) x, options(nostack));
        cpu: lane::global_timer()
    }
}

/// `mov.u64 r, %clock64`: cycles of the multiprocessor's clock.
///
/// PTX 2.0, sm_20.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn clock64() -> u64 {
    bodies! {
        // As above.
        x: u64 = ptx!("mov.u64 {x}, %clock64;", x = out(reg64) x, options(nostack));
        cpu: lane::clock64()
    }
}

/// `mov.u32 r, shared_memory`: address of the block's dynamic shared memory, 1024-byte aligned.
///
/// PTX 1.0, sm_10.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn shared_base() -> u32 {
    bodies! {
        x: u32 = ptx!("mov.u32 {x}, shared_memory;", x = out(reg32) x, options(pure, nomem, nostack));
        cpu: lane::shared_base()
    }
}

/// `trap`: ends the kernel with an error.
///
/// PTX 1.0, sm_10.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: the instruction does not return.
    unsafe { core::arch::asm!("trap;", options(noreturn)) }
}
