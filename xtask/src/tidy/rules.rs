//! The rules, each one function or one row of a table.

use super::instructions::check_instructions;
use super::source::{Source, has_word};

/// The lines that a hand-written file may have.
const FILE_LINES: usize = 800;

/// The lines of code that a function may have.
const FUNCTION_LINES: usize = 100;

/// The only places with `unsafe`.
const UNSAFE_ROOMS: [&str; 16] = [
    "kernels-gpu/src/ptx/",
    "kernels-gpu/src/tile/",
    "kernels-gpu/src/kernels/",
    "kernels-gpu/src/emu/",
    "kernels-gpu/src/entry",
    "kernels-gpu/tests/planted_bugs/",
    "host/src/backend/cuda/",
    "host/src/raw",
    "host/tests/fake_driver/foreign.rs",
    "host/examples/cust.rs",
    "host/driver/",
    "tests/tests/foreign/",
    "bindings/candle/src/memory/",
    "bindings/burn/src/memory/",
    "bindings/python/src/raw/",
    "bindings/python/src/dlpack/",
];

/// The only place with assembly.
const ASM_ROOM: &str = "kernels-gpu/src/ptx/";

/// Where probes are: a file and a folder.
const PROBE_ROOM: &str = "kernels-gpu/src/kernels/probes";

/// Words that a folder's code must not contain, and why.
const FORBIDDEN: [(&str, &str, &str); 9] = [
    (
        "kernels-gpu/src/attention/",
        "crate::ptx",
        "the algorithm's parts know no hardware",
    ),
    (
        "kernels-gpu/src/attention/",
        "crate::tile",
        "the algorithm's parts know no hardware",
    ),
    (
        "kernels-gpu/src/attention/",
        "crate::kernels",
        "the algorithm's parts know no hardware",
    ),
    (
        "kernels-gpu/src/",
        "env::var",
        "what runs depends on no environment variable",
    ),
    (
        "kernels-gpu/expression/src/",
        "env::var",
        "what runs depends on no environment variable",
    ),
    (
        "host/src/",
        "env::var",
        "what runs depends on no environment variable",
    ),
    (
        "host/src/",
        "env::var_os",
        "what runs depends on no environment variable",
    ),
    ("host/src/plan/", "cust", "planning has no device"),
    ("host/src/validate", "cust", "validation has no device"),
];

/// Names of files that say nothing.
const EMPTY_NAMES: [&str; 3] = ["utils.rs", "helpers.rs", "common.rs"];

/// Folders of one machine: no text of the project names them.
const MACHINE_FOLDERS: [&str; 4] = ["/root", "/home", "/work", "/tmp"];

/// Checks what can be said of one file alone.
pub fn check(source: &Source, faults: &mut Vec<String>) {
    let path = &source.path;
    for (at, line) in source.text.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            let begins = |at: usize| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '}' | '-'))
            };
            if line
                .match_indices(&format!("{folder}/"))
                .any(|(at, _)| begins(at))
            {
                faults.push(format!("{path}:{}: a path of one machine", at + 1));
            }
        }
        if line.ends_with([' ', '\t']) && !path.ends_with(".md") {
            faults.push(format!("{path}:{}: blanks at the end of the line", at + 1));
        }
    }
    if !source.is_rust() {
        return;
    }
    if !source.text.starts_with("//! ") {
        faults.push(format!(
            "{path}:1: a file begins with `//!` and says what it is"
        ));
    }
    if EMPTY_NAMES
        .iter()
        .any(|name| path.ends_with(&format!("/{name}")))
    {
        faults.push(format!("{path}:1: a file's name says what is in it"));
    }
    check_sizes(source, faults);
    check_rooms(source, faults);
    check_comments(source, faults);
    if path.starts_with(ASM_ROOM) {
        check_instructions(source, faults);
    }
    for (folder, word, reason) in FORBIDDEN {
        if path.starts_with(folder) {
            faults.extend(
                source
                    .lines_with(word)
                    .map(|line| format!("{path}:{line}: `{word}`: {reason}")),
            );
        }
    }
}

fn check_sizes(source: &Source, faults: &mut Vec<String>) {
    let path = &source.path;
    if source.is_generated() {
        return;
    }
    let n_lines = source.text.lines().count();
    if n_lines > FILE_LINES {
        faults.push(format!(
            "{path}:1: {n_lines} lines, a file has at most {FILE_LINES}"
        ));
    }
    for function in source.functions() {
        // What a comment explains does not make a function longer.
        let is_code = |line: &&str| !line.trim().is_empty();
        let n_lines = function.code.lines().filter(is_code).count();
        if n_lines > FUNCTION_LINES {
            faults.push(format!(
                "{path}:{}: `{}` has {n_lines} lines of code, a function has at most {FUNCTION_LINES}",
                function.line, function.name
            ));
        }
    }
}

fn check_rooms(source: &Source, faults: &mut Vec<String>) {
    let path = &source.path;
    if !UNSAFE_ROOMS.iter().any(|room| path.starts_with(room)) {
        faults.extend(
            source
                .lines_with("unsafe")
                .map(|line| format!("{path}:{line}: `unsafe` outside its rooms")),
        );
    }
    if !path.starts_with(ASM_ROOM) {
        for word in ["asm!", "global_asm!", "naked_asm!"] {
            faults.extend(
                source
                    .lines_with(word)
                    .map(|line| format!("{path}:{line}: `{word}` outside {ASM_ROOM}")),
            );
        }
    }
}

fn check_comments(source: &Source, faults: &mut Vec<String>) {
    for (at, line) in source.text.lines().enumerate() {
        let place = format!("{}:{}", source.path, at + 1);
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            continue;
        };
        if ["TO", "FIX"]
            .iter()
            .zip(["DO", "ME"])
            .any(|(a, b)| has_word(comment, &format!("{a}{b}")))
        {
            faults.push(format!(
                "{place}: what remains to be done is an issue, not a comment"
            ));
        }
        if ["---", "===", "***", "###"]
            .iter()
            .any(|banner| comment.trim_start().starts_with(banner))
        {
            faults.push(format!("{place}: a banner"));
        }
    }
}

/// What the host replaces before the driver compiles: no instructions of any GPU.
const PLACES_OF_EXPRESSIONS: &str = "kernels-gpu/src/ptx/score.rs";

/// Every instruction has a probe, by which the tests compare its two bodies on a GPU.
pub fn check_probes(sources: &[Source], faults: &mut Vec<String>) {
    let probes: Vec<&Source> = sources
        .iter()
        .filter(|source| source.path.starts_with(PROBE_ROOM))
        .collect();
    if probes.is_empty() {
        faults.push(format!("{PROBE_ROOM} has no file"));
    }
    let probed = |name| probes.iter().any(|source| has_word(&source.code, name));
    for source in sources
        .iter()
        .filter(|source| source.is_rust() && source.path.starts_with(ASM_ROOM))
        .filter(|source| source.path != PLACES_OF_EXPRESSIONS)
    {
        for function in source.functions() {
            let head = function.code.split('{').next().unwrap_or_default();
            // What never returns has no result to compare.
            let has_instruction = ["asm!", "ptx!"]
                .iter()
                .any(|word| has_word(function.code, word));
            if has_instruction && !head.contains("-> !") && !probed(function.name) {
                faults.push(format!(
                    "{}:{}: `{}` has no probe",
                    source.path, function.line, function.name
                ));
            }
        }
    }
}

/// What two manifests must not depend on: the kernels know expressions alone, expressions know nobody.
const STRANGERS: [(&str, &[&str]); 2] = [
    (
        "kernels-gpu/Cargo.toml",
        &["ferroflash", "ferroflash-driver", "cust", "cust_raw"],
    ),
    (
        "kernels-gpu/expression/Cargo.toml",
        &[
            "ferroflash",
            "ferroflash-kernels",
            "ferroflash-driver",
            "cust",
            "cust_raw",
        ],
    ),
];

/// The kernels know nobody above them, and expressions know no kernel.
pub fn check_dependencies(sources: &[Source], faults: &mut Vec<String>) {
    for (manifest, strangers) in STRANGERS {
        let Some(source) = sources.iter().find(|source| source.path == manifest) else {
            continue;
        };
        for &name in strangers {
            let names = |line: &str| line.split(['.', ' ', '=']).next() == Some(name);
            if source.text.lines().any(names) {
                faults.push(format!("{manifest}: it must not depend on {name}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn faults_of(path: &str, text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        check(
            &Source::new(PathBuf::from(path), text.to_owned()),
            &mut faults,
        );
        faults
    }

    #[test]
    fn every_rule_for_one_file_can_fail() {
        let function = format!(
            "//! A.\nfn a() {{\n{}}}\n",
            "    b();\n".repeat(FUNCTION_LINES)
        );
        let machine = format!("//! A.\n// {}/x\n", MACHINE_FOLDERS[0]);
        for (path, text) in [
            ("host/src/a.rs", "fn a() {}\n"),
            ("host/src/utils.rs", "//! A.\n"),
            ("host/src/a.rs", "//! A.\nfn a() { unsafe { b() } }\n"),
            ("kernels-gpu/src/tile/a.rs", "//! A.\nfn a() { asm!() }\n"),
            (
                "kernels-gpu/src/attention/a.rs",
                "//! A.\nuse crate::ptx::math;\n",
            ),
            ("host/src/a.rs", "//! A.\nfn a() { std::env::var(b) }\n"),
            ("host/src/a.rs", "//! A.\n// ---- b ----\n"),
            ("host/src/a.rs", "//! A. \n"),
            ("host/src/a.rs", &"//! A.\n".repeat(FILE_LINES + 1)),
            ("host/src/a.rs", &function),
            ("host/src/a.rs", &machine),
        ] {
            assert_eq!(
                faults_of(path, text).len(),
                1,
                "{path}: {text}: {:?}",
                faults_of(path, text)
            );
        }
    }

    #[test]
    fn rooms_and_words_in_comments_are_no_fault() {
        assert_eq!(
            faults_of(
                "kernels-gpu/src/ptx/a.rs",
                "//! A.\nfn a() { unsafe { asm!() } }\n"
            ),
            [""; 0]
        );
        assert_eq!(
            faults_of(
                "host/src/a.rs",
                "//! No unsafe asm! here.\n#![forbid(unsafe_code)]\n"
            ),
            [""; 0]
        );
    }

    #[test]
    fn an_instruction_without_a_probe_is_a_fault() {
        let ptx = "//! A.\npub fn a() { ptx!() }\npub fn b() { ptx!() }\npub fn c() -> ! { ptx!() }\npub fn d() {}\npub fn e() { ptx!() }\n";
        let sources = [
            Source::new(PathBuf::from("kernels-gpu/src/ptx/a.rs"), ptx.to_owned()),
            Source::new(
                PathBuf::from("kernels-gpu/src/kernels/probes.rs"),
                "//! A.\nprobe!(a);\n".to_owned(),
            ),
            Source::new(
                PathBuf::from("kernels-gpu/src/kernels/probes/more.rs"),
                "//! A.\nprobe!(e);\n".to_owned(),
            ),
        ];
        let mut faults = Vec::new();
        check_probes(&sources, &mut faults);
        assert_eq!(faults, ["kernels-gpu/src/ptx/a.rs:3: `b` has no probe"]);
    }

    #[test]
    fn kernels_that_know_the_host_and_expressions_that_know_kernels_are_a_fault() {
        let faults_of = |path: &str, name: &str| {
            let manifest = format!("[dependencies]\n{name}.workspace = true\n");
            let mut faults = Vec::new();
            let source = Source::new(PathBuf::from(path), manifest);
            check_dependencies(&[source], &mut faults);
            faults.len()
        };
        let (kernels, expression) = (STRANGERS[0].0, STRANGERS[1].0);
        assert_eq!(faults_of(kernels, "ferroflash"), 1);
        assert_eq!(faults_of(kernels, "ferroflash-expression"), 0);
        assert_eq!(faults_of(expression, "ferroflash-kernels"), 1);
    }
}
