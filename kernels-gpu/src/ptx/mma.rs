//! Tensor-core products of a warp: `D = A·B + C`, A 16×16 by rows, B 16×8 by columns, C and D 16×8 in `f32`.
//!
//! Fragments (PTX manual, "Matrix Fragments for mma.m16n8k16 with floating point type"), with `group = lane / 4` and
//! `quad = lane % 4`; each register of A and B holds two elements, the one with the lower k in its lower half:
//!
//! | register | row | column or k |
//! |---|---|---|
//! | `a[0]` | group | 2·quad, 2·quad + 1 |
//! | `a[1]` | group + 8 | 2·quad, 2·quad + 1 |
//! | `a[2]` | group | 2·quad + 8, 2·quad + 9 |
//! | `a[3]` | group + 8 | 2·quad + 8, 2·quad + 9 |
//! | `b[0]` | (n =) group | (k =) 2·quad, 2·quad + 1 |
//! | `b[1]` | (n =) group | (k =) 2·quad + 8, 2·quad + 9 |
//! | `acc[0]`, `acc[1]` | group | 2·quad, 2·quad + 1 |
//! | `acc[2]`, `acc[3]` | group + 8 | 2·quad, 2·quad + 1 |
//!
//! Of tf32, A is 16×8 and B 8×8, C and D are as above; a register holds one element ("Matrix Fragments for mma.m16n8k8"):
//!
//! | register | row | column or k |
//! |---|---|---|
//! | `a[0]`, `a[2]` | group | quad, quad + 4 |
//! | `a[1]`, `a[3]` | group + 8 | quad, quad + 4 |
//! | `b[0]`, `b[1]` | (n =) group | (k =) quad, quad + 4 |

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::mma;

/// `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`: `acc += a · b`.
///
/// PTX 7.0, sm_80.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mma_m16n8k16_bf16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    bodies! {
        ptx!(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 \
             {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, \
             {{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};",
            d0 = inout(reg32) acc[0], d1 = inout(reg32) acc[1], d2 = inout(reg32) acc[2], d3 = inout(reg32) acc[3],
            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
            b0 = in(reg32) b[0], b1 = in(reg32) b[1],
            options(nomem, nostack)
        );
        cpu: mma::m16n8k16("mma.m16n8k16.bf16", mma::Operand::Bf16, acc, a, b)
    }
}

/// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`: `acc += a · b`.
///
/// PTX 7.0, sm_80.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mma_m16n8k16_f16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    bodies! {
        ptx!(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 \
             {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, \
             {{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};",
            d0 = inout(reg32) acc[0], d1 = inout(reg32) acc[1], d2 = inout(reg32) acc[2], d3 = inout(reg32) acc[3],
            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
            b0 = in(reg32) b[0], b1 = in(reg32) b[1],
            options(nomem, nostack)
        );
        cpu: mma::m16n8k16("mma.m16n8k16.f16", mma::Operand::F16, acc, a, b)
    }
}

/// `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`: `acc += a · b`; of each register of `a` and `b` the lower 13 bits make no difference.
///
/// PTX 7.0, sm_80.
///
/// # Safety
/// All 32 lanes of the warp reach it together.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn mma_m16n8k8_tf32(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    bodies! {
        ptx!(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 \
             {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, \
             {{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};",
            d0 = inout(reg32) acc[0], d1 = inout(reg32) acc[1], d2 = inout(reg32) acc[2], d3 = inout(reg32) acc[3],
            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
            b0 = in(reg32) b[0], b1 = in(reg32) b[1],
            options(nomem, nostack)
        );
        cpu: mma::m16n8k8_tf32(acc, a, b)
    }
}
