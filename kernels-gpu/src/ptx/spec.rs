//! Specialisation constants: see [`crate::spec`].

use crate::spec::{Constant, for_each_constant, with_optional_inputs};

/// `mov.u32 r, ferroflash_spec_…`: a function for each constant. On the GPU its value is what the host has put in place of its symbol, on the
/// emulator that of the launch. It is 0 if the builder compiles kernels that do not use it: the code under it is then not in their text.
macro_rules! readers {
    ($($(#[$doc:meta])* $constant:ident $reader:ident $name:literal;)*) => {$(
        #[doc = concat!("`mov.u32 r, ferroflash_spec_", $name, "`: [`Constant::", stringify!($constant), "`].")]
        ///
        /// PTX 1.0, sm_10.
        #[inline(always)]
        pub fn $reader() -> bool {
            #[cfg(target_arch = "nvptx64")]
            {
                let _ = Constant::$constant;
                if cfg!(ferroflash_without = $name) {
                    return false;
                }
                let x: u32;
                ptx!(concat!("mov.u32 {x}, ferroflash_spec_", $name, ";"), x = out(reg32) x, options(pure, nomem, nostack));
                x != 0
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                crate::emu::lane::spec().has(Constant::$constant)
            }
        }
    )*};
}

for_each_constant!(readers);
