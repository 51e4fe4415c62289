//! The source of a cubin and its compiler, as in the names and the keys of files.

use std::ffi::CStr;

use ferroflash_driver::Version;
use ferroflash_kernels::variants::Variant;
use sha2::{Digest, Sha256};

use super::file;

/// The digest of all that a cubin is made from, and of what made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(pub(super) [u8; 32]);

/// The text of a kernel, for devices of one compute capability.
pub(super) struct Source<'a> {
    pub(super) variant: &'a Variant,
    pub(super) ptx: &'a CStr,
    pub(super) compute_capability: (u32, u32),
    digest: [u8; 32],
}

impl<'a> Source<'a> {
    /// Of a text as a compiler gets it.
    pub(super) fn new(
        variant: &'a Variant,
        ptx: &'a CStr,
        compute_capability: (u32, u32),
    ) -> Source<'a> {
        let (major, minor) = compute_capability;
        let mut digest = Sha256::new();
        for number in [file::FORMAT, major, minor] {
            digest.update(number.to_le_bytes());
        }
        digest.update(ptx.to_bytes());
        Source {
            variant,
            ptx,
            compute_capability,
            digest: digest.finalize().into(),
        }
    }

    /// Whether it uses `setmaxnreg`, which the driver's linker ignores.
    pub(super) fn shares_registers_out(&self) -> bool {
        self.variant.tile_config.launch_registers > 0
    }

    /// Of what this compiler makes of it.
    pub(super) fn key(&self, compiler: &str) -> Key {
        let mut digest = Sha256::new();
        digest.update(self.digest);
        digest.update(compiler);
        Key(digest.finalize().into())
    }

    /// The file of what this compiler makes of it.
    pub(super) fn file_name(&self, compiler: &str) -> String {
        format!("{}{compiler}{END}", self.beginning())
    }

    /// The compiler that the name of one of its files names.
    pub(super) fn compiler_of(&self, file_name: &str) -> Option<String> {
        let compiler = file_name.strip_prefix(&self.beginning())?;
        Some(compiler.strip_suffix(END)?.to_owned())
    }

    /// The prefix of the names of its files: the variant, and half of the digest in hexadecimal digits.
    fn beginning(&self) -> String {
        let digits = self.digest[..16].iter().map(|byte| format!("{byte:02x}"));
        format!("{}.{}.", self.variant.name, digits.collect::<String>())
    }
}

/// The suffix of file names.
const END: &str = ".cubin";

/// The driver's compiler, as names of files have it.
pub(super) fn of_driver(version: Version) -> String {
    format!("cuda-{version}")
}
