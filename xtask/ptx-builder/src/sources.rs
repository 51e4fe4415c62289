//! Where device code lies: in two crates, the kernels' and, for what kernels know of expressions, a folder of another.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::error::at;

/// The folder of the kernel crate that device code never contains: its changes need no new PTX.
const EMULATOR: &str = "src/emu";

/// The folder of the expression crate that is device code.
const OF_EXPRESSION: &str = "src/device";

/// The folders of the crates that device code is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// That of `ferroflash-kernels`.
    pub kernels: PathBuf,
    /// That of `ferroflash-expression`.
    pub expression: PathBuf,
}

impl Sources {
    /// As cargo gave them to whoever compiles this crate: in a checkout or among downloaded crates.
    pub fn of_cargo() -> Sources {
        Sources {
            kernels: PathBuf::from(ferroflash_kernels::MANIFEST_DIR),
            expression: PathBuf::from(ferroflash_expression::MANIFEST_DIR),
        }
    }

    /// Those of a checkout.
    pub fn of_checkout(root: &Path) -> Sources {
        let kernels = root.join("kernels-gpu");
        Sources {
            expression: kernels.join("expression"),
            kernels,
        }
    }

    /// Every source file that device code may contain, sorted within its crate.
    pub fn files(&self) -> Result<Vec<PathBuf>, Error> {
        let mut all = Vec::new();
        for folder in [
            self.kernels.join("src"),
            self.expression.join(OF_EXPRESSION),
        ] {
            let mut files = Vec::new();
            collect(&folder, &self.kernels.join(EMULATOR), &mut files)?;
            files.sort();
            all.append(&mut files);
        }
        Ok(all)
    }
}

fn collect(folder: &Path, skip: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in std::fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path == skip {
            continue;
        }
        if path.is_dir() {
            collect(&path, skip, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_and_what_the_host_does_with_expressions_are_no_device_code() {
        let sources = Sources::of_cargo();
        let files = sources.files().expect("both crates are there");
        let of_expression = files
            .iter()
            .filter(|file| file.starts_with(&sources.expression));
        assert!(of_expression.clone().count() > 0);
        for file in of_expression {
            assert!(file.starts_with(sources.expression.join(OF_EXPRESSION)));
        }
        assert!(files.contains(&sources.kernels.join("src/lib.rs")));
        assert!(
            !files
                .iter()
                .any(|file| file.starts_with(sources.kernels.join(EMULATOR)))
        );
    }
}
