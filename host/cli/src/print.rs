//! Lines on standard output, and progress on standard error.

use std::fmt;
use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::BAD_INPUT;

/// Prints a line, as `println!` does, but ends the program quietly if the reader is gone: `ferroflash info | head -1` is no reason to panic.
macro_rules! say {
    ($($text:tt)*) => { crate::print::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// The body of [`say`].
pub fn line(text: fmt::Arguments) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(BAD_INPUT.into());
    }
}

/// Progress, on stderr if that is a terminal.
pub fn progress(n: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {elapsed} {wide_msg}");
    ProgressBar::new(n as u64).with_style(style.unwrap_or(ProgressStyle::default_bar()))
}
