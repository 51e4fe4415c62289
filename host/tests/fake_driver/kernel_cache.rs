//! Kernels kept in a folder: compiled by the first process, loaded by the next; what is damaged, or of something else, is compiled anew.
//!
//! A device whose last handle is dropped has unloaded all: the next one is as in a new process.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use ferroflash::backend::cuda::kernel_cache::Damage;
use ferroflash::backend::cuda::{CacheFault, KernelCacheUse, Origin};
use ferroflash_kernels::spec::Spec;

use super::kernels::two_kernels;
use super::*;

/// A folder that is not there yet, in one that goes with the test.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let around = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = around.path().join("of/kernels");
    (around, folder)
}

/// What a process sees that loads one kernel: the driver's calls, where the kernel came from, what the cache says.
fn process(folder: &Path) -> (Vec<Call>, Origin, KernelCacheUse) {
    let device = gpu(0).with_kernel_cache(folder).unwrap();
    let cuda = device.as_cuda().unwrap();
    let [(variant, spec), _] = two_kernels();
    let mut origin = None;
    let calls = calls_of(|| origin = Some(cuda.kernel(variant, spec).unwrap().statistics().origin));
    (calls, origin.unwrap(), cuda.kernel_cache_use())
}

const COMPILED: [Call; 2] = [Call::Compile, Call::Load];

/// Expects that the kernel is compiled and written, and the next process loads it.
#[track_caller]
fn compiled_and_then_not(folder: &Path) -> KernelCacheUse {
    let (calls, origin, so_far) = process(folder);
    // A cubin that the driver refuses has been loaded in vain before.
    let compiled = calls.iter().position(|call| *call == Call::Compile);
    assert_eq!(compiled.map(|at| &calls[at..]), Some(&COMPILED[..]));
    assert_eq!((origin, so_far.n_written), (Origin::Compiled, 1));
    let loaded = KernelCacheUse {
        n_loaded: 1,
        ..KernelCacheUse::default()
    };
    assert_eq!(process(folder), (vec![Call::Load], Origin::Cache, loaded));
    so_far
}

/// The files of a folder, all of them.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn the_second_process_compiles_nothing() {
    let _turn = turn();
    let (_around, folder) = folder();
    let first = compiled_and_then_not(&folder);
    let written = KernelCacheUse {
        n_written: 1,
        ..KernelCacheUse::default()
    };
    assert_eq!(first, written);
    let [file] = &files(&folder)[..] else {
        panic!("{:?}", files(&folder));
    };
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with("forward_sm80_bf16_d64.") && name.ends_with(".cubin"),
        "{name}"
    );
}

/// A linker's cubin would be relocatable code, in which the consumers get no registers of the producer.
#[test]
fn kernels_that_share_registers_out_are_not_kept() {
    let _turn = turn();
    let (_around, folder) = folder();
    let device = gpu(0).with_kernel_cache(&folder).unwrap();
    let cuda = device.as_cuda().unwrap();
    let load = |name| {
        let variant = variants::by_name(name).unwrap();
        let mut origin = None;
        let calls = calls_of(|| {
            let kernel = cuda.kernel(variant, Spec::PLAIN).unwrap();
            origin = Some(kernel.statistics().origin);
        });
        (calls, origin.unwrap())
    };
    let shares = (vec![Call::Load], Origin::NotKept);
    assert_eq!(load("forward_sm90a_bf16_d128"), shares);
    assert!(files(&folder).is_empty());
    let expected = KernelCacheUse {
        n_not_kept: 1,
        ..KernelCacheUse::default()
    };
    assert_eq!(cuda.kernel_cache_use(), expected);
    let (calls, origin) = load("forward_sm90a_bf16_d192_compact");
    assert_eq!((&calls[..], origin), (&COMPILED[..], Origin::Compiled));
}

#[test]
fn without_a_folder_nothing_is_kept() {
    let _turn = turn();
    let device = gpu(0);
    let cuda = device.as_cuda().unwrap();
    let [(variant, spec), _] = two_kernels();
    let calls = calls_of(|| {
        let kernel = cuda.kernel(variant, spec).unwrap();
        assert_eq!(kernel.statistics().origin, Origin::Driver);
    });
    assert_eq!((calls, cuda.kernel_cache()), (vec![Call::Load], None));
    assert_eq!(cuda.kernel_cache_use(), KernelCacheUse::default());
}

/// A kernel is another one with another spec or expression, on another device, by another driver.
#[test]
fn what_is_compiled_from_something_else_has_another_file() {
    let _turn = turn();
    let (_around, folder) = folder();
    compiled_and_then_not(&folder);
    fake::state().version = 13010;
    compiled_and_then_not(&folder);
    fake::state().compute_capability = (8, 9);
    compiled_and_then_not(&folder);
    assert_eq!(files(&folder).len(), 3);
    let device = gpu(0).with_kernel_cache(&folder).unwrap();
    let cuda = device.as_cuda().unwrap();
    let [_, (variant, causal)] = two_kernels();
    let kernel = cuda.kernel(variant, causal).unwrap();
    assert_eq!(kernel.statistics().origin, Origin::Compiled);
    assert_eq!(files(&folder).len(), 4);
}

#[test]
fn a_damaged_file_is_compiled_anew() {
    let _turn = turn();
    let (_around, folder) = folder();
    compiled_and_then_not(&folder);
    let [(file, whole)] = &files(&folder)
        .into_iter()
        .map(|file| (file.clone(), fs::read(file).unwrap()))
        .collect::<Vec<_>>()[..]
    else {
        panic!("one file");
    };
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let mut of_another = whole.clone();
    of_another[20] ^= 1;
    for (bytes, expected) in [
        (&whole[..whole.len() - 7], None),
        (&whole[..30], None),
        (&[][..], Some(Damage::Foreign)),
        (b"\x7fELF, but somebody else's", Some(Damage::Foreign)),
        (&flipped, Some(Damage::Contents)),
        (&of_another, Some(Damage::OtherKernel)),
    ] {
        fs::write(file, bytes).unwrap();
        let so_far = compiled_and_then_not(&folder);
        let Some(CacheFault::Damaged {
            file: named,
            damage,
        }) = so_far.last_fault
        else {
            panic!("{so_far:?}");
        };
        let expected = match expected {
            Some(expected) => damage == expected,
            None => matches!(damage, Damage::Length { .. }),
        };
        assert!(
            expected && named == *file && so_far.n_unusable == 1,
            "{damage}"
        );
        assert_eq!(fs::read(file).unwrap(), *whole);
    }
    // What cannot be read, a folder in its place, cannot be replaced either.
    fs::remove_file(file).unwrap();
    fs::create_dir(file).unwrap();
    let (calls, origin, so_far) = process(&folder);
    assert_eq!((&calls[..], origin), (&COMPILED[..], Origin::NotWritten));
    assert_eq!((so_far.n_unusable, so_far.n_not_written), (1, 1));
}

#[test]
fn a_cubin_that_the_driver_refuses_is_compiled_anew() {
    let _turn = turn();
    let (_around, folder) = folder();
    compiled_and_then_not(&folder);
    fake::state().cubin_answer = 209;
    let device = gpu(0).with_kernel_cache(&folder).unwrap();
    let cuda = device.as_cuda().unwrap();
    let [(variant, spec), _] = two_kernels();
    // The fresh one is refused, too: that is the driver's last word.
    let mut refused = None;
    let calls = calls_of(|| refused = cuda.kernel(variant, spec).err());
    assert_eq!(calls, [Call::Load, Call::Compile, Call::Load]);
    assert!(
        matches!(refused, Some(DriverError::Load { .. })),
        "{refused:?}"
    );
    let so_far = cuda.kernel_cache_use();
    assert!(
        matches!(so_far.last_fault, Some(CacheFault::Refused { .. })),
        "{so_far:?}"
    );
    fake::state().cubin_answer = 0;
    let kernel = cuda.kernel(variant, spec).unwrap();
    assert_eq!(kernel.statistics().origin, Origin::Cache);
}

#[test]
fn what_the_compiler_refuses_is_not_kept() {
    let _turn = turn();
    let (_around, folder) = folder();
    let device = gpu(0).with_kernel_cache(&folder).unwrap();
    let cuda = device.as_cuda().unwrap();
    let [(variant, spec), _] = two_kernels();
    fake::state().load_answer = (222, c"of another toolchain");
    let error = cuda.kernel(variant, spec).unwrap_err();
    assert!(
        error.to_string().contains("of another toolchain"),
        "{error}"
    );
    assert_eq!(files(&folder), [""; 0].map(PathBuf::from));
    let linkers = |kind: &&Kind| matches!(kind, Kind::Linker { .. });
    assert_eq!(fake::state().alive.values().filter(linkers).count(), 0);
}

/// Two devices of one kind want one file, at once.
#[test]
fn two_may_write_one_file() {
    let _turn = turn();
    let (_around, folder) = folder();
    let [(variant, spec), _] = two_kernels();
    fake::state().compile_together = 2;
    let begin = Barrier::new(2);
    std::thread::scope(|scope| {
        for ordinal in 0..2 {
            let (begin, folder) = (&begin, &folder);
            scope.spawn(move || {
                begin.wait();
                let device = gpu(ordinal).with_kernel_cache(folder).unwrap();
                let kernel = device.as_cuda().unwrap().kernel(variant, spec).unwrap();
                assert_eq!(kernel.statistics().origin, Origin::Compiled);
            });
        }
    });
    assert_eq!(files(&folder).len(), 1);
    let (calls, origin, _) = process(&folder);
    assert_eq!((calls, origin), (vec![Call::Load], Origin::Cache));
}

#[test]
fn a_folder_that_does_not_serve_is_an_error_that_names_it() {
    let _turn = turn();
    let (around, _) = folder();
    let file = around.path().join("file");
    fs::write(&file, "").unwrap();
    for folder in [file.clone(), file.join("below")] {
        let refused = gpu(0).with_kernel_cache(&folder).unwrap_err();
        let Error::Driver(DriverError::KernelCache { folder: named, .. }) = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(*named, folder);
        assert!(
            refused.to_string().contains(folder.to_str().unwrap()),
            "{refused}"
        );
    }
}

/// The folder is there when it is asked for, and gone when a kernel is written.
#[test]
fn a_kernel_that_cannot_be_written_serves_all_the_same() {
    let _turn = turn();
    let (_around, folder) = folder();
    let device = gpu(0).with_kernel_cache(&folder).unwrap();
    let cuda = device.as_cuda().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let [(variant, spec), _] = two_kernels();
    let kernel = cuda.kernel(variant, spec).unwrap();
    assert_eq!(kernel.statistics().origin, Origin::NotWritten);
    let so_far = cuda.kernel_cache_use();
    assert_eq!((so_far.n_written, so_far.n_not_written), (0, 1));
    let Some(CacheFault::NotWritten { kind, .. }) = so_far.last_fault else {
        panic!("{so_far:?}");
    };
    assert_eq!(kind, ErrorKind::NotFound);
}

#[test]
fn the_last_folder_counts_and_the_same_one_goes_on() {
    let _turn = turn();
    let (_around, first) = folder();
    let second = first.join("second");
    let device = gpu(0).with_kernel_cache(&first).unwrap();
    let cuda = device.as_cuda().unwrap();
    let [plain, causal] = two_kernels();
    cuda.kernel(plain.0, plain.1).unwrap();
    cuda.keep_kernels_in(first.join(".")).unwrap();
    assert_eq!(cuda.kernel_cache_use().n_written, 1);
    cuda.keep_kernels_in(&second).unwrap();
    assert_eq!(cuda.kernel_cache(), Some(second.canonicalize().unwrap()));
    cuda.kernel(causal.0, causal.1).unwrap();
    assert_eq!(files(&second).len(), 1);
    let cpu = Device::cpu()
        .with_kernel_cache(second.join("nothing"))
        .unwrap();
    assert!(cpu.as_cuda().is_none() && !second.join("nothing").exists());
}
