//! Numbers of the book, recomputed. Each test says what a chapter must say; what it lacks is printed.

mod constants;
mod estimates;
mod online_softmax;
mod schedules;
mod tables;
mod which;

use std::fs;

/// A chapter must have each of these, each in one line.
fn assert_says(chapter: &str, words: &[String]) {
    let path = ferroflash_book::root().join("docs/src").join(chapter);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let lacking: Vec<&String> = words
        .iter()
        .filter(|words| !text.contains(*words))
        .collect();
    let lines = lacking.iter().map(|words| format!("{words}\n"));
    assert!(
        lacking.is_empty(),
        "{chapter} lacks\n{}",
        lines.collect::<String>()
    );
}
