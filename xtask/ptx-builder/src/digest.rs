//! Decides whether anything that matters has changed: sources, flags, compiler.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::error::at;
use crate::{Compiler, Error, Request, Sources, compile};

/// Grows when the form of the results changes, so that older ones are not taken for current.
const FORM: u32 = 4;

/// A key that is the same as long as a new build would give the same text.
pub fn key(request: &Request) -> Result<String, Error> {
    let mut hasher = DefaultHasher::new();
    FORM.hash(&mut hasher);
    compiler(request.compiler).hash(&mut hasher);
    compile::flags(request.arch).hash(&mut hasher);
    request.rows.hash(&mut hasher);
    request.parts.hash(&mut hasher);
    let Sources {
        kernels,
        expression,
    } = request.sources;
    for path in request.sources.files()? {
        // The expression crate lies in the kernels' folder, or elsewhere.
        let name = path.strip_prefix(expression);
        let name = name.or_else(|_| path.strip_prefix(kernels));
        name.unwrap_or(&path).hash(&mut hasher);
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
