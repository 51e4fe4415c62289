//! All pictures of `docs/src/pictures`: written, or compared with what is there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{layout, record, roofline, schedule, speed, sums};

/// Where they lie.
const FOLDER: &str = "docs/src/pictures";

/// What to do with a picture that is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Fail, and name the command that renews it.
    Check,
    /// Renew it.
    Write,
}

/// Every picture, with the name of its file.
pub fn all(root: &Path) -> Result<Vec<(String, String)>> {
    let runs = record::read(root)?;
    let mut all = speed::pictures(&runs)?;
    all.extend(schedule::pictures()?);
    all.extend(layout::pictures()?);
    all.extend(roofline::pictures()?);
    all.extend(sums::pictures(root)?);
    let named = |(name, svg): (&str, String)| (format!("{name}.svg"), svg);
    Ok(all.into_iter().map(named).collect())
}

/// Renews or checks the pictures.
pub fn pictures(root: &Path, mode: Mode) -> Result<()> {
    let folder = root.join(FOLDER);
    let all = all(root)?;
    match mode {
        Mode::Check => {
            let stale = stale(&folder, &all)?;
            if stale.is_empty() {
                return Ok(());
            }
            bail!(
                "stale: {}; `cargo xtask plots` renews them",
                stale.join(", ")
            )
        }
        Mode::Write => {
            fs::create_dir_all(&folder)?;
            for (name, svg) in &all {
                let path = folder.join(name);
                fs::write(&path, svg).with_context(|| format!("cannot write {name}"))?;
            }
            Ok(())
        }
    }
}

/// Files that are missing, are others than they should be, or are no longer drawn.
fn stale(folder: &Path, all: &[(String, String)]) -> Result<Vec<String>> {
    let differs = |(name, svg): &&(String, String)| {
        fs::read_to_string(folder.join(name)).ok().as_ref() != Some(svg)
    };
    let mut stale: Vec<String> = all
        .iter()
        .filter(differs)
        .map(|(name, _)| name.clone())
        .collect();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if all.iter().all(|(known, _)| *known != name) {
            stale.push(name);
        }
    }
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_fresh() {
        pictures(&crate::root(), Mode::Check).expect("every picture is the record's");
    }

    #[test]
    fn a_picture_that_differs_is_missing_or_is_no_longer_drawn_is_stale() {
        let root = crate::root();
        let mut all = all(&root).expect("the record can be read");
        all[0].1.push('\n');
        all.push(("new.svg".to_owned(), String::new()));
        let old = all.remove(1).0;
        let stale = stale(&root.join(FOLDER), &all).expect("the folder can be read");
        assert_eq!(stale, [all[0].0.clone(), "new.svg".to_owned(), old]);
    }
}
