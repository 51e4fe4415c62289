//! The runs under `tests/benches/record`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ferroflash_lab::record::runs;
pub use ferroflash_lab::record::{Case, Row, Run};

/// Every run, in the record's order.
pub fn read(root: &Path) -> Result<Vec<Run>> {
    let folder = root.join("tests/benches/record");
    let entries = fs::read_dir(&folder).context("the record cannot be read")?;
    let mut files: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut all = String::new();
    for file in files {
        all.push_str(&fs::read_to_string(&file)?);
        all.push('\n');
    }
    Ok(runs(&all))
}

/// The run of this minute that has the pass, of all these lengths.
pub fn find<'a>(runs: &'a [Run], date: &str, pass: &str, seqlens: &[u64]) -> Result<&'a Run> {
    let has = |run: &Run, seqlen: u64| {
        let mut rows = run.rows.iter();
        rows.any(|row| row.pass == pass && row.seqlen == seqlen)
    };
    let mut found = runs
        .iter()
        .filter(|run| run.date == date)
        .filter(|run| seqlens.iter().all(|&seqlen| has(run, seqlen)));
    found
        .next()
        .with_context(|| format!("the record has no such run of {date}: {pass}, {seqlens:?}"))
}
