//! The folder of results: modules as text and deflated, and the key that says whether they are current.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::at;
use crate::{Error, Request};

/// The modules of one architecture.
#[derive(Debug)]
pub struct Built {
    /// In the order of their names.
    pub modules: Vec<Module>,
    /// Whether the compiler ran.
    pub freshness: Freshness,
    /// Nobody else changes the files as long as this value lives.
    pub(crate) _lock: File,
}

/// Whether a build had anything to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Nothing that matters had changed.
    Unchanged,
    /// The compiler ran.
    Compiled,
}

/// One PTX module.
#[derive(Debug)]
pub struct Module {
    /// The name of its variant, or [`crate::PROBES`].
    pub name: String,
    /// The file with its text.
    pub ptx: PathBuf,
    /// The file with its text deflated (raw deflate, no header).
    pub deflated: PathBuf,
}

/// How hard to press: ten megabytes of PTX take well under a second.
const COMPRESSION_LEVEL: u8 = 6;

/// The file that holds the key of the modules beside it.
const KEY_FILE: &str = "key";

/// Waits until no other process builds into the folder. The lock ends with the file that is returned.
pub fn lock(out: &Path) -> Result<File, Error> {
    fs::create_dir_all(out).map_err(at(out))?;
    let path = out.join("lock");
    let file = File::create(&path).map_err(at(&path))?;
    file.lock().map_err(at(&path))?;
    Ok(file)
}

/// The modules, where those on disk belong to this key.
pub fn load(request: &Request, key: &str) -> Option<Vec<Module>> {
    let folder = request.out.join(request.arch);
    let text = fs::read_to_string(folder.join(KEY_FILE)).ok()?;
    let mut lines = text.lines();
    if lines.next() != Some(key) {
        return None;
    }
    let modules: Vec<Module> = lines.map(|name| module_at(&folder, name)).collect();
    let whole = modules
        .iter()
        .all(|module| module.ptx.is_file() && module.deflated.is_file());
    whole.then_some(modules)
}

/// Replaces whatever the folder held.
pub fn store(
    request: &Request,
    key: &str,
    texts: BTreeMap<String, String>,
) -> Result<Vec<Module>, Error> {
    let folder = request.out.join(request.arch);
    if folder.is_dir() {
        fs::remove_dir_all(&folder).map_err(at(&folder))?;
    }
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let mut listing = format!("{key}\n");
    let mut modules = Vec::new();
    for (name, text) in texts {
        let module = module_at(&folder, &name);
        fs::write(&module.ptx, &text).map_err(at(&module.ptx))?;
        let deflated = miniz_oxide::deflate::compress_to_vec(text.as_bytes(), COMPRESSION_LEVEL);
        fs::write(&module.deflated, deflated).map_err(at(&module.deflated))?;
        listing.push_str(&name);
        listing.push('\n');
        modules.push(module);
    }
    // Written last: a folder without it is never taken for current.
    let key_file = folder.join(KEY_FILE);
    fs::write(&key_file, listing).map_err(at(&key_file))?;
    Ok(modules)
}

fn module_at(folder: &Path, name: &str) -> Module {
    Module {
        name: name.to_owned(),
        ptx: folder.join(format!("{name}.ptx")),
        deflated: folder.join(format!("{name}.ptx.deflate")),
    }
}
