//! Lines on standard output.

use std::fmt;
use std::io::Write;

use ferroflash::Problem;

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

/// The columns of a problem, as tables name them: `head_dim 128`, or `head_dim 192, head_dim_v 128` where v has others.
pub fn head_dims(problem: &Problem) -> String {
    let (columns, columns_v) = (problem.head_dim(), problem.head_dim_v());
    match columns == columns_v {
        true => format!("head_dim {columns}"),
        false => format!("head_dim {columns}, head_dim_v {columns_v}"),
    }
}

/// The sizes of a problem, as tables name them: `bf16 batch 1, 16 heads over 16, 512 queries over 512 keys, head_dim 128`.
pub fn sizes(problem: &Problem) -> String {
    format!(
        "{} batch {}, {} heads over {}, {} queries over {} keys, {}",
        problem.dtype(),
        problem.batch(),
        problem.heads_q(),
        problem.heads_k(),
        problem.seqlen_q(),
        problem.seqlen_k(),
        head_dims(problem)
    )
}
