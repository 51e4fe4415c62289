//! Digests of files, by which builds and checks know what has changed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// SHA-256 of files, of their names below a folder and of what `text` makes of their contents.
pub fn of_files(
    root: &Path,
    files: &[PathBuf],
    text: impl Fn(&Path, Vec<u8>) -> Vec<u8>,
) -> Result<String> {
    let mut hasher = Sha256::new();
    for path in files {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let bytes = text(path, bytes);
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
        hasher.update(format!("{name} {}\n", bytes.len()));
        hasher.update(&bytes);
    }
    Ok(format!("{:x}", hasher.finalize()))
}

/// The files at a path: itself, or those in the folder and in the folders in it, sorted.
pub fn files_at(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()));
    let mut files = Vec::new();
    for entry in entries? {
        files.extend(files_at(&entry?.path())?);
    }
    files.sort();
    Ok(files)
}
