//! The address of a kernel's parameters, from which the tensor memory accelerator reads its tensor maps.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::global;

/// `cvta.param.u64` of a parameter of the entry of this name (a literal), counted from 0: its generic address. `$p` borrows
/// the same parameter, and is what the CPU takes the address of.
///
/// PTX 7.7, sm_70.
macro_rules! parameter_address {
    ($entry:expr, $idx:literal, $p:expr) => {{
        #[cfg(target_arch = "nvptx64")]
        {
            let address: u64;
            // SAFETY: the entry has the parameter, which PTX names so; its address is worked out, nothing is accessed.
            #[allow(unused_unsafe)]
            unsafe {
                core::arch::asm!(
                    concat!("mov.b64 {address}, ", $entry, "_param_", $idx, ";"),
                    "cvta.param.u64 {address}, {address};",
                    address = out(reg64) address,
                    options(pure, nomem, nostack)
                )
            };
            address
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            core::ptr::from_ref($p).expose_provenance() as u64
        }
    }};
}
pub(crate) use parameter_address;

/// `ld.v4.b32`: 16 bytes of the parameters or of global memory, by a generic address.
///
/// PTX 2.0, sm_20.
///
/// # Safety
/// The address is that of a parameter, or is in global memory and was written before; it is 16-byte aligned.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn ld_generic_x4(addr: u64) -> [u32; 4] {
    bodies! {
        mut x = [0; 4], ptx!(
            "ld.v4.b32 {{{x0}, {x1}, {x2}, {x3}}}, [{a}];",
            x0 = out(reg32) x[0], x1 = out(reg32) x[1], x2 = out(reg32) x[2], x3 = out(reg32) x[3],
            a = in(reg64) addr,
            options(nostack, readonly)
        );
        cpu: global::words::<4, 16>(global::load_generic("ld.v4.b32", addr))
    }
}
