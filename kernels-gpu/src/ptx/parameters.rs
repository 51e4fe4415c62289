//! Where a kernel's parameters lie: what the tensor memory accelerator reads its tensor maps from.

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
