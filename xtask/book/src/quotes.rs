//! Code that texts quote: between a comment that names its place and the end of the block behind it, renewed or compared.
//!
//! ```text
//! <!-- quote host/examples/attention.rs:forward -->
//! ```
//!
//! The block behind it has the lines between `// ANCHOR: forward` and `// ANCHOR_END: forward` of that file, without the indentation that they have in common. So
//! texts are plain Markdown, and their examples are the ones that tests run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::pictures::Mode;

/// How a comment that names a quote begins, and how it ends.
const MARK: (&str, &str) = ("<!-- quote ", " -->");

/// Texts that quote: the chapters, and these.
const OTHERS: [&str; 1] = ["README.md"];

/// Renews or checks all quotes.
pub fn quotes(root: &Path, mode: Mode) -> Result<()> {
    let mut texts: Vec<PathBuf> = OTHERS.iter().map(|name| root.join(name)).collect();
    for entry in fs::read_dir(root.join("docs/src"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            texts.push(path);
        }
    }
    texts.sort();
    let mut stale = Vec::new();
    for path in texts {
        let text = fs::read_to_string(&path)?;
        let renewed = renewed(root, &text).with_context(|| path.display().to_string())?;
        if renewed == text {
            continue;
        }
        match mode {
            Mode::Write => fs::write(&path, renewed)?,
            Mode::Check => stale.push(path.display().to_string()),
        }
    }
    match stale.is_empty() {
        true => Ok(()),
        false => bail!(
            "quotes are stale in {}; `cargo xtask plots` renews them",
            stale.join(", ")
        ),
    }
}

/// A text with its quotes as their places have them now.
fn renewed(root: &Path, text: &str) -> Result<String> {
    let mut lines = text.lines();
    let mut renewed = String::new();
    let push = |renewed: &mut String, line: &str| {
        renewed.push_str(line);
        renewed.push('\n');
    };
    while let Some(line) = lines.next() {
        push(&mut renewed, line);
        let place = line
            .strip_prefix(MARK.0)
            .and_then(|rest| rest.strip_suffix(MARK.1));
        let Some(place) = place else { continue };
        let fence = lines.next().filter(|line| line.starts_with("```"));
        push(
            &mut renewed,
            fence.with_context(|| format!("no block of code behind the quote of {place}"))?,
        );
        if !lines.by_ref().any(|line| line == "```") {
            bail!("the block of the quote of {place} does not end");
        }
        push(&mut renewed, &quoted(root, place)?);
        push(&mut renewed, "```");
    }
    Ok(renewed)
}

/// The lines at a place, `path:anchor`.
fn quoted(root: &Path, place: &str) -> Result<String> {
    let (path, anchor) = place
        .rsplit_once(':')
        .with_context(|| format!("{place}: needed: path:anchor"))?;
    let text =
        fs::read_to_string(root.join(path)).with_context(|| format!("{path} is not there"))?;
    let is = |line: &str, word: &str| {
        let mark = line
            .trim_start()
            .trim_start_matches(['/', '#', '<', '!', '-', ' ']);
        let name = mark.strip_prefix(word);
        name.is_some_and(|name| name.trim_end_matches("-->").trim() == anchor)
    };
    let from = text.lines().skip_while(|line| !is(line, "ANCHOR:")).skip(1);
    let inside = from.take_while(|line| !is(line, "ANCHOR_END:"));
    // Of a text that has the code in a block, the code.
    let lines: Vec<&str> = inside.filter(|line| !line.starts_with("```")).collect();
    if lines.is_empty() {
        bail!("{path} has no lines of the anchor {anchor}");
    }
    let full = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = full.map(|line| line.len() - line.trim_start().len()).min();
    let indent = indent.unwrap_or(0);
    let lines: Vec<&str> = lines
        .iter()
        .map(|line| line.get(indent..).unwrap_or(""))
        .collect();
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_fresh() {
        quotes(&crate::root(), Mode::Check).expect("every quote is what its place says");
    }

    #[test]
    fn a_quote_is_what_lies_between_its_anchors_without_indentation() {
        let text = |block: &str| {
            format!(
                "Before.\n\n<!-- quote host/examples/attention.rs:explain -->\n```rust\n{block}```\nAfter.\n"
            )
        };
        let renewed = renewed(&crate::root(), &text("stale\n")).expect("the example is there");
        assert!(renewed.starts_with("Before.\n"), "{renewed}");
        assert!(renewed.contains("```rust\nlet explanation ="), "{renewed}");
        assert!(renewed.ends_with("```\nAfter.\n"), "{renewed}");
        assert!(
            !renewed.contains("stale") && !renewed.contains("ANCHOR"),
            "{renewed}"
        );
    }

    #[test]
    fn a_place_that_is_not_there_is_said() {
        let text = |place: &str| format!("<!-- quote {place} -->\n```rust\n```\n");
        for (place, said) in [
            ("host/examples/none.rs:x", "is not there"),
            (
                "host/examples/attention.rs:none",
                "no lines of the anchor none",
            ),
            ("host/examples/attention.rs", "needed: path:anchor"),
        ] {
            let error = renewed(&crate::root(), &text(place)).expect_err(place);
            assert!(format!("{error:#}").contains(said), "{error:#}");
        }
        let error = renewed(
            &crate::root(),
            "<!-- quote host/examples/attention.rs:explain -->\nno block\n",
        );
        let error = format!("{:#}", error.expect_err("there is no block"));
        assert!(error.contains("no block of code"), "{error}");
    }
}
