//! Pictures of the book, for `cargo xtask plots` and `cargo xtask book`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ferroflash_book::pictures::{Mode, pictures};
use ferroflash_book::root;

/// Draws what the book shows.
#[derive(Parser)]
enum Command {
    /// Renews the pictures.
    Plots {
        /// Fails where one is stale instead of renewing it.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Plots { check: true } => pictures(&root(), Mode::Check),
        Command::Plots { check: false } => pictures(&root(), Mode::Write),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
