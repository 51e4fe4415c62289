//! Links of the book and of the repository's other texts: files are there, headings are there, and a link that names an item of our code finds it.
//!
//! A link to code names the item: `` [`OnlineSoftmax::update`](../../kernels-gpu/src/tile/softmax.rs) ``. No line numbers: they rot.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The chapters.
const BOOK: &str = "docs/src";

/// Notes on measurements, whose links are checked, too.
const NOTES: &str = "tests/benches/notes";

/// Other texts outside the book whose links are checked.
const OTHERS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "tests/benches/README.md",
    "bindings/burn/README.md",
    "bindings/candle/README.md",
    "bindings/python/README.md",
];

/// Folders of the root: a word in code that begins with one of them is a path.
const FOLDERS: [&str; 6] = [
    "host/",
    "kernels-gpu/",
    "tests/",
    "xtask/",
    "bindings/",
    "docs/",
];

/// Words after which an item's name stands where it is defined.
const DEFINING: [&str; 11] = [
    "fn",
    "struct",
    "enum",
    "trait",
    "const",
    "static",
    "type",
    "mod",
    "class",
    "def",
    "macro_rules!",
];

/// A link or an image of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    target: String,
    /// What it shows, if that is code alone.
    code: Option<String>,
    is_image: bool,
}

/// What is looked at of a text.
#[derive(Debug, Default)]
struct Page {
    links: Vec<Link>,
    /// Code within sentences.
    code: Vec<String>,
    /// Its headings, as anchors.
    anchors: BTreeSet<String>,
}

impl Page {
    fn new(text: &str) -> Page {
        let mut page = Page::default();
        let mut open: Option<Link> = None;
        let mut heading: Option<String> = None;
        let options = Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES;
        for event in Parser::new_ext(text, options) {
            match event {
                Event::Start(Tag::Link { dest_url, .. }) => {
                    open = Some(Link {
                        target: dest_url.to_string(),
                        code: None,
                        is_image: false,
                    });
                }
                Event::Start(Tag::Image { dest_url, .. }) => page.links.push(Link {
                    target: dest_url.to_string(),
                    code: None,
                    is_image: true,
                }),
                Event::End(TagEnd::Link) => page.links.extend(open.take()),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let title = heading.take().unwrap_or_default();
                    page.anchors.insert(anchor(&title));
                }
                Event::Code(code) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&code);
                    }
                    match &mut open {
                        Some(link) => link.code = Some(code.to_string()),
                        None => page.code.push(code.to_string()),
                    }
                }
                Event::Text(text) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// A heading's anchor, as GitHub and mdBook make it.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    kept.chars()
        .filter_map(|c| match c {
            ' ' | '-' => Some('-'),
            c if c.is_alphanumeric() || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// Checks every link; the error names each that leads nowhere.
pub fn check(root: &Path) -> Result<()> {
    let faults = faults(root)?;
    match faults.is_empty() {
        true => Ok(()),
        false => bail!("{} faults\n{}", faults.len(), faults.join("\n")),
    }
}

fn faults(root: &Path) -> Result<Vec<String>> {
    let chapters = texts(root, BOOK)?;
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    let others = OTHERS.iter().map(|path| (*path).to_owned());
    let notes = texts(root, NOTES)?;
    for path in chapters.iter().cloned().chain(others).chain(notes) {
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        let page = Page::new(&text);
        for link in &page.links {
            if let Some(fault) = fault_of_link(root, &path, &page, link, &mut seen) {
                faults.push(format!("{path}: {}: {fault}", link.target));
            }
        }
        faults.extend(
            page.code
                .iter()
                .filter(|code| !is_there(root, &path, code))
                .map(|code| format!("{path}: `{code}`: there is no such file")),
        );
        faults.extend(faults_of_commands(&path, &text));
    }
    let summary = format!("{BOOK}/SUMMARY.md");
    for chapter in chapters {
        if chapter != summary && !seen.contains(&(summary.clone(), chapter.clone())) {
            faults.push(format!("{chapter}: SUMMARY.md does not name it"));
        }
    }
    for picture in files(&root.join(BOOK).join("pictures"))? {
        let path = format!("{BOOK}/pictures/{picture}");
        if !seen.iter().any(|(_, target)| *target == path) {
            faults.push(format!("{path}: no text shows it"));
        }
    }
    Ok(faults)
}

/// The texts of a folder, by their paths from the root.
fn texts(root: &Path, folder: &str) -> Result<Vec<String>> {
    let mut texts = files(&root.join(folder))?;
    texts.retain(|name| name.ends_with(".md"));
    Ok(texts
        .iter()
        .map(|name| format!("{folder}/{name}"))
        .collect())
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// What is wrong with a link; targets within the repository are noted, with who links to them.
fn fault_of_link(
    root: &Path,
    path: &str,
    page: &Page,
    link: &Link,
    seen: &mut BTreeSet<(String, String)>,
) -> Option<String> {
    let target = link.target.as_str();
    if target.starts_with("https://") {
        return None;
    }
    if target.contains("://") {
        return Some("links are https or within the repository".to_owned());
    }
    let (file, heading) = match target.split_once('#') {
        Some((file, heading)) => (file, Some(heading)),
        None => (target, None),
    };
    if file.is_empty() {
        let has = heading.is_some_and(|heading| page.anchors.contains(heading));
        return (!has).then(|| "there is no such heading".to_owned());
    }
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let from_root = normal(&folder.join(file));
    let full = root.join(&from_root);
    seen.insert((path.to_owned(), from_root.to_string_lossy().into_owned()));
    if !full.exists() {
        return Some("there is no such file".to_owned());
    }
    if link.is_image {
        return None;
    }
    if let Some(heading) = heading {
        let text = fs::read_to_string(&full).unwrap_or_default();
        let is_text = file.ends_with(".md");
        let has = is_text && Page::new(&text).anchors.contains(heading);
        return (!has).then(|| "there is no such heading".to_owned());
    }
    let code = link.code.as_deref()?;
    if code.contains('/') {
        let named = Path::new(code.trim_end_matches('/'));
        let same = named == from_root || named == Path::new(file.trim_end_matches('/'));
        return (!same).then(|| format!("`{code}` is another path"));
    }
    if !full.is_file() || from_root.file_name().is_some_and(|name| name == code) {
        return None;
    }
    let text = fs::read_to_string(&full).unwrap_or_default();
    (!defines(&text, code)).then(|| format!("`{code}` is not defined there"))
}

/// Without `.` and `..` in the middle.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::Normal(name) => normal.push(name),
            _ => {}
        }
    }
    normal
}

/// Whether the text defines the item: the last of its names after a word that defines, or as a variant, a field or a row; the names before it anywhere.
fn defines(text: &str, item: &str) -> bool {
    let item = item.trim_end_matches("()").trim_end_matches('!');
    let mut names: Vec<&str> = item.split("::").collect();
    let Some(last) = names.pop() else {
        return false;
    };
    let places = |name: &str| -> Vec<usize> {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let found = text.match_indices(name).filter(|&(at, _)| {
            let before = text[..at].chars().next_back();
            let after = text[at + name.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        });
        found.map(|(at, _)| at).collect()
    };
    let is_defined = places(last).into_iter().any(|at| {
        let before = text[..at].trim_end_matches(' ');
        let after = &text[at + last.len()..];
        let line = before.rsplit('\n').next().unwrap_or_default();
        let named = DEFINING.iter().any(|word| before.ends_with(word));
        let listed = line.trim().is_empty() || line.trim_end().ends_with("pub");
        named
            || listed
                && [":", ",", " {", "(", " = "]
                    .iter()
                    .any(|sign| after.starts_with(sign))
    });
    is_defined && names.iter().all(|name| !places(name).is_empty())
}

/// Whether code that looks like a path is one, from the root or from the folder of its text. What names several files, or none, is none.
fn is_there(root: &Path, path: &str, code: &str) -> bool {
    let is_path = FOLDERS.iter().any(|folder| code.starts_with(folder))
        && !code.contains([' ', '{', '*', '<', '…', '$'])
        && !code.contains("::")
        && !code.ends_with("DAY.jsonl");
    let folder = root.join(path).parent().map(Path::to_owned);
    let mut folders = [Some(root.to_owned()), folder].into_iter().flatten();
    !is_path || folders.any(|folder| folder.join(code).exists())
}

/// Commands of mdBook, such as `{{#include path}}`: nobody but mdBook shows what they stand for. `<!-- quote path:anchor -->` quotes code.
fn faults_of_commands(path: &str, text: &str) -> Vec<String> {
    let inside = |rest: &str| rest.split("}}").next().unwrap_or_default().to_owned();
    let commands = text.split("{{#").skip(1).map(inside);
    let faults = commands.map(|inside| format!("{path}: {{{{#{inside}}}}}: not plain Markdown"));
    faults.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_leads_somewhere() {
        let faults = faults(&crate::root()).expect("every text can be read");
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    /// What is wrong with a text of the book.
    fn faults_of(text: &str) -> Vec<String> {
        let root = crate::root();
        let path = format!("{BOOK}/made_up.md");
        let page = Page::new(text);
        let mut seen = BTreeSet::new();
        let links = page.links.iter();
        let mut faults: Vec<String> = links
            .filter_map(|link| fault_of_link(&root, &path, &page, link, &mut seen))
            .collect();
        faults.extend(
            page.code
                .iter()
                .filter(|code| !is_there(&root, &path, code))
                .cloned(),
        );
        faults.extend(faults_of_commands(&path, text));
        faults
    }

    #[test]
    fn links_that_lead_somewhere_are_no_fault() {
        for text in [
            "[`OnlineSoftmax::update`](../../kernels-gpu/src/tile/softmax.rs)",
            "[`host/src/plan`](../../host/src/plan)",
            "[`Algorithm::Flash1`](../../host/src/terms/algorithm.rs)",
            "[ratios](../../tests/benches/README.md#a-ratio)",
            "# A b-c `d`\n[there](#a-b-c-d)",
            "`host/src/attention.rs` and `tests/tests/schedule`, `host/tests/{a,b}`",
            "[paper](https://arxiv.org/abs/2205.14135)",
        ] {
            assert_eq!(faults_of(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_faults() {
        for text in [
            "[`OnlineSoftmax::forget`](../../kernels-gpu/src/tile/softmax.rs)",
            "[`Softmax::update`](../../kernels-gpu/src/tile/softmax.rs)",
            "[`host/src/plans`](../../host/src/plan)",
            "[a](../../host/src/nothing.rs)",
            "[ratios](../../tests/benches/README.md#tapes)",
            "[there](#nowhere)",
            "`host/src/nothing.rs`",
            "[a](http://example.com)",
            "{{#include ../../host/examples/attention.rs:forward}}",
            "{{#playground a.rs}}",
        ] {
            assert_eq!(faults_of(text).len(), 1, "{text}: {:?}", faults_of(text));
        }
    }
}
