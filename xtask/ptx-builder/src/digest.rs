//! Decides whether anything that matters has changed: sources, flags, compiler.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::error::at;
use crate::{Compiler, Error, Request, compile};

/// Grows when the form of the results changes, so that older ones are not taken for current.
const FORM: u32 = 4;

/// The folders of the kernel crate that device code never contains: their changes need no new PTX.
const NOT_DEVICE_CODE: [&str; 2] = ["emu", "expression"];

/// A key that is the same as long as a new build would give the same text.
pub fn key(request: &Request) -> Result<String, Error> {
    let mut hasher = DefaultHasher::new();
    FORM.hash(&mut hasher);
    compiler(request.compiler).hash(&mut hasher);
    compile::flags(request.arch).hash(&mut hasher);
    request.rows.hash(&mut hasher);
    request.parts.hash(&mut hasher);
    let source = request.kernels.join("src");
    for path in device_sources(request.kernels)? {
        path.strip_prefix(&source)
            .unwrap_or(&path)
            .hash(&mut hasher);
        std::fs::read(&path).map_err(at(&path))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The same for one compiler, wherever it is installed.
pub fn compiler(compiler: &Compiler) -> String {
    let mut hasher = DefaultHasher::new();
    compiler.version.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Every source file that device code may contain, sorted.
pub fn device_sources(kernels: &Path) -> Result<Vec<PathBuf>, Error> {
    let source = kernels.join("src");
    let mut files = Vec::new();
    let skip = NOT_DEVICE_CODE.map(|folder| source.join(folder));
    collect(&source, &skip, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, skip: &[PathBuf], files: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in std::fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if skip.contains(&path) {
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
