//! `api`: the public items of the library as a list in the repository. A change of the API shows in its review, and a release is compared with the
//! one before it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::codegen::Mode;
use crate::programs;
use crate::workspace::Workspace;

/// The list.
const LISTING: &str = "host/public-api.txt";

/// Renews or checks the list.
pub fn api(workspace: &Workspace, mode: Mode) -> Result<()> {
    let path = workspace.root.join(LISTING);
    let json = rustdoc(workspace)?;
    let fresh = listing(&json)?;
    let bare = without_example(&serde_json::from_slice(&fs::read(&json)?)?);
    if !bare.is_empty() {
        bail!(
            "documentation with neither an example nor a link to one:\n{}",
            bare.join("\n")
        );
    }
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

/// The documentation of `ferroflash` with its default features, as JSON.
fn rustdoc(workspace: &Workspace) -> Result<PathBuf> {
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
    Ok(target.join("doc/ferroflash.json"))
}

/// The public items, an item a line, in alphabetical order.
fn listing(json: &Path) -> Result<String> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .sorted(true)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api.to_string())
}

/// Kinds of items that have an example, or a link to an item that may have one.
const SHOWN: [&str; 6] = [
    "struct",
    "enum",
    "trait",
    "function",
    "type_alias",
    "constant",
];

/// The public items, by module, whose documentation has neither an example nor a link.
fn without_example(json: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut open = vec![(json["root"].clone(), String::new())];
    while let Some((id, module)) = open.pop() {
        let item = &json["index"][id.to_string()];
        let is_hidden = item["attrs"].to_string().contains("hidden");
        if item.is_null() || is_hidden || !seen.insert(id.to_string()) {
            continue;
        }
        let name = format!("{module}{}", item["name"].as_str().unwrap_or_default());
        for item in item["inner"]["module"]["items"]
            .as_array()
            .into_iter()
            .flatten()
        {
            open.push((item.clone(), format!("{name}::")));
        }
        // A name that is exported once more.
        open.push((item["inner"]["use"]["id"].clone(), module));
        let docs = item["docs"].as_str().unwrap_or_default();
        let is_shown = SHOWN.iter().any(|kind| !item["inner"][kind].is_null());
        if is_shown && !["```", "[`", "]("].iter().any(|mark| docs.contains(mark)) {
            found.push(name);
        }
    }
    found.sort();
    found
}

/// The lines of either that the other has not, each with its sign.
fn differences(kept: &str, fresh: &str) -> String {
    let only = |sign: char, of: &str, other: &str| {
        let other: BTreeSet<&str> = other.lines().collect();
        let lines = of.lines().filter(|line| !other.contains(line));
        lines
            .map(|line| format!("{sign} {line}\n"))
            .collect::<String>()
    };
    only('-', kept, fresh) + &only('+', fresh, kept)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_without_an_example_are_named() {
        let function = |name, docs| json!({"name": name, "docs": docs, "attrs": [], "inner": {"function": {}}});
        let json = json!({"root": 0, "index": {
            "0": {"name": "a", "docs": "", "attrs": [], "inner": {"module": {"items": [1, 2, 3, 5]}}},
            "1": function("bare", "Text."),
            "2": function("linked", "See [`x`]."),
            "3": {"name": "m", "docs": "", "attrs": ["#[doc(hidden)]"], "inner": {"module": {"items": [4]}}},
            "4": function("hidden", "Text."),
            "5": {"name": null, "docs": null, "attrs": [], "inner": {"use": {"id": 6}}},
            "6": function("exported", "Text."),
        }});
        assert_eq!(without_example(&json), ["a::bare", "a::exported"]);
    }

    #[test]
    fn a_change_of_the_list_is_shown_by_its_lines() {
        assert_eq!(differences("a\nb\n", "a\nb\n"), "");
        assert_eq!(differences("a\nb\n", "b\nc\n"), "- a\n+ c\n");
    }
}
