//! `tidy`: the invariants of the workspace that the compiler does not check.

mod instructions;

mod layers;

mod rules;

mod source;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use source::Source;
pub use source::without_comments;

/// Folders and files that hold nothing hand-written.
const SKIPPED: [&str; 2] = ["target", "Cargo.lock"];

/// Endings of the files that are read.
const ENDINGS: [&str; 8] = ["rs", "toml", "md", "sh", "txt", "json", "jsonl", "csv"];

/// Checks every rule; the error names each place where one is broken.
pub fn tidy(workspace: &Workspace) -> Result<()> {
    let faults = faults(&workspace.root)?;
    if faults.is_empty() {
        eprintln!("tidy: every rule holds");
        return Ok(());
    }
    bail!("{} broken rules\n{}", faults.len(), faults.join("\n"))
}

/// A line for each place where a rule is broken.
fn faults(root: &Path) -> Result<Vec<String>> {
    let mut sources = Vec::new();
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    files.sort();
    for path in files {
        let text = fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        sources.push(Source::new(path, text));
    }
    let mut faults = Vec::new();
    for source in &sources {
        rules::check(source, &mut faults);
        layers::check_layers(source, &mut faults);
    }
    rules::check_probes(&sources, &mut faults);
    rules::check_dependencies(&sources, &mut faults);
    Ok(faults)
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_hidden = name.starts_with('.') && !matches!(name.as_str(), ".cargo" | ".ci");
        if is_hidden || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if ENDINGS
            .iter()
            .any(|ending| path.extension().is_some_and(|other| other == *ending))
        {
            files.push(path.strip_prefix(root)?.to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let workspace = Workspace::find().expect("the workspace is there");
        let faults = faults(&workspace.root).expect("every file can be read");
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
