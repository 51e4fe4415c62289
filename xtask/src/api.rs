//! `api`: the public items of the library as a list in the repository. A change of the API shows in its review, and a release is compared with the
//! one before it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::codegen::Mode;
use crate::programs;
use crate::workspace::Workspace;

/// The list.
const LISTING: &str = "host/public-api.txt";

/// Renews or checks the list.
pub fn api(workspace: &Workspace, mode: Mode) -> Result<()> {
    let path = workspace.root.join(LISTING);
    let fresh = listing(workspace)?;
    if mode == Mode::Write {
        return fs::write(&path, fresh).with_context(|| format!("cannot write {LISTING}"));
    }
    let kept = fs::read_to_string(&path).with_context(|| format!("cannot read {LISTING}"))?;
    let differences = differences(&kept, &fresh);
    match differences.is_empty() {
        true => Ok(()),
        false => bail!(
            "the public API is not that of {LISTING}; `cargo xtask api` renews it:\n{differences}"
        ),
    }
}

/// The items of `ferroflash` with its default features, an item a line, in alphabetical order.
fn listing(workspace: &Workspace) -> Result<String> {
    // rustdoc's JSON is unstable, and the toolchain is pinned. A folder of its own: build scripts look at the variable that allows it.
    let target = workspace.target.join("api");
    let mut rustdoc = Command::new(workspace.cargo());
    rustdoc
        .current_dir(&workspace.root)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("FERROFLASH_KERNELS", "off")
        .args(["rustdoc", "--quiet", "--package", "ferroflash", "--lib"])
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"]);
    programs::run(&mut rustdoc)?;
    let api = public_api::Builder::from_rustdoc_json(target.join("doc/ferroflash.json"))
        .sorted(true)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api.to_string())
}

/// The lines of either that the other has not, each with its sign.
fn differences(kept: &str, fresh: &str) -> String {
    let only = |sign: char, of: &str, other: &str| {
        let other: std::collections::BTreeSet<&str> = other.lines().collect();
        let lines = of.lines().filter(|line| !other.contains(line));
        lines
            .map(|line| format!("{sign} {line}\n"))
            .collect::<String>()
    };
    only('-', kept, fresh) + &only('+', fresh, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_list_is_shown_by_its_lines() {
        assert_eq!(differences("a\nb\n", "a\nb\n"), "");
        assert_eq!(differences("a\nb\n", "b\nc\n"), "- a\n+ c\n");
    }
}
