//! `plots` and `book`: the pictures of `docs/`, and the book itself. The package `ferroflash-book` draws and checks. It is a program of its own, so
//! that xtask compiles without what draws.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::codegen::Mode;
use crate::programs;
use crate::workspace::Workspace;

/// The version of mdBook that builds the book.
const MDBOOK: &str = "0.5.4";

/// Where the built book lies: as deep as the chapters, so that links to the code are the same.
const BUILT: &str = "target/book";

/// Renews or checks the pictures.
pub fn plots(workspace: &Workspace, mode: Mode) -> Result<()> {
    let arguments: &[&str] = match mode {
        Mode::Check => &["plots", "--check"],
        Mode::Write => &["plots"],
    };
    run(workspace, arguments)
}

/// Checks every link of the texts.
pub fn links(workspace: &Workspace) -> Result<()> {
    run(workspace, &["links"])
}

fn run(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(workspace.cargo());
    command
        .current_dir(&workspace.root)
        .args(["run", "--quiet", "--profile", "xtask"])
        .args(["--package", "ferroflash-book", "--"])
        .args(arguments);
    programs::run(&mut command)
}

/// Checks pictures and links, and builds the book.
pub fn book(workspace: &Workspace) -> Result<()> {
    plots(workspace, Mode::Check)?;
    links(workspace)?;
    build(workspace, &mdbook(workspace)?)
}

/// Builds the book with this mdBook.
pub fn build(workspace: &Workspace, mdbook: &Path) -> Result<()> {
    let built = workspace.root.join(BUILT);
    let mut command = Command::new(mdbook);
    command
        .current_dir(&workspace.root)
        .args(["build", "docs", "--dest-dir"])
        .arg(&built);
    programs::run(&mut command)?;
    for entry in fs::read_dir(&built)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let text = fs::read_to_string(&path)?;
            fs::write(&path, with_texts_outside(&text))?;
        }
    }
    println!("the book: {BUILT}/index.html");
    Ok(())
}

/// mdBook takes texts outside the book for chapters: their links end in `.md` again.
fn with_texts_outside(html: &str) -> String {
    const OUTSIDE: &str = "href=\"../../";
    let mut parts = html.split(OUTSIDE);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(OUTSIDE);
        let (target, rest) = part.split_once('"').unwrap_or((part, ""));
        text.push_str(&target.replacen(".html", ".md", 1));
        text.push('"');
        text.push_str(rest);
    }
    text
}

/// mdBook, compiled under target/tools where it is not there yet.
pub fn mdbook(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.tools().join("mdbook");
    let program = folder.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    if version.is_ok_and(|said| said.stdout.trim_ascii_end().ends_with(MDBOOK.as_bytes())) {
        return Ok(program);
    }
    // Compiled soon rather than fast, as xtask is.
    let mut install = Command::new(workspace.cargo());
    install
        .args([
            "install",
            "mdbook",
            "--version",
            MDBOOK,
            "--locked",
            "--debug",
            "--quiet",
        ])
        .args(["--no-default-features", "--features", "search", "--root"])
        .arg(&folder);
    let done = programs::run(&mut install);
    done.with_context(|| format!("mdBook {MDBOOK} is missing"))?;
    match program.is_file() {
        true => Ok(program),
        false => bail!("cargo installed no mdbook"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_texts_outside_the_book_are_links_to_texts() {
        let html = r##"<a href="use.html">a</a> <a href="../../README.html#try-it">b</a> <a href="../../host/src/lib.rs">c</a>"##;
        let fixed = r##"<a href="use.html">a</a> <a href="../../README.md#try-it">b</a> <a href="../../host/src/lib.rs">c</a>"##;
        assert_eq!(with_texts_outside(html), fixed);
    }
}
