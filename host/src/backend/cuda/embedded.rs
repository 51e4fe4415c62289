//! The PTX of the kernels, deflated, one module per variant: that of the crate `ferroflash-ptx` or, with the feature `build-kernels`, what the
//! build script compiled.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};

use ferroflash_driver::Version;
use ferroflash_kernels::spec::Spec;
use ferroflash_kernels::variants::{Arch, VARIANTS, by_name};

use crate::error::DriverError;

#[cfg(feature = "build-kernels")]
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

#[cfg(not(feature = "build-kernels"))]
use ferroflash_ptx::MODULES;

#[cfg(not(feature = "build-kernels"))]
static NO_MODULES: Option<&str> = None;

/// Where the kernels come from, in words.
///
/// The [module](crate::backend::cuda) has an example.
pub fn origin_of_kernels() -> &'static str {
    if cfg!(feature = "build-kernels") {
        "compiled with this program"
    } else {
        "compiled beforehand (ferroflash-ptx)"
    }
}

/// Whether stand-in modules replace the embedded ones.
static STAND_INS: AtomicBool = AtomicBool::new(false);

/// From now on every kernel of this process is an entry without instructions, whatever was embedded: for tests above a
/// driver made of functions, which needs a text to load and runs none.
#[cfg(feature = "stand-ins")]
pub fn use_stand_ins() {
    STAND_INS.store(true, Ordering::Relaxed);
}

fn stand_ins_are_used() -> bool {
    STAND_INS.load(Ordering::Relaxed)
}

/// Why this program has no kernels, if it has none; in one line, with the remedy.
///
/// The [module](crate::backend::cuda) has an example.
pub fn missing_kernels() -> Option<&'static str> {
    NO_MODULES.filter(|_| !stand_ins_are_used())
}

/// A module with an empty entry that only names the constants of its kind.
fn stand_in(name: &str, arch: Arch) -> Option<CString> {
    let constants = by_name(name).map_or(Spec::PLAIN, |variant| variant.capabilities());
    let named: String = constants
        .constants()
        .map(|constant| format!("\tmov.u32 %r1, {};\n", constant.symbol()))
        .collect();
    let arch = arch.name();
    let text = format!(
        ".version 8.0\n.target {arch}\n.address_size 64\n.visible .entry {name}()\n{{\n\t.reg .b32 %r<2>;\n{named}\tret;\n}}\n"
    );
    CString::new(text).ok()
}

/// The PTX of a module: of a variant, which has its name, or of the probes.
pub(super) fn ptx(name: &'static str, arch: Arch) -> Result<CString, DriverError> {
    if stand_ins_are_used() {
        return stand_in(name, arch).ok_or(DriverError::CorruptKernel { kernel: name });
    }
    if let Some(reason) = NO_MODULES {
        return Err(DriverError::NoKernels {
            detail: reason.to_owned(),
        });
    }
    let (_, _, deflated) = MODULES
        .iter()
        .find(|(module, for_arch, _)| *module == name && *for_arch == arch.name())
        .ok_or(DriverError::NotEmbedded { kernel: name })?;
    text(deflated).ok_or(DriverError::CorruptKernel { kernel: name })
}

/// The oldest CUDA whose driver takes embedded kernels: those of the oldest architecture, which come first. `None` without kernels.
///
/// The [module](crate::backend::cuda) has an example.
pub fn needed_cuda() -> Option<Version> {
    if stand_ins_are_used() {
        return needed_by(&stand_in(VARIANTS.first()?.name, Arch::Sm80)?);
    }
    let (_, _, deflated) = MODULES.first()?;
    needed_by(&text(deflated)?)
}

/// The text of a deflated module.
fn text(deflated: &[u8]) -> Option<CString> {
    let text = miniz_oxide::inflate::decompress_to_vec(deflated).ok()?;
    CString::new(text).ok()
}

/// The oldest CUDA whose driver takes a module: that which brought the version of PTX in its `.version` line.
pub(super) fn needed_by(ptx: &CStr) -> Option<Version> {
    let text = ptx.to_str().ok()?;
    let version = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(".version"))?;
    let (major, minor) = version.trim().split_once('.')?;
    cuda_of_ptx(major.parse().ok()?, minor.parse().ok()?)
}

/// The release of CUDA that brought a version of PTX: "Release history" of the PTX ISA. Versions that are not there
/// are left to the driver to judge.
fn cuda_of_ptx(major: u32, minor: u32) -> Option<Version> {
    let (major, minor) = match (major, minor) {
        (7, minor @ 0..=8) => (11, minor),
        (8, minor @ 0..=5) => (12, minor),
        // PTX 8.6 came with CUDA 12.7; 12.6 brought none.
        (8, minor @ 6..=8) => (12, minor + 1),
        (9, minor @ 0..=1) => (13, minor),
        _ => return None,
    };
    Some(Version { major, minor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_is_embedded_with_its_entry_or_the_reason_is_said() {
        match missing_kernels() {
            Some(reason) => {
                assert!(MODULES.is_empty() && !reason.is_empty());
                assert!(matches!(
                    ptx(VARIANTS[0].name, Arch::Sm80),
                    Err(DriverError::NoKernels { .. })
                ));
            }
            None => {
                for variant in ferroflash_kernels::variants::compiled() {
                    let text = ptx(variant.name, variant.arch)
                        .unwrap()
                        .into_string()
                        .unwrap();
                    assert!(
                        text.contains(&format!(".entry {}(", variant.name)),
                        "{}",
                        variant.name
                    );
                }
                assert!(needed_cuda().is_some());
            }
        }
    }

    #[test]
    fn a_kernel_that_is_not_embedded_is_named() {
        let expected = match missing_kernels() {
            Some(reason) => DriverError::NoKernels {
                detail: reason.to_owned(),
            },
            None => DriverError::NotEmbedded {
                kernel: "no_such_kernel",
            },
        };
        assert_eq!(ptx("no_such_kernel", Arch::Sm80), Err(expected));
    }

    #[test]
    fn a_broken_module_is_no_text() {
        assert_eq!(text(&[0xff, 0x00, 0x12]), None);
        let whole = miniz_oxide::deflate::compress_to_vec(b".version 8.0\n", 6);
        assert_eq!(text(&whole[..whole.len() - 3]), None);
        assert_eq!(text(&whole), CString::new(".version 8.0\n").ok());
    }

    #[test]
    fn the_needed_driver_is_read_from_the_text() {
        let needed =
            |text: &str| needed_by(&CString::new(text).unwrap()).map(|version| version.to_string());
        assert_eq!(
            needed("//\n//\n\n.version 8.0\n.target sm_80\n").as_deref(),
            Some("12.0")
        );
        assert_eq!(needed(".version 7.1").as_deref(), Some("11.1"));
        assert_eq!(needed(".version 8.7").as_deref(), Some("12.8"));
        assert_eq!(needed(".version 9.0").as_deref(), Some("13.0"));
        assert_eq!(needed(".version 42.0"), None);
        assert_eq!(needed(".target sm_80"), None);
    }
}
