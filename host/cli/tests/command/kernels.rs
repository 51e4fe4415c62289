//! Kernels compiled ahead, without a GPU: by a script in place of `ptxas`, and by a real one where there is one.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ferroflash_kernels::variants;

use super::*;

/// Writes what it says to be, behind `-o`.
const WELL: &str = "while [ \"$1\" != -o ]; do shift; done\necho 'ptxas info    : Used 96 registers' >&2\nprintf '\\177ELF by %s' \"$0\" > \"$2\"";

/// A script in place of `ptxas` in a new folder, and that folder.
fn ptxas(compile: &str) -> (tempfile::TempDir, String) {
    let around = tempfile::tempdir_in(scratch("")).unwrap();
    let program = around.path().join("ptxas");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'release 13.0, V13.0.88' && exit 0\n{compile}\n"
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let program = program.to_str().unwrap().to_owned();
    (around, program)
}

/// The arguments of a compilation of these calls for compute capability 9.0.
fn compile<'a>(calls: &[&'a str], folder: &'a Path, ptxas: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["kernels", "compile", "--compute-capability", "9.0"];
    for calls in calls {
        arguments.extend(["--for", calls]);
    }
    arguments.extend(["--folder", folder.to_str().unwrap(), "--ptxas", ptxas]);
    arguments
}

fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Whether this program has kernels; without them a test of what it compiles has nothing to compile.
fn has_kernels() -> bool {
    let (stdout, _) = expect(0, &["info", "--backend", "cpu", "--seqlen", "8"]);
    let has = !stdout.contains("none in this program");
    if !has {
        println!("[not run] kernels compiled ahead: this program has none");
    }
    has
}

#[test]
fn kernels_of_several_calls_are_listed_and_found_again() {
    if !has_kernels() {
        return;
    }
    let (around, ptxas) = ptxas(WELL);
    let folder = around.path().join("of/kernels");
    let calls = ["forward bf16 128 causal", "backward f16 64 window packed"];
    let arguments = compile(&calls, &folder, &ptxas);
    let (stdout, _) = expect(0, &arguments);
    let (_, kernels) = stdout.split_once('\n').unwrap();
    let line = |name: &str| {
        let line = kernels.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{stdout}"))
    };
    for kernel in [
        "forward_sm90a_bf16_d128 right_bound ",
        "forward_sm90a_bf16_d128_compact right_bound+split_kv ",
        "backward_sm90a_f16_d64 right_bound+left_bound+lengths ",
    ] {
        let line = line(kernel);
        assert!(line.contains(" 96 registers "), "{line}");
        assert!(
            line.ends_with("compiled by ptxas, and written to the kernel cache"),
            "{line}"
        );
    }
    let n = files(&folder).len();
    assert_eq!(kernels.lines().count(), n + 1, "{stdout}");
    let last = stdout.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("{n} compiled, 0 there already, 0 failed; ")),
        "{last}"
    );
    let (again, _) = expect(0, &arguments);
    let last = again.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("0 compiled, {n} there already, 0 failed; ")),
        "{last}"
    );
    assert_eq!(files(&folder).len(), n);
}

/// Two processes fill one folder with the same kernels at once.
#[test]
fn two_processes_fill_one_folder() {
    if !has_kernels() {
        return;
    }
    let (around, ptxas) = ptxas(WELL);
    let folder = around.path().join("kernels");
    let calls = ["backward bf16 64"];
    let arguments = compile(&calls, &folder, &ptxas);
    let outputs = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| ferroflash(&arguments)));
        both.map(|one| one.join().unwrap())
    });
    for output in outputs {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let (again, _) = expect(0, &arguments);
    let last = again.lines().last().unwrap();
    let n = files(&folder).len();
    assert!(
        last.starts_with(&format!("0 compiled, {n} there already")),
        "{last}"
    );
}

#[test]
fn kernels_that_are_not_compiled_are_said_with_the_reason() {
    if !has_kernels() {
        return;
    }
    let (around, ptxas) = ptxas("echo 'ptxas fatal : no memory' >&2; exit 255");
    let folder = around.path().join("kernels");
    let (stdout, _) = expect(3, &compile(&["backward bf16 64"], &folder, &ptxas));
    let line = stdout
        .lines()
        .find(|line| line.starts_with("backward_sm90a_bf16_d64 "));
    let line = line.unwrap();
    assert!(
        line.contains("failed: ") && line.contains("no memory"),
        "{stdout}"
    );
    assert!(
        stdout
            .lines()
            .last()
            .unwrap()
            .starts_with("0 compiled, 0 there already, ")
    );
    assert_eq!(files(&folder), [""; 0]);
}

#[test]
fn options_that_cannot_be_meant_are_bad_input() {
    let (around, ptxas) = ptxas(WELL);
    let folder = around.path().join("kernels");
    for (calls, message) in [
        (
            "forward bf16 128 casual",
            "\"casual\" is given for calls; allowed: causal, ",
        ),
        ("forward bf16 1280", "head_dim is 1280"),
        ("forward bf16 128 heads=3/2", "heads_q is 3"),
        (
            "",
            "nothing is given for the pass; allowed: forward, backward",
        ),
    ] {
        let (_, stderr) = expect(2, &compile(&[calls], &folder, &ptxas));
        assert!(stderr.contains(message), "{calls}: {stderr}");
    }
    let (_, stderr) = expect(
        2,
        &compile(&["forward bf16 128"], &folder, "/no/such/ptxas"),
    );
    assert!(
        stderr.contains("--ptxas: /no/such/ptxas cannot be run"),
        "{stderr}"
    );
    let arguments = compile(&["forward bf16 128"], &folder, &ptxas);
    let of_another = |given| {
        let mut arguments = arguments.clone();
        arguments[3] = given;
        arguments
    };
    let (_, stderr) = expect(2, &of_another("7.5"));
    assert!(
        stderr.contains("--compute-capability 7.5: no kernel runs there"),
        "{stderr}"
    );
    let (_, stderr) = expect(2, &of_another("nine"));
    assert!(stderr.contains("allowed: two numbers, as 9.0"), "{stderr}");
    // No kernel of flash3 runs there.
    let mut on_ampere = of_another("8.0");
    on_ampere[5] = "forward bf16 128 flash3";
    let (_, stderr) = expect(3, &on_ampere);
    assert!(stderr.contains("flash3"), "{stderr}");
}

/// A real `ptxas`: of the search path, a toolkit, or what `cargo xtask tools` has unpacked.
fn real_ptxas() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/nvidia/cu13/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let toolkit = std::env::var_os("CUDA_PATH").map(|folder| Path::new(&folder).join("bin"));
    std::env::split_paths(&path)
        .chain(toolkit)
        .chain([tools])
        .map(|folder| folder.join("ptxas"))
        .find(|program| program.is_file())
}

/// A kernel whose warpgroups share registers out is compiled as it should be: `ptxas` says where it leaves `setmaxnreg` out, and the kernel is then not kept.
#[test]
fn a_real_ptxas_compiles_flash3() {
    let Some(ptxas) = real_ptxas() else {
        println!(
            "[not run] flash3's kernels by ptxas: there is none (`cargo xtask tools` brings it)"
        );
        return;
    };
    if !has_kernels() {
        return;
    }
    let around = tempfile::tempdir_in(scratch("")).unwrap();
    let folder = around.path().join("kernels");
    let calls = ["forward bf16 128 causal batch=8 heads=16/16 seqlen=4096 flash3"];
    let (stdout, _) = expect(0, &compile(&calls, &folder, ptxas.to_str().unwrap()));
    let line = stdout.lines().nth(1).unwrap();
    let (name, _) = line.split_once(' ').unwrap();
    let tile_config = variants::by_name(name).unwrap().tile_config;
    let registers = tile_config.launch_registers;
    assert!(
        0 < registers && line.contains(&format!(" {registers} registers ")),
        "{line}"
    );
    let [file] = &files(&folder)[..] else {
        panic!("{:?}", files(&folder));
    };
    let bytes = fs::read(folder.join(file)).unwrap();
    assert!(bytes.windows(4).any(|bytes| bytes == b"\x7fELF"));
}

#[test]
fn times_of_first_uses_want_a_gpu() {
    let output = ferroflash(&["kernels", "time", "--for", "forward bf16 128 seqlen=512"]);
    let code = output.status.code();
    match code {
        Some(3) => assert!(text(&output.stderr).contains("CUDA"), "{output:?}"),
        _ => assert!(text(&output.stdout).contains("filled folder"), "{output:?}"),
    }
}
