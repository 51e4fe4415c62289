//! Asynchronous copies from global to shared memory, 16 or 4 bytes by each thread.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::copies::{self, Instruction};

/// `cp.async.cg.shared.global [dst], [src], 16, src_bytes`: 16 bytes from global to shared memory, later.
///
/// PTX 7.0, sm_80.
///
/// Reads the first `src_bytes` (0 to 16) bytes at `src` and fills the rest with 0: with 0 it reads nothing.
///
/// # Safety
/// `dst` is in the block's shared memory and `src` in global memory, both 16-byte aligned. Nothing uses `dst` until
/// this thread has waited for the copy's group.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn cp_async_cg_16(dst: u32, src: u64, src_bytes: u32) {
    bodies! {
        ptx!(
            "cp.async.cg.shared.global [{dst}], [{src}], 16, {bytes};",
            dst = in(reg32) dst, src = in(reg64) src, bytes = in(reg32) src_bytes, options(nostack)
        );
        cpu: {
            let instruction = Instruction {
                name: "cp.async.cg.shared.global",
                bytes: 16,
            };
            copies::issue(instruction, dst, src, src_bytes);
        }
    }
}

/// `cp.async.ca.shared.global [dst], [src], 4, src_bytes`: 4 bytes from global to shared memory, later.
///
/// PTX 7.0, sm_80.
///
/// As [`cp_async_cg_16`], of 4 bytes.
///
/// # Safety
/// As [`cp_async_cg_16`]; both addresses are 4-byte aligned.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn cp_async_ca_4(dst: u32, src: u64, src_bytes: u32) {
    bodies! {
        ptx!(
            "cp.async.ca.shared.global [{dst}], [{src}], 4, {bytes};",
            dst = in(reg32) dst, src = in(reg64) src, bytes = in(reg32) src_bytes, options(nostack)
        );
        cpu: {
            let instruction = Instruction {
                name: "cp.async.ca.shared.global",
                bytes: 4,
            };
            copies::issue(instruction, dst, src, src_bytes);
        }
    }
}

/// `cp.async.commit_group`: the copies issued since the last commit become this thread's newest group.
///
/// PTX 7.0, sm_80.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn cp_async_commit_group() {
    bodies! {
        ptx!("cp.async.commit_group;", options(nostack));
        cpu: copies::commit()
    }
}

/// `cp.async.wait_group N`: all but this thread's newest `N` groups have landed.
///
/// PTX 7.0, sm_80.
///
/// Other threads see what landed only after a barrier.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn cp_async_wait_group<const N: u32>() {
    bodies! {
        ptx!("cp.async.wait_group {n};", n = const N, options(nostack));
        cpu: copies::wait(N)
    }
}
