//! Tables of the book under `docs/src`, held to what tests measure.

use std::fs;
use std::io::Write;
use std::path::Path;

/// How far a number of the book may be off: its two digits, and other machines' exponentials.
const OFF: f64 = 0.15;

/// A row of a table.
fn cells(line: &str) -> Vec<&str> {
    let inside = line.trim().trim_start_matches('|').trim_end_matches('|');
    inside.split('|').map(str::trim).collect()
}

/// Whether a cell says what was measured: the same text, or nearly the same number.
fn agree(said: &str, measured: &str) -> bool {
    match (said.parse::<f64>(), measured.parse::<f64>()) {
        (Ok(said), Ok(measured)) => (said - measured).abs() <= OFF * measured.abs(),
        _ => said == measured,
    }
}

/// Panics where a chapter lacks one of the rows, `| bf16 | 1.2e-3 |`, numbers within 15 %. A bundle has no book: there it is not looked at.
pub fn assert_says(chapter: &str, rows: &[String]) {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let path = Path::new(&package).join("../docs/src").join(chapter);
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let line = format!("[not run] the book, {chapter}: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return;
        }
    };
    let said: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(cells)
        .collect();
    let lacks = |row: &&String| {
        let measured = cells(row);
        !said.iter().any(|said| {
            said.len() == measured.len()
                && said
                    .iter()
                    .zip(&measured)
                    .all(|(said, measured)| agree(said, measured))
        })
    };
    let lacking: Vec<&String> = rows.iter().filter(lacks).collect();
    assert!(lacking.is_empty(), "{chapter} lacks\n{lacking:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_a_little_off_and_words_not() {
        assert_eq!(cells("| a | 1.0e-3 |"), ["a", "1.0e-3"]);
        assert!(agree("1.0e-3", "1.1e-3") && agree("bf16", "bf16"));
        assert!(!agree("1.0e-3", "2.0e-3") && !agree("bf16", "fp16") && !agree("1.0", "NaN"));
    }
}
