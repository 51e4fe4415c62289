//! 8×8 matrices of 16-bit elements from shared memory into the fragments of `mma`, and back.
//!
//! Lane `8·i + r` gives the address of row `r` (16 bytes) of matrix `i`; of `x2` only lanes 0 to 15 are asked, but
//! all lanes give an address. Register `i` of a lane receives elements `2·(lane % 4)` and `2·(lane % 4) + 1` of row
//! `lane / 4` of matrix `i`; with `.trans`, of its column `lane / 4`. What `stmatrix` stores, it hands in likewise.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::ldmatrix;

/// `ldmatrix.sync.aligned.m8n8.x4.shared.b16`: four 8×8 matrices.
///
/// PTX 6.5, sm_75.
///
/// # Safety
/// All 32 lanes of the warp reach it together. The addresses are in the block's shared memory, 16-byte aligned, and
/// their rows were written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ldmatrix_x4(addr: u32) -> [u32; 4] {
    bodies! {
        mut x = [0; 4], ptx!(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{x0}, {x1}, {x2}, {x3}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], x2 = out(reg32) x[2], x3 = out(reg32) x[3],
            a = in(reg32) addr,
            options(nostack, readonly)
        );
        cpu: ldmatrix::load("ldmatrix.x4", addr, ldmatrix::Order::Rows)
    }
}

/// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`: four 8×8 matrices, transposed.
///
/// PTX 6.5, sm_75.
///
/// # Safety
/// All 32 lanes of the warp reach it together. The addresses are in the block's shared memory, 16-byte aligned, and
/// their rows were written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ldmatrix_x4_trans(addr: u32) -> [u32; 4] {
    bodies! {
        mut x = [0; 4], ptx!(
            "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{x0}, {x1}, {x2}, {x3}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], x2 = out(reg32) x[2], x3 = out(reg32) x[3],
            a = in(reg32) addr,
            options(nostack, readonly)
        );
        cpu: ldmatrix::load("ldmatrix.x4.trans", addr, ldmatrix::Order::Transposed)
    }
}

/// `ldmatrix.sync.aligned.m8n8.x2.shared.b16`: two 8×8 matrices.
///
/// PTX 6.5, sm_75.
///
/// # Safety
/// All 32 lanes of the warp reach it together. The addresses are in the block's shared memory, 16-byte aligned, and
/// their rows were written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ldmatrix_x2(addr: u32) -> [u32; 2] {
    bodies! {
        mut x = [0; 2], ptx!(
            "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{x0}, {x1}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], a = in(reg32) addr, options(nostack, readonly)
        );
        cpu: ldmatrix::load("ldmatrix.x2", addr, ldmatrix::Order::Rows)
    }
}

/// `ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16`: two 8×8 matrices, transposed.
///
/// PTX 6.5, sm_75.
///
/// # Safety
/// All 32 lanes of the warp reach it together. The addresses are in the block's shared memory, 16-byte aligned, and
/// their rows were written before.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ldmatrix_x2_trans(addr: u32) -> [u32; 2] {
    bodies! {
        mut x = [0; 2], ptx!(
            "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{{x0}, {x1}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], a = in(reg32) addr, options(nostack, readonly)
        );
        cpu: ldmatrix::load("ldmatrix.x2.trans", addr, ldmatrix::Order::Transposed)
    }
}

/// `stmatrix.sync.aligned.m8n8.x4.shared.b16`: four 8×8 matrices to shared memory.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// All 32 lanes of the warp reach it together. The addresses are in the block's shared memory, 16-byte aligned, no two
/// of them the same; no other thread uses their rows now.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn stmatrix_x4(addr: u32, x: [u32; 4]) {
    bodies! {
        ptx!(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{a}], {{{x0}, {x1}, {x2}, {x3}}};",
            a = in(reg32) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: ldmatrix::store("stmatrix.x4", addr, x, ldmatrix::Order::Rows)
    }
}

/// `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16`: four 8×8 matrices to shared memory, transposed.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// As [`stmatrix_x4`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn stmatrix_x4_trans(addr: u32, x: [u32; 4]) {
    bodies! {
        ptx!(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{a}], {{{x0}, {x1}, {x2}, {x3}}};",
            a = in(reg32) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1], x2 = in(reg32) x[2],
            x3 = in(reg32) x[3],
            options(nostack)
        );
        cpu: ldmatrix::store("stmatrix.x4.trans", addr, x, ldmatrix::Order::Transposed)
    }
}

/// `stmatrix.sync.aligned.m8n8.x2.trans.shared.b16`: two 8×8 matrices to shared memory, transposed.
///
/// PTX 7.8, sm_90.
///
/// # Safety
/// As [`stmatrix_x4`].
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn stmatrix_x2_trans(addr: u32, x: [u32; 2]) {
    bodies! {
        ptx!(
            "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [{a}], {{{x0}, {x1}}};",
            a = in(reg32) addr, x0 = in(reg32) x[0], x1 = in(reg32) x[1],
            options(nostack)
        );
        cpu: ldmatrix::store("stmatrix.x2.trans", addr, x, ldmatrix::Order::Transposed)
    }
}
