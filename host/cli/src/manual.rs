//! `ferroflash completions` and `ferroflash man`: what a shell and `man` want to know of this command.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::Arguments;
use crate::failure::{BAD_INPUT, EXIT_CODES, Failure};

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell.
    pub shell: Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManArguments {
    /// The subcommand, and one of its own: `bench`, `kernels compile`. Unless given: the page of `ferroflash`.
    pub subcommand: Vec<String>,
}

/// Prints a script of completions.
pub fn completions(arguments: &CompletionsArguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "ferroflash", &mut script);
    Ok(print(&script))
}

/// Prints a page.
pub fn man(arguments: &ManArguments) -> Result<ExitCode, Failure> {
    let mut command = Arguments::command();
    command.build();
    for name in &arguments.subcommand {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| {
            let names = command.get_subcommands().map(Command::get_name);
            Failure::Option(format!(
                "there is no page {name:?}; allowed: {}",
                names.collect::<Vec<_>>().join(", ")
            ))
        })?;
    }
    let page = page(command).map_err(|error| Failure::Option(error.to_string()))?;
    Ok(print(&page))
}

/// The page of a command: what clap knows, and sections for what stands at the end of its `--help`.
fn page(command: Command) -> std::io::Result<Vec<u8>> {
    let at_end = command.get_after_help().map(ToString::to_string);
    let has_subcommands = command.has_subcommands();
    let man = Man::new(command).source(concat!("ferroflash ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    rest.control("SH", ["EXAMPLES"]);
    for line in examples(at_end.as_deref().unwrap_or_default()) {
        match line.strip_prefix("  ferroflash") {
            Some(options) => {
                rest.control("TP", []);
                rest.text([bold(format!("ferroflash{options}"))]);
            }
            None => {
                rest.text([roman(line.trim())]);
            }
        }
    }
    rest.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        rest.control("TP", []);
        rest.text([bold(code.to_string())]);
        rest.text([roman(meaning)]);
    }
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// The lines of the examples in what stands at the end of a `--help`.
pub fn examples(at_end: &str) -> impl Iterator<Item = &str> {
    let lines = at_end.lines().skip_while(|line| *line != "Examples:");
    lines.skip(1).take_while(|line| !line.is_empty())
}

/// Prints it, quietly where nobody reads it.
fn print(bytes: &[u8]) -> ExitCode {
    match std::io::stdout().lock().write_all(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(BAD_INPUT),
    }
}
