//! A kernel cache whose kernels `ptxas` compiles: kept and found again, flash3's too; whatever goes wrong with it, the driver compiles, and it is said.
//!
//! Scripts stand in for `ptxas`. That a real one makes the cubins of flash3's kernels is for the command's tests.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferroflash::backend::cuda::{CacheFault, KernelCacheUse, KernelCompiler, Origin, Ptxas};
use ferroflash::error::PtxasError;
use ferroflash_kernels::spec::Spec;

use super::*;

/// A folder for kernels, and programs beside it; all go with the test.
struct Bench {
    _around: tempfile::TempDir,
    folder: PathBuf,
}

/// A kernel of flash3, whose warpgroups share registers out.
const SHARES_OUT: &str = "forward_sm90a_bf16_d128";

/// What a script writes where it is well: to the place behind `-o`. It counts its compilations in a file beside it.
const WRITES: &str = r#"while [ "$1" != -o ]; do shift; done
echo "ptxas info    : Used 168 registers" >&2
printf '\177ELF by %s' "$0" > "$2""#;

impl Bench {
    fn new() -> Bench {
        let around = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = around.path().join("kernels");
        Bench {
            _around: around,
            folder,
        }
    }

    /// A program that says to be of this version, and compiles by these words of a shell.
    fn ptxas(&self, version: &str, compile: &str) -> Ptxas {
        Ptxas::at(self.program(version, compile)).unwrap()
    }

    fn program(&self, version: &str, compile: &str) -> PathBuf {
        let program = self._around.path().join(format!("ptxas-{version}"));
        let release = version.rsplit_once('.').unwrap().0;
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then\n  echo asked >> \"$0.asked\"\n  \
             echo 'Cuda compilation tools, release {release}, V{version}'\n  exit 0\nfi\n\
             echo compiled \"$@\" >> \"$0.compiled\"\n{compile}\n"
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    /// The lines of a program's log.
    fn log(&self, ptxas: &Ptxas, which: &str) -> Vec<String> {
        let log = format!("{}.{which}", ptxas.program().display());
        let text = fs::read_to_string(log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(&self.folder).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// What a process sees that loads a kernel.
    fn process(&self, ptxas: Option<&Ptxas>, name: &str) -> (Vec<Call>, Origin, KernelCacheUse) {
        let device = match ptxas {
            Some(ptxas) => gpu(0).with_kernel_cache_by(ptxas.clone(), &self.folder),
            None => gpu(0).with_kernel_cache(&self.folder),
        };
        let device = device.unwrap();
        let cuda = device.as_cuda().unwrap();
        let variant = variants::by_name(name).unwrap();
        let mut origin = None;
        let calls = calls_of(|| {
            let kernel = cuda.kernel(variant, Spec::PLAIN).unwrap();
            origin = Some(kernel.statistics().origin);
        });
        (calls, origin.unwrap(), cuda.kernel_cache_use())
    }
}

const LOADED: [Call; 1] = [Call::Load];

fn used(change: impl FnOnce(&mut KernelCacheUse)) -> KernelCacheUse {
    let mut so_far = KernelCacheUse::default();
    change(&mut so_far);
    so_far
}

/// Of flash3's and of flash2's; the driver's compiler has nothing to do.
#[test]
fn all_kernels_are_kept() {
    let _turn = turn();
    let bench = Bench::new();
    let ptxas = bench.ptxas("13.0.88", WRITES);
    for (nth, name) in [SHARES_OUT, "forward_sm80_bf16_d64"]
        .into_iter()
        .enumerate()
    {
        let written = used(|so_far| so_far.n_written = 1);
        let assembled = (LOADED.to_vec(), Origin::Assembled, written);
        assert_eq!(bench.process(Some(&ptxas), name), assembled);
        let there = used(|so_far| so_far.n_loaded = 1);
        let cached = (LOADED.to_vec(), Origin::Cache, there);
        assert_eq!(bench.process(Some(&ptxas), name), cached);
        // A program without it finds them, too.
        assert_eq!(bench.process(None, name), cached);
        let files = bench.files();
        assert_eq!(files.len(), nth + 1, "{files:?}");
        assert!(
            files.iter().all(|file| file.contains(".ptxas-13.0.88-")),
            "{files:?}"
        );
    }
    let compiled = bench.log(&ptxas, "compiled");
    assert!(compiled[0].contains("-arch sm_90a "), "{}", compiled[0]);
    assert!(compiled[1].contains("-arch sm_90 "), "{}", compiled[1]);
    assert_eq!((compiled.len(), bench.log(&ptxas, "asked").len()), (2, 1));
}

#[test]
fn another_version_compiles_anew() {
    let _turn = turn();
    let bench = Bench::new();
    for (nth, version) in ["13.0.88", "13.1.9", "12.9.86"].into_iter().enumerate() {
        let ptxas = bench.ptxas(version, WRITES);
        let (_, origin, _) = bench.process(Some(&ptxas), SHARES_OUT);
        assert_eq!((origin, bench.files().len()), (Origin::Assembled, nth + 1));
        let (_, origin, _) = bench.process(Some(&ptxas), SHARES_OUT);
        assert_eq!(origin, Origin::Cache);
    }
}

/// A damaged file is compiled anew by what made it.
#[test]
fn a_damaged_file_is_assembled_anew() {
    let _turn = turn();
    let bench = Bench::new();
    let ptxas = bench.ptxas("13.0.88", WRITES);
    bench.process(Some(&ptxas), SHARES_OUT);
    let file = bench.folder.join(&bench.files()[0]);
    fs::write(&file, "something else").unwrap();
    let (calls, origin, so_far) = bench.process(Some(&ptxas), SHARES_OUT);
    assert_eq!((calls, origin), (LOADED.to_vec(), Origin::Assembled));
    assert_eq!(
        (so_far.n_unusable, so_far.n_written, so_far.n_fell_back),
        (1, 1, 0)
    );
    assert_eq!(bench.process(Some(&ptxas), SHARES_OUT).1, Origin::Cache);
}

/// Whatever is wrong with it, the call is served by the driver, and the fault says what it was.
#[test]
fn a_broken_ptxas_is_said_and_the_driver_compiles() {
    let _turn = turn();
    let silent = "exit 0";
    let none = "while [ \"$1\" != -o ]; do shift; done; echo no cubin > \"$2\"";
    let ignores = format!(
        "echo 'setmaxnreg ignored to maintain minimum register requirements' >&2\n{WRITES}"
    );
    for (version, compile, said) in [
        (
            "13.0.1",
            "echo 'ptxas fatal : no memory' >&2; exit 255",
            "no memory",
        ),
        ("13.0.2", silent, "is no cubin"),
        ("13.0.3", none, "is no cubin"),
        ("13.0.4", &ignores, "setmaxnreg ignored"),
        (
            "11.8.89",
            WRITES,
            "is of CUDA 11.8; kernel forward_sm90a_bf16_d128 needs 12.0",
        ),
        ("13.0.5", "kill -9 $$", "signal"),
    ] {
        let bench = Bench::new();
        let ptxas = bench.ptxas(version, compile);
        let (calls, origin, so_far) = bench.process(Some(&ptxas), SHARES_OUT);
        assert_eq!(
            (calls, origin),
            (LOADED.to_vec(), Origin::NotKept),
            "{version}"
        );
        assert_eq!(
            (so_far.n_fell_back, so_far.n_not_kept, so_far.n_written),
            (1, 1, 0)
        );
        let fault = so_far.last_fault.unwrap();
        let is_its = matches!(fault, CacheFault::NotAssembled(_));
        assert!(
            is_its && fault.to_string().contains(said),
            "{version}: {fault}"
        );
        assert_eq!(bench.files(), [""; 0], "{version}");
        // What the driver hands out is kept as without it.
        let (calls, origin, so_far) = bench.process(Some(&ptxas), "forward_sm80_bf16_d64");
        if compile != ignores {
            assert_eq!(
                (calls, origin),
                (vec![Call::Compile, Call::Load], Origin::Compiled)
            );
            assert_eq!((so_far.n_fell_back, so_far.n_written), (1, 1));
        }
    }
}

/// It was there when it was asked for its version.
#[test]
fn a_ptxas_that_is_gone_is_said() {
    let _turn = turn();
    let bench = Bench::new();
    let ptxas = bench.ptxas("13.0.88", WRITES);
    fs::remove_file(ptxas.program()).unwrap();
    let (_, origin, so_far) = bench.process(Some(&ptxas), SHARES_OUT);
    assert_eq!(origin, Origin::NotKept);
    let fault = so_far.last_fault.unwrap();
    assert!(
        matches!(fault, CacheFault::NotAssembled(PtxasError::NotRun { .. })),
        "{fault}"
    );
}

#[test]
fn what_is_no_ptxas_is_refused_when_it_is_named() {
    let bench = Bench::new();
    let program = bench.program("13.0.88", WRITES);
    fs::write(&program, "#!/bin/sh\necho GNU assembler\n").unwrap();
    let refused = Ptxas::at(&program).unwrap_err();
    let PtxasError::NoVersion { said, .. } = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!(said, "GNU assembler\n");
    assert!(
        refused.to_string().contains(program.to_str().unwrap()),
        "{refused}"
    );
}

/// A `ptxas` of a newer release than the driver: its cubins are taken no more, in this process and, after one look, in the next.
#[test]
fn a_cubin_that_the_driver_refuses_is_not_asked_for_again() {
    let _turn = turn();
    let bench = Bench::new();
    let ptxas = bench.ptxas("14.0.1", WRITES);
    fake::state().cubin_answer = 209;
    let device = gpu(0)
        .with_kernel_cache_by(ptxas.clone(), &bench.folder)
        .unwrap();
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
    // The cubin, then the text.
    let twice = vec![Call::Load, Call::Load];
    assert_eq!(load(SHARES_OUT), (twice, Origin::NotKept));
    let once = LOADED.to_vec();
    assert_eq!(load("forward_sm90a_bf16_d64"), (once, Origin::NotKept));
    assert_eq!(bench.log(&ptxas, "compiled").len(), 1);
    let so_far = cuda.kernel_cache_use();
    assert_eq!((so_far.n_fell_back, so_far.n_not_kept), (2, 2));
    let fault = so_far.last_fault.unwrap();
    assert!(matches!(fault, CacheFault::Refused { .. }), "{fault}");
    drop(device);
    let (calls, origin, so_far) = bench.process(Some(&ptxas), SHARES_OUT);
    assert_eq!(
        (calls, origin),
        (vec![Call::Load, Call::Load], Origin::NotKept)
    );
    assert_eq!((so_far.n_unusable, so_far.n_fell_back), (1, 1));
    assert_eq!(bench.log(&ptxas, "compiled").len(), 1);
    // With a driver that takes it, it is there.
    fake::state().cubin_answer = 0;
    assert_eq!(bench.process(Some(&ptxas), SHARES_OUT).1, Origin::Cache);
}

/// A cubin of other registers than its warpgroups share out is not launched; the driver has the last word.
#[test]
fn a_cubin_that_would_hang_is_compiled_by_the_driver() {
    let _turn = turn();
    let bench = Bench::new();
    let ptxas = bench.ptxas("13.0.88", WRITES);
    fake::state().registers = |_| 128;
    let device = gpu(0).with_kernel_cache_by(ptxas, &bench.folder).unwrap();
    let cuda = device.as_cuda().unwrap();
    let variant = variants::by_name(SHARES_OUT).unwrap();
    let mut refused = None;
    let calls = calls_of(|| refused = cuda.kernel(variant, Spec::PLAIN).err());
    assert_eq!(calls, [Call::Load, Call::Unload, Call::Load, Call::Unload]);
    assert!(
        matches!(refused, Some(DriverError::WouldHang { .. })),
        "{refused:?}"
    );
    let so_far = cuda.kernel_cache_use();
    assert_eq!((so_far.n_fell_back, so_far.n_not_kept), (1, 1));
    let fault = so_far.last_fault.unwrap();
    assert!(matches!(fault, CacheFault::WouldHang { .. }), "{fault}");
}

/// What is compiled ahead, without a driver, is what a device finds.
#[test]
fn kernels_compiled_ahead_are_found() {
    let _turn = turn();
    let bench = Bench::new();
    let ptxas = bench.ptxas("13.0.88", WRITES);
    let compiler = KernelCompiler::new(&bench.folder, ptxas.clone(), (9, 0)).unwrap();
    let variant = variants::by_name(SHARES_OUT).unwrap();
    let calls = calls_of(|| {
        for (origin, registers) in [(Origin::Assembled, Some(168)), (Origin::Cache, None)] {
            let compiled = compiler.compile(variant, Spec::PLAIN, None).unwrap();
            assert_eq!((compiled.origin, compiled.registers), (origin, registers));
            assert!(compiled.file.is_file());
        }
    });
    assert_eq!(calls, []);
    for ptxas in [Some(&ptxas), None] {
        let (calls, origin, _) = bench.process(ptxas, SHARES_OUT);
        assert_eq!((calls, origin), (LOADED.to_vec(), Origin::Cache));
    }
    // For another compute capability they are others.
    let other = KernelCompiler::new(&bench.folder, ptxas, (8, 0)).unwrap();
    let variant = variants::by_name("forward_sm80_bf16_d64").unwrap();
    other.compile(variant, Spec::PLAIN, None).unwrap();
    let (_, origin, _) = bench.process(None, "forward_sm80_bf16_d64");
    assert_eq!(origin, Origin::Compiled);
}

#[test]
fn a_folder_that_cannot_be_written_fails_what_is_compiled_ahead() {
    let bench = Bench::new();
    let ptxas = bench.ptxas("13.0.88", WRITES);
    let compiler = KernelCompiler::new(&bench.folder, ptxas, (9, 0)).unwrap();
    fs::remove_dir_all(&bench.folder).unwrap();
    let variant = variants::by_name("clear_sm80").or(variants::by_name(SHARES_OUT));
    let refused = compiler
        .compile(variant.unwrap(), Spec::PLAIN, None)
        .unwrap_err();
    let named = refused.to_string().contains(bench.folder.to_str().unwrap());
    assert!(
        named && matches!(refused, DriverError::Ptxas(_)),
        "{refused}"
    );
    assert!(!Path::new(&bench.folder).exists());
}
