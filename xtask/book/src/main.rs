//! Pictures and links of the book, for `cargo xtask plots` and `cargo xtask book`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ferroflash_book::pictures::{Mode, pictures};
use ferroflash_book::quotes::quotes;
use ferroflash_book::{links, root};

/// Draws what the book shows, and checks where it leads.
#[derive(Parser)]
enum Command {
    /// Renews the pictures, and the code that texts quote.
    Plots {
        /// Fails where one is stale instead of renewing it.
        #[arg(long)]
        check: bool,
    },
    /// Checks links of the book and of the other texts.
    Links,
}

fn renew(mode: Mode) -> anyhow::Result<()> {
    pictures(&root(), mode)?;
    quotes(&root(), mode)
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Plots { check: true } => renew(Mode::Check),
        Command::Plots { check: false } => renew(Mode::Write),
        Command::Links => links::check(&root()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
