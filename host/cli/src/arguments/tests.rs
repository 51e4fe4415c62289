//! Commands that `--help`, the README, the book and the notes on measurements quote are commands that this program takes.
//!
//! - In a block of code, a command is a line; a comment after `#`, a pipe and a redirection are not of it. In text, it is what stands between backticks.
//! - It begins with `ferroflash`, or has `./ferroflash` and a subcommand behind another program, as `ncu`.
//! - One with `…` or `<` is a pattern and is not read.
//! - `ferroflash SUBCOMMAND` and `ferroflash SUBCOMMAND --OPTION` in text are names: they must be there, and nothing need be complete.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::Arguments;
use crate::failure::EXIT_CODES;
use crate::manual::examples;

/// A quoted command.
struct Quoted {
    text: String,
    in_text: bool,
}

/// The files that quote, as far as they are here: a package that stands alone has none.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("tests/benches/README.md")];
    for folder in ["docs/src", "tests/benches/notes"] {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        let paths = entries.flatten().map(|entry| entry.path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    files.retain(|path| path.is_file());
    files
}

/// What a file has in backticks and in lines of blocks.
fn quoted(markdown: &str) -> Vec<Quoted> {
    let mut all = Vec::new();
    for (idx, part) in markdown.split("```").enumerate() {
        if idx % 2 == 1 {
            let lines = part.lines().skip(1).map(|line| line.trim_start());
            let lines = lines.map(|line| line.strip_prefix("$ ").unwrap_or(line));
            all.extend(lines.map(|line| Quoted {
                text: alone(line).to_owned(),
                in_text: false,
            }));
            continue;
        }
        for paragraph in part.split("\n\n") {
            let spans = paragraph.split('`').skip(1).step_by(2);
            all.extend(spans.map(|span| Quoted {
                text: span.split_whitespace().collect::<Vec<_>>().join(" "),
                in_text: true,
            }));
        }
    }
    all
}

/// A command without a comment, and without what its output goes to.
fn alone(line: &str) -> &str {
    let ends = [" #", " > ", " | "];
    let ends = ends.iter().filter_map(|end| line.find(end));
    line[..ends.min().unwrap_or(line.len())].trim()
}

/// Words of a command line, as a shell has them; quotes keep a word together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, ' ') => words.push(String::new()),
            _ => words.last_mut().expect("never empty").push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The command's words from its own name on, if it is one of this program.
fn own(line: &str) -> Option<Vec<String>> {
    let words = words(line);
    if words.first()? == "ferroflash" {
        return Some(words).filter(|words| words.len() > 1);
    }
    let commands = Arguments::command();
    let at = words.iter().position(|word| word == "./ferroflash")?;
    let is_own = commands.find_subcommand(words.get(at + 1)?).is_some();
    is_own.then(|| words[at..].to_vec())
}

/// Whether it names a subcommand, or one of that one's options or subcommands, and both are there.
fn is_name(words: &[String]) -> bool {
    let commands = Arguments::command();
    let Some(command) = commands.find_subcommand(&words[1]) else {
        return false;
    };
    let has = |option: &str| {
        let long = option.strip_prefix("--");
        command.get_arguments().any(|own| own.get_long() == long)
    };
    match words {
        [_, _] => true,
        [_, _, word] => match word.starts_with("--") {
            true => has(word),
            false => command.find_subcommand(word).is_some(),
        },
        _ => false,
    }
}

/// What clap says against a command.
fn refusal(command: &Quoted) -> Option<String> {
    if command.text.contains(['…', '<']) {
        return None;
    }
    let words = own(&command.text)?;
    if command.in_text && is_name(&words) {
        return None;
    }
    let error = Arguments::try_parse_from(&words).err()?;
    let is_answer = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    (!is_answer).then(|| error.to_string())
}

#[test]
fn quoted_commands_parse() {
    let mut refused = String::new();
    let mut n_commands = 0;
    let files = files();
    for path in &files {
        let text = fs::read_to_string(path).expect("a text");
        for command in quoted(&text) {
            n_commands += usize::from(own(&command.text).is_some());
            if let Some(error) = refusal(&command) {
                refused += &format!("{}: {}\n{error}\n", path.display(), command.text);
            }
        }
    }
    assert!(refused.is_empty(), "{refused}");
    assert!(files.is_empty() || n_commands > 20, "{n_commands}");
}

/// Every subcommand, and those of subcommands, with the words that call it.
fn subcommands() -> Vec<(String, clap::Command)> {
    let mut root = Arguments::command();
    root.build();
    let mut all = vec![("ferroflash".to_owned(), root)];
    let mut at = 0;
    while let Some((words, command)) = all.get(at).cloned() {
        let own = command.get_subcommands();
        let own = own.filter(|command| command.get_name() != "help");
        all.extend(own.map(|own| (format!("{words} {}", own.get_name()), own.clone())));
        at += 1;
    }
    all
}

#[test]
fn every_help_has_examples_that_parse_and_the_exit_codes() {
    let subcommands = subcommands();
    assert!(subcommands.len() > 13, "{}", subcommands.len());
    for (words, mut command) in subcommands {
        let help = command.render_long_help().to_string();
        let lines = examples(&help).map(str::trim);
        let commands: Vec<&str> = lines
            .filter(|line| line.starts_with("ferroflash"))
            .collect();
        let own = commands.iter().filter(|line| line.starts_with(&words));
        assert!(own.count() > 0, "`{words} --help` has no example:\n{help}");
        for line in commands {
            let quoted = Quoted {
                text: alone(line).to_owned(),
                in_text: false,
            };
            assert_eq!(refusal(&quoted), None, "{words}: {line}");
        }
        for (code, meaning) in EXIT_CODES {
            assert!(
                help.contains(&format!("{code}  {meaning}")),
                "{words}: {code}"
            );
        }
    }
}

#[test]
fn what_is_refused() {
    let refusals = |markdown| {
        let all = quoted(markdown).into_iter();
        let refused = all.filter(|command| refusal(command).is_some());
        refused.map(|command| command.text).collect::<Vec<_>>()
    };
    let good = "`ferroflash run` and `ferroflash bench --compare`\n\n```console\n$ ferroflash info --kernels   # all\n\
$ python3 peers.py --ferroflash ./ferroflash --peers fa4\n```\n`ferroflash\nbench --rep 3`, `ferroflash bench --score …`, `ferroflash --version`";
    assert_eq!(refusals(good), [""; 0]);
    let bad = "`ferroflash ran`, `ferroflash bench --compared`\n```console\n$ ferroflash run\n$ ncu ./ferroflash bench --rep x\n```\n";
    assert_eq!(
        refusals(bad),
        [
            "ferroflash ran",
            "ferroflash bench --compared",
            "ferroflash run",
            "ncu ./ferroflash bench --rep x"
        ]
    );
}
