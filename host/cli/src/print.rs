//! Lines on standard output.

use std::fmt;
use std::io::Write;

use crate::failure::BAD_INPUT;

/// Prints a line, as `println!` does, but ends the program quietly where nobody reads it any more: `ferroflash info |
/// head -1` is no reason to panic.
macro_rules! say {
    ($($text:tt)*) => { crate::print::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// What [`say`] does.
pub fn line(text: fmt::Arguments) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(BAD_INPUT.into());
    }
}
