//! A program of its own that depends on the library: it builds where no variable is set and no CUDA toolkit lies, runs the README's example,
//! and defines none of the driver's functions, which are then other libraries' to find.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Outside the repository, whose settings a program inside it would have.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = env::temp_dir().join(format!("ferroflash-dependent-{}", std::process::id()));
        fs::create_dir_all(folder.join("src")).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The README's first example in Rust, as a program.
fn example() -> String {
    let readme = include_str!("../../README.md");
    let (_, code) = readme.split_once("```rust\n").unwrap();
    let (code, _) = code.split_once("```\n").unwrap();
    format!("fn main() -> Result<(), ferroflash::Error> {{\n{code}\n}}\n").replace("# Ok", "Ok")
}

fn manifest(host: &Path) -> String {
    format!(
        "[package]\nname = \"dependent\"\nedition = \"2024\"\n\n[dependencies]\nferroflash = {{ path = {host:?} }}\nhalf = \"2\"\n\n\
         [workspace]\n"
    )
}

/// Runs a command of cargo in the folder, without what names a toolkit.
fn cargo(folder: &Path, arguments: &[&str]) -> Output {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    for toolkit in [
        "CUDA_LIBRARY_PATH",
        "CUDA_PATH",
        "CUDA_HOME",
        "CUDA_ROOT",
        "CUDA_TOOLKIT_ROOT_DIR",
    ] {
        cargo.env_remove(toolkit);
    }
    // The kernels' own build is not what this is about, and takes minutes.
    cargo
        .args(arguments)
        .current_dir(folder)
        .env("FERROFLASH_KERNELS", "off")
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output()
        .unwrap()
}

#[test]
fn a_program_builds_without_cuda_runs_and_defines_none_of_the_drivers_functions() {
    let Folder(folder) = &Folder::new();
    let host = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::write(folder.join("Cargo.toml"), manifest(host)).unwrap();
    fs::write(folder.join("src/main.rs"), example()).unwrap();
    // The versions of everything are the repository's.
    fs::copy(host.join("../Cargo.lock"), folder.join("Cargo.lock")).unwrap();

    let ran = cargo(folder, &["run", "--offline", "--quiet"]);
    let (said, errors) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{errors}");
    assert!(said.contains("algorithm tiled"), "{said}\n{errors}");

    let program = folder.join("target/debug/dependent");
    let symbols = match Command::new("nm")
        .arg("--defined-only")
        .arg(&program)
        .output()
    {
        Ok(listed) => String::from_utf8(listed.stdout).unwrap(),
        Err(error) => {
            let line = format!("[not run] the driver's functions: no nm: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return;
        }
    };
    let names = || {
        symbols
            .lines()
            .filter_map(|line| line.split(' ').next_back())
    };
    assert!(names().any(|name| name == "main"), "{symbols}");
    let of_driver: Vec<&str> = names().filter(|name| is_of_driver(name)).collect();
    assert_eq!(of_driver, [""; 0]);
}

/// Whether a function has a name as the driver's functions have.
fn is_of_driver(name: &str) -> bool {
    let after = name.strip_prefix("cu").and_then(|rest| rest.chars().next());
    after.is_some_and(|letter| letter.is_ascii_uppercase())
}

#[test]
fn the_drivers_names_are_known() {
    assert!(is_of_driver("cuInit") && is_of_driver("cuMemAlloc_v2"));
    assert!(!is_of_driver("custom") && !is_of_driver("cu") && !is_of_driver("main"));
}
