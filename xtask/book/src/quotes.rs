//! Code that texts quote: the block after a comment that names its place is renewed, or compared with that place.
//!
//! ```text
//! <!-- quote host/examples/attention.rs:forward -->
//! <!-- quote kernels-gpu/src/kernels/forward/sm80/mod.rs:fn attend -->
//! <!-- quote kernels-gpu/src/kernels/forward/sm90/consumer.rs:fn attend | let mut block | let mut weights -->
//! ```
//!
//! The first has the lines between `// ANCHOR: forward` and `// ANCHOR_END: forward` of that file, without the indentation that they have in common. The
//! second has a function, from its signature to its last brace: files of kernels get no anchors, since a digest of their text says whether the compiled kernels
//! are theirs. The third has the lines of a function from the first one that contains a text to the next one that contains another. So
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
            fence.with_context(|| format!("no block of code after the quote of {place}"))?,
        );
        if !lines.by_ref().any(|line| line == "```") {
            bail!("the block of the quote of {place} does not end");
        }
        push(&mut renewed, &quoted(root, place)?);
        push(&mut renewed, "```");
    }
    Ok(renewed)
}

/// The lines at a place, `path:anchor` or `path:fn name`.
fn quoted(root: &Path, place: &str) -> Result<String> {
    let (path, name) = place
        .split_once(':')
        .with_context(|| format!("{place}: needed: path:anchor or path:fn name"))?;
    let text =
        fs::read_to_string(root.join(path)).with_context(|| format!("{path} is not there"))?;
    let lines = match name.starts_with("fn ") {
        true => of_function(&text, name).with_context(|| path.to_owned())?,
        false => between_anchors(&text, name),
    };
    if lines.is_empty() {
        bail!("{path} has no lines of the anchor {name}");
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

/// The lines between an anchor and its end; of a text that has them in a block of code, that code.
fn between_anchors<'t>(text: &'t str, anchor: &str) -> Vec<&'t str> {
    let is = |line: &str, word: &str| {
        let mark = line
            .trim_start()
            .trim_start_matches(['/', '#', '<', '!', '-', ' ']);
        let name = mark.strip_prefix(word);
        name.is_some_and(|name| name.trim_end_matches("-->").trim() == anchor)
    };
    let from = text.lines().skip_while(|line| !is(line, "ANCHOR:")).skip(1);
    let inside = from.take_while(|line| !is(line, "ANCHOR_END:"));
    inside.filter(|line| !line.starts_with("```")).collect()
}

/// The lines of the only function of this name, `fn name`, or of a part of it, `fn name | text of the first line | text of the last line`.
fn of_function<'t>(text: &'t str, name: &str) -> Result<Vec<&'t str>> {
    let mut parts = name.split(" | ");
    let signature = parts.next().unwrap_or_default();
    let begins = |line: &str| {
        line.find(signature).is_some_and(|at| {
            let before = line[..at].trim_start();
            let after = &line[at + signature.len()..];
            !before.starts_with("//") && after.starts_with(['(', '<'])
        })
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut found = (0..lines.len()).filter(|&at| begins(lines[at]));
    let first = found.next().with_context(|| format!("no {signature}"))?;
    if found.next().is_some() {
        bail!("{signature} is there twice");
    }
    let indent = lines[first].len() - lines[first].trim_start().len();
    let brace = format!("{}}}", &lines[first][..indent]);
    let end = lines[first..].iter().position(|line| **line == brace);
    let end = first + end.with_context(|| format!("{signature} does not end"))?;
    let whole = &lines[first..=end];
    let Some(from) = parts.next() else {
        return Ok(whole.to_vec());
    };
    let to = parts.next().unwrap_or(from);
    let at = |lines: &[&str], text: &str| lines.iter().position(|line| line.contains(text));
    let from = at(whole, from).with_context(|| format!("{signature} has no line with {from}"))?;
    let to =
        at(&whole[from..], to).with_context(|| format!("{signature} has no line with {to}"))?;
    Ok(whole[from..=from + to].to_vec())
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
    fn a_function_is_quoted_from_its_signature_to_its_brace() {
        let quoted = |place| quoted(&crate::root(), place).expect("it is there");
        let causal = "pub fn causal(self) -> Self {\n    self.mask(Mask::Causal)\n}";
        assert_eq!(quoted("host/src/attend.rs:fn causal"), causal);
        let part = quoted("host/src/attend.rs:fn forward | let (problem | let attention");
        assert!(part.starts_with("let (problem, inputs)"), "{part}");
        assert!(
            part.ends_with("Attention::new(device, problem)?;"),
            "{part}"
        );
        let twice = of_function("fn a() {\n}\nfn a() {\n}\n", "fn a");
        assert!(twice.is_err_and(|error| error.to_string().contains("twice")));
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
            ("host/examples/attention.rs:fn none", "no fn none"),
            ("host/src/attend.rs:fn layout", "no fn layout"),
            (
                "host/src/attend.rs:fn causal | nothing",
                "no line with nothing",
            ),
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
