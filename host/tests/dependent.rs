//! A program of its own that depends on the library, from the archives that are published: it builds where no variable is set and no CUDA toolkit lies,
//! runs the README's example, and defines none of the driver's functions, which are then other libraries' to find.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a registry takes at most is 10 MB; an archive is to stay well below.
const MOST_BYTES: u64 = 9_600_000;

/// The packages of the workspace that are not published.
const UNPUBLISHED: [&str; 3] = ["xtask", "ferroflash-book", "conformance"];

/// Outside the repository, whose settings a program inside it would have.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("ferroflash-{name}-{}", std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(folder.join("src")).unwrap();
        Folder(folder)
    }

    /// Makes it a program: the README's example, with the library as `manifest` names it.
    fn write_program(&self, manifest: &str) {
        let package = "[package]\nname = \"dependent\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n";
        fs::write(self.0.join("Cargo.toml"), format!("{package}{manifest}")).unwrap();
        fs::write(self.0.join("src/main.rs"), example()).unwrap();
        // The versions of everything are the repository's.
        fs::copy(root().join("Cargo.lock"), self.0.join("Cargo.lock")).unwrap();
    }

    /// Runs cargo without what names a toolkit.
    fn cargo(&self, within: &Path, arguments: &[&str]) -> Output {
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
        cargo
            .args(arguments)
            .current_dir(within)
            .env("CARGO_TARGET_DIR", self.0.join("target"))
            .output()
            .unwrap()
    }

    /// Builds and runs the program.
    fn run(&self) {
        let ran = self.cargo(&self.0, &["run", "--offline", "--quiet"]);
        let (said, errors) = (
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr),
        );
        assert!(ran.status.success(), "{errors}");
        assert!(said.contains("algorithm "), "{said}\n{errors}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The README's first example in Rust, as a program.
fn example() -> String {
    let readme = include_str!("../../README.md");
    let (_, code) = readme.split_once("```rust\n").unwrap();
    let (code, _) = code.split_once("```\n").unwrap();
    format!("fn main() -> Result<(), ferroflash::Error> {{\n{code}\n}}\n").replace("# Ok", "Ok")
}

#[test]
fn the_archives_that_are_published_are_small_and_serve_a_program_without_cuda() {
    let folder = Folder::new("archives");
    let mut package = vec![
        "package",
        "--workspace",
        "--no-verify",
        "--allow-dirty",
        "--offline",
        "--quiet",
    ];
    package.extend(UNPUBLISHED.iter().flat_map(|name| ["--exclude", name]));
    let packed = folder.cargo(&root(), &package);
    assert!(
        packed.status.success(),
        "{}",
        String::from_utf8_lossy(&packed.stderr)
    );

    let archives = folder.0.join("target/package");
    let mut manifest = "ferroflash = \"0.1\"\n\n[patch.crates-io]\n".to_owned();
    let mut n_archives = 0;
    for archive in fs::read_dir(&archives).unwrap() {
        let archive = archive.unwrap().path();
        if archive
            .extension()
            .is_none_or(|extension| extension != "crate")
        {
            continue;
        }
        let n_bytes = fs::metadata(&archive).unwrap().len();
        assert!(
            n_bytes <= MOST_BYTES,
            "{}: {n_bytes} bytes",
            archive.display()
        );
        let mut tar = Command::new("tar");
        tar.arg("xzf").arg(&archive).arg("-C").arg(&folder.0);
        assert!(tar.status().unwrap().success());
        let unpacked = archive.file_stem().unwrap().to_str().unwrap();
        let (name, _version) = unpacked.rsplit_once('-').unwrap();
        for text in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(
                folder.0.join(unpacked).join(text).is_file(),
                "{unpacked} has no {text}"
            );
        }
        manifest.push_str(&format!("{name} = {{ path = {unpacked:?} }}\n"));
        n_archives += 1;
    }
    assert_eq!(n_archives, 8);
    folder.write_program(&manifest);
    folder.run();
    check_symbols(&folder.0.join("target/debug/dependent"));
}

/// Fails where a program defines functions with names as the driver's have.
fn check_symbols(program: &Path) {
    let symbols = match Command::new("nm")
        .arg("--defined-only")
        .arg(program)
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
