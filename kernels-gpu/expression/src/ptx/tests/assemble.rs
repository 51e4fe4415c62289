//! Programs through ptxas, where the workspace has one under `target/tools` or the search path does.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::examples;
use super::harness::{PARAMETER_BYTES, program};
use super::tree::{self, Random};
use crate::Type;
use crate::ptx::{Edit, ScoreRows};

/// Fragments of a block, as a kernel with 64 scores per thread has them.
const FRAGMENTS: usize = 16;

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}

fn ptxas() -> Option<PathBuf> {
    let runs = |path: &Path| {
        let output = Command::new(path).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let wheels = std::fs::read_dir(target().join("tools/nvidia"));
    let wheels = wheels.into_iter().flatten().flatten();
    let mut found = wheels.map(|entry| entry.path().join("bin/ptxas"));
    found
        .find(|path| runs(path))
        .or_else(|| Some(PathBuf::from("ptxas")).filter(|path| runs(path)))
}

/// A kernel that loads the scores of each block, edits them, and stores them.
fn kernel(name: &str, gradient: bool) -> String {
    let mut text = format!(
        ".visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[{PARAMETER_BYTES}]\n)\n.maxntid 128, 1, 1\n{{\n\
         \t.reg .pred %p<2>;\n\t.reg .b32 %r<12>;\n\t.reg .f32 %f<{}>;\n\t.reg .b32 %d<{}>;\n\t.reg .b64 %rd<4>;\n\
         \tld.param.u64 %rd1, [{name}_param_0];\n\tld.param.u32 %r8, [{name}_param_0+8];\n\
         \tmov.u32 %r0, %ctaid.x;\n\tmov.u32 %r1, %ctaid.y;\n\tshr.u32 %r2, %r1, 2;\n\
         \tmov.u32 %r3, %nctaid.x;\n\tmov.u32 %r4, %r8;\n\tmov.u32 %r5, %tid.x;\n\tadd.s32 %r6, %r5, 8;\n\
         \tmul.wide.u32 %rd2, %r5, {};\n\tadd.s64 %rd1, %rd1, %rd2;\n\
         \tand.b32 %r7, %r5, 3;\n\tshl.b32 %r7, %r7, 1;\n\
         \tferroflash_score_tile %r0, %r1, %r2, %r3, %r4, %r5, %r6;\n$L_{name}:\n",
        4 * FRAGMENTS,
        4 * FRAGMENTS,
        16 * FRAGMENTS,
    );
    let list = |prefix: &str, fragment: usize| {
        let names = (0..4).map(|nth| format!("%{prefix}{}", 4 * fragment + nth));
        names.collect::<Vec<_>>().join(", ")
    };
    for fragment in 0..FRAGMENTS {
        let (x, at) = (list("f", fragment), 16 * fragment);
        let _ = writeln!(text, "\tld.global.v4.f32 {{{x}}}, [%rd1+{at}];");
    }
    text.push_str("\tferroflash_score_block %r7;\n");
    for fragment in 0..FRAGMENTS {
        let (x, d, c) = (list("f", fragment), list("d", fragment), 8 * fragment);
        let _ = if gradient {
            writeln!(text, "\tferroflash_score_gradient {x}, {d}, {c};")
        } else {
            writeln!(text, "\tferroflash_score {x}, {c};")
        };
    }
    for fragment in 0..FRAGMENTS {
        let (x, d, at) = (list("f", fragment), list("d", fragment), 16 * fragment);
        let _ = writeln!(text, "\tst.global.v4.f32 [%rd1+{at}], {{{x}}};");
        if gradient {
            let at = at + (1 << 20);
            let _ = writeln!(text, "\tst.global.v4.b32 [%rd1+{at}], {{{d}}};");
        }
    }
    let _ = write!(
        text,
        "\tadd.s64 %rd1, %rd1, 65536;\n\tadd.s32 %r7, %r7, {};\n\tsetp.lt.s32 %p1, %r7, %r8;\n\
         \t@%p1 bra $L_{name};\n\tret;\n}}\n",
        8 * FRAGMENTS
    );
    text
}

/// What a module begins with.
fn header(arch: &str) -> String {
    format!(".version 8.0\n.target {arch}\n.address_size 64\n")
}

fn assemble(ptxas: &Path, name: &str, arch: &str, entries: &str) {
    let folder = target().join("expression-ptx");
    std::fs::create_dir_all(&folder).unwrap();
    let ptx = folder.join(format!("{name}.{arch}.ptx"));
    std::fs::write(&ptx, header(arch) + entries).unwrap();
    let output = Command::new(ptxas)
        .arg(format!("-arch={arch}"))
        .arg("-o")
        .arg(ptx.with_extension("cubin"))
        .arg(&ptx)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", ptx.display());
}

/// Kernels of random edits.
fn random(seeds: std::ops::Range<u64>) -> String {
    let mut entries = String::new();
    for seed in seeds {
        let mut random = Random::new(seed);
        let edit = Edit {
            score: Some(tree::random(Type::F32, &mut random)),
            mask: (seed % 2 == 0).then(|| tree::random(Type::Bool, &mut random)),
            derivative: (seed % 3 == 0).then(|| tree::random(Type::F32, &mut random)),
        };
        let rows = random.of(&[ScoreRows::Queries, ScoreRows::Keys]);
        let name = format!("random_{seed}");
        let text = small(&name, edit.derivative.is_some());
        entries.push_str(&program(&edit, rows).splice(&text).unwrap());
    }
    entries
}

/// A kernel with the first of the fragments only, which assembles fast.
fn small(name: &str, gradient: bool) -> String {
    let text = kernel(name, gradient);
    let lines = text.lines().filter(|line| {
        !line.starts_with("\tferroflash_score") || !line.contains("%f") || line.contains("%f0,")
    });
    lines.map(|line| line.to_owned() + "\n").collect()
}

#[test]
fn programs_assemble() {
    let Some(ptxas) = ptxas() else {
        eprintln!("[not run] no ptxas");
        return;
    };
    let mut entries = random(0..24);
    for (name, edit) in examples::all() {
        let gradient = edit.derivative.is_some();
        let program = program(&edit, ScoreRows::Queries);
        entries.push_str(&program.splice(&kernel(name, gradient)).unwrap());
    }
    for arch in ["sm_80", "sm_90a"] {
        assemble(&ptxas, "some", arch, &entries);
    }
}

#[test]
#[ignore = "minutes: thousands of kernels"]
fn many_programs_assemble() {
    let ptxas = ptxas().expect("ptxas, under target/tools or in the search path");
    for arch in ["sm_80", "sm_90a"] {
        for part in 0..20 {
            let entries = random(100 * part..100 * (part + 1));
            assemble(&ptxas, &format!("many{part}"), arch, &entries);
        }
        for (name, edit) in examples::all() {
            let gradient = edit.derivative.is_some();
            let program = program(&edit, ScoreRows::Queries);
            let entries = program.splice(&kernel(name, gradient)).unwrap();
            assemble(&ptxas, name, arch, &entries);
        }
    }
}
