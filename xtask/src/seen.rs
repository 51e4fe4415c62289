//! What tests can see of the sources, as digests: one decides the seed of the suites' samples, the others what `test --changed` runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::digest;
use crate::tidy::without_comments;

/// Folders and files of the workspace that decide what a suite does.
const SEEN: [&str; 15] = [
    "Cargo.lock",
    "Cargo.toml",
    "host/Cargo.toml",
    "host/build",
    "host/build.rs",
    "host/driver",
    "host/lab",
    "host/ptx",
    "host/src",
    "kernels-gpu",
    "tests/Cargo.toml",
    "tests/src",
    "tests/data",
    "tests/golden",
    "tests/tests",
];

/// Of these a suite does not depend: what is written for readers.
const ENDING_OF_TEXTS: &str = "md";

/// Where the digests of the code are kept that passed.
const GREEN: &str = "ci/green";

/// SHA-256 of everything that a suite can see, without the comments of Rust files, which change nothing.
pub fn digest_of_code(root: &Path) -> Result<String> {
    of_code(root, &files(root)?, without_comments)
}

/// SHA-256 of all files of the repository without the comments of Rust files. With `examples`, what stands between fences in their documentation counts,
/// as doctests run it.
pub fn digest_of_all_code(root: &Path, examples: bool) -> Result<String> {
    let kept = |text: &str| match examples {
        true => without_comments(text) + &examples_of(text),
        false => without_comments(text),
    };
    of_code(root, &files_of_repository(root)?, kept)
}

fn of_code(root: &Path, files: &[PathBuf], kept: impl Fn(&str) -> String) -> Result<String> {
    digest::of_files(root, files, |path, bytes| {
        if path.extension().is_none_or(|ending| ending != "rs") {
            return bytes;
        }
        let code = kept(&String::from_utf8_lossy(&bytes));
        let lines = code.lines().map(str::trim_end);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        lines.join("\n").into_bytes()
    })
}

/// The lines between fences in the documentation of a Rust file.
fn examples_of(text: &str) -> String {
    let mut examples = String::new();
    let mut within = false;
    for line in text.lines().map(str::trim_start) {
        let documents = ["///", "//!"]
            .iter()
            .find_map(|mark| line.strip_prefix(mark));
        let Some(line) = documents else {
            within = false;
            continue;
        };
        let is_fence = line.trim_start().starts_with("```");
        if within || is_fence {
            examples += line;
            examples.push('\n');
        }
        within ^= is_fence;
    }
    examples
}

/// The files that git tracks, and those that it would if they were added.
fn files_of_repository(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let output = git.output().context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let files = names.split('\0').map(|name| root.join(name));
    let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    files.sort();
    Ok(files)
}

fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for name in SEEN {
        let path = root.join(name);
        if path.exists() {
            files.extend(digest::files_at(&path)?);
        }
    }
    files.retain(|path| {
        path.extension()
            .is_none_or(|ending| ending != ENDING_OF_TEXTS)
    });
    files.sort();
    Ok(files)
}

/// Whether these tests were green with code of this digest.
pub fn was_green(target: &Path, tests: &str, digest: &str) -> bool {
    fs::read_to_string(target.join(GREEN).join(tests)).is_ok_and(|kept| kept == digest)
}

/// Keeps that they were.
pub fn keep_green(target: &Path, tests: &str, digest: &str) -> Result<()> {
    let folder = target.join(GREEN);
    fs::create_dir_all(&folder)?;
    let path = folder.join(tests);
    fs::write(&path, digest).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for one test, gone at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("ferroflash-seen-{name}-{}", std::process::id());
            Folder(std::env::temp_dir().join(name))
        }

        fn write(&self, path: &str, text: &str) -> Result<()> {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
            Ok(fs::write(path, text)?)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_change_of_any_source_changes_the_digest_and_a_comment_does_not() -> Result<()> {
        let folder = Folder::new("digests");
        let digest = || digest_of_code(&folder.0);
        folder.write("host/src/lib.rs", "fn a() {\n    \"// b\"\n}\n")?;
        let first = digest()?;
        assert_eq!(digest()?, first);
        folder.write(
            "host/src/lib.rs",
            "/// Gives b.\nfn a() {\n    \"// b\" // b\n}\n",
        )?;
        assert_eq!(digest()?, first);
        folder.write("host/src/lib.rs", "fn a() {\n    \"// c\"\n}\n")?;
        assert_ne!(digest()?, first);
        for path in [
            "kernels-gpu/src/emu/mod.rs",
            "tests/src/cases.rs",
            "tests/data/a.bin",
        ] {
            let before = digest()?;
            folder.write(path, "x")?;
            assert_ne!(digest()?, before, "{path}");
        }
        let before = digest()?;
        folder.write("host/README.md", "x")?;
        folder.write("docs/src/a.rs", "x")?;
        assert_eq!(digest()?, before);
        Ok(())
    }

    #[test]
    fn of_all_files_a_comment_changes_nothing_and_an_example_what_tests_it() -> Result<()> {
        let folder = Folder::new("all");
        folder.write("xtask/src/a.rs", "fn a() {}\n")?;
        folder.write(".gitignore", "target\n")?;
        let git = |arguments: &[&str]| {
            Command::new("git")
                .current_dir(&folder.0)
                .args(arguments)
                .status()
        };
        assert!(git(&["init", "--quiet"])?.success());
        let digests = || {
            let of = |examples| digest_of_all_code(&folder.0, examples);
            Ok::<_, anyhow::Error>((of(false)?, of(true)?))
        };
        let first = digests()?;
        folder.write("xtask/src/a.rs", "/// Does nothing.\nfn a() {} // or so\n")?;
        folder.write("target/a.rs", "fn b() {}\n")?;
        assert_eq!(digests()?, first);
        folder.write("xtask/src/a.rs", "/// ```\n/// a();\n/// ```\nfn a() {}\n")?;
        let example = digests()?;
        assert!(example.0 == first.0 && example.1 != first.1);
        folder.write("xtask/src/a.rs", "fn c() {}\n")?;
        let code = digests()?;
        assert!(code.0 != first.0 && code.1 != first.1);
        folder.write("README.md", "x")?;
        assert_ne!(digests()?.0, code.0);
        Ok(())
    }

    #[test]
    fn what_was_green_is_known_by_its_digest() -> Result<()> {
        let folder = Folder::new("green");
        assert!(!was_green(&folder.0, "cpu suite", "a"));
        keep_green(&folder.0, "cpu suite", "a")?;
        assert!(was_green(&folder.0, "cpu suite", "a"));
        assert!(!was_green(&folder.0, "cpu suite", "b"));
        assert!(!was_green(&folder.0, "emulated suite", "a"));
        Ok(())
    }
}
