//! Where the third parameter of a probe lies: its tensor maps.

/// `cvta.param.u64` of the third parameter of the entry of this name (a literal): its generic address.
///
/// PTX 7.7, sm_70.
macro_rules! third_parameter_address {
    ($entry:expr) => {{
        let address: u64;
        // SAFETY: the entry has three parameters, which PTX names so; an address is worked out, nothing is accessed.
        unsafe {
            core::arch::asm!(
                concat!("mov.b64 {address}, ", $entry, "_param_2;"),
                "cvta.param.u64 {address}, {address};",
                address = out(reg64) address,
                options(pure, nomem, nostack)
            )
        };
        address
    }};
}
pub(crate) use third_parameter_address;
