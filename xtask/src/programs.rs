//! Other programs, run to their end, and what cargo says of those that it built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs a program; an error where it cannot begin, or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let words = words(command);
    eprintln!("{words}");
    let status = command
        .status()
        .with_context(|| format!("cannot run {words}"))?;
    match status.success() {
        true => Ok(()),
        false => bail!("{words} failed"),
    }
}

/// The program without its folder, and its arguments.
fn words(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let words: Vec<_> = std::iter::once(program)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}

/// A program that cargo built.
pub struct Executable {
    /// The target's name.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// The manifest of its package.
    pub manifest: PathBuf,
    /// Whether it has a test harness.
    pub is_test: bool,
    /// Whether it is a library, with the harness for its unit tests.
    pub is_library: bool,
}

/// What cargo printed with `--message-format=json…`, of the programs alone.
pub fn executables(printed: &[u8]) -> Result<Vec<Executable>> {
    let mut executables = Vec::new();
    for line in String::from_utf8_lossy(printed).lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let word = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let (Some(path), Some(name)) = (
            word(&message["executable"]),
            word(&message["target"]["name"]),
        ) else {
            continue;
        };
        executables.push(Executable {
            name,
            path: PathBuf::from(path),
            manifest: PathBuf::from(word(&message["manifest_path"]).unwrap_or_default()),
            is_test: message["profile"]["test"].as_bool() == Some(true),
            is_library: message["target"]["kind"][0].as_str() == Some("lib"),
        });
    }
    Ok(executables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_named_without_its_folder() {
        let failed = |command: &mut Command| run(command).expect_err("it fails").to_string();
        assert_eq!(
            failed(Command::new("/bin/sh").args(["-c", "exit 3"])),
            "sh -c exit 3 failed"
        );
        assert_eq!(
            failed(&mut Command::new("/nowhere/at-all")),
            "cannot run at-all"
        );
    }

    #[test]
    fn programs_are_found_among_what_cargo_says() {
        let printed = br#"{"reason":"compiler-artifact","executable":null,"target":{"name":"lib","kind":["lib"]}}
{"reason":"compiler-artifact","executable":"/t/cuda-1","manifest_path":"/p/Cargo.toml","profile":{"test":true},"target":{"name":"cuda","kind":["test"]}}
{"reason":"build-finished","success":true}
"#;
        let found = executables(printed).expect("lines of JSON");
        let [found] = found.as_slice() else {
            panic!("{} programs", found.len())
        };
        assert_eq!(found.name, "cuda");
        assert_eq!(found.path, Path::new("/t/cuda-1"));
        assert_eq!(found.manifest, Path::new("/p/Cargo.toml"));
        assert!(found.is_test && !found.is_library);
    }
}
