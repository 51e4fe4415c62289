//! Lines on standard output, their colours, and progress on standard error.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::builder::Styles;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::failure::BAD_INPUT;

/// Of the head of a table.
pub const HEADING: Style = Style::new().bold();
/// Of a result that agrees.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Of an error, and of a result that differs.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Of a command in a text.
pub const LITERAL: Style = AnsiColor::Cyan.on_default().bold();

/// Of `--help` and of clap's errors.
pub const OF_HELP: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(LITERAL)
    .placeholder(AnsiColor::Cyan.on_default())
    .error(BAD)
    .valid(GOOD)
    .invalid(BAD);

/// Prints a line, as `println!` does, but ends the program quietly if the reader is gone: `ferroflash info | head -1` is no
/// reason to panic.
macro_rules! say {
    ($($text:tt)*) => { crate::print::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// The body of [`say`]. Colours are left out if standard output is no terminal, or NO_COLOR is set.
pub fn line(text: fmt::Arguments) {
    if writeln!(anstream::stdout().lock(), "{text}").is_err() {
        std::process::exit(BAD_INPUT.into());
    }
}

/// Says on standard error what went wrong.
pub fn error(what: impl fmt::Display) {
    anstream::eprintln!("{BAD}error:{BAD:#} {what}");
}

/// Columns where there is no terminal.
const COLUMNS: usize = 100;

/// How many columns a line of standard output has.
pub fn columns() -> usize {
    let size = console::Term::stdout().size_checked();
    size.map_or(COLUMNS, |(_, columns)| usize::from(columns))
}

/// The interval between redraws of a bar. It is long, because a measurement may be running.
const TICK: Duration = Duration::from_secs(1);

/// Progress, on stderr if that is a terminal. The bar goes when it is dropped.
pub fn progress(n: usize) -> ProgressBar {
    let bar = ProgressBar::new(n as u64);
    shown(bar, "{bar:32} {pos}/{len} {elapsed} {wide_msg}")
}

/// A wait and its reason, on stderr if that is a terminal. The words go when they are dropped.
pub fn waiting(what: impl Into<Cow<'static, str>>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what);
    shown(bar, "{spinner} {elapsed} {wide_msg}")
}

fn shown(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let bar = bar
        .with_style(style.unwrap_or(ProgressStyle::default_bar()))
        .with_finish(ProgressFinish::AndClear);
    bar.enable_steady_tick(TICK);
    bar
}
