//! `bench`: the command's own measurements, kept with their date; beside those of another day.

mod against;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use xshell::cmd;

use crate::workspace::Workspace;
use against::Comparison;

/// Measures with `ferroflash bench` and appends the lines to a record under tests/benches/record. With --against, says what has moved since a record.
#[derive(clap::Args, Clone, Debug)]
pub struct Bench {
    /// A record. Rows are compared by their ratio to a peer of the same run, or to flash2 where none ran; what moved by more than 3 % is
    /// printed, and if something is slower, or nothing could be compared, the command fails.
    #[arg(long, value_name = "RECORD")]
    against: Option<PathBuf>,
    /// Lines that have been measured already, as `ferroflash bench --json` and `tests/benches/peers.py` print them: compares them, and
    /// measures nothing.
    #[arg(long, value_name = "FILE", requires = "against")]
    measured: Option<PathBuf>,
    /// Arguments of `ferroflash bench`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The command with kernels as they are in the sources.
const FEATURES: [&str; 1] = ["build-kernels"];

/// What the command says of the devices, a line for each.
fn machine(workspace: &Workspace) -> Result<Vec<String>> {
    let output = workspace
        .ferroflash("run", &FEATURES)
        .args(["--", "info"])
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let devices = text
        .lines()
        .filter(|line| line.starts_with("GPU") || line.starts_with("processor"));
    Ok(devices.map(str::to_owned).collect())
}

/// Runs the measurements. The record says when, of what, and by which command.
pub fn bench(workspace: &Workspace, options: &Bench) -> Result<()> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    // Read first: the new lines may be appended to the same file.
    let record = options.against.as_ref().map(read).transpose()?;
    let lines = match &options.measured {
        Some(path) => read(path)?,
        None => measure(workspace, options)?,
    };
    let Some(record) = record else {
        return Ok(());
    };
    let comparison = Comparison::new(&record, &lines);
    eprint!("{}", comparison.report());
    judge(&comparison)
}

/// An error where something is slower, and where nothing could be compared.
fn judge(comparison: &Comparison) -> Result<()> {
    if comparison.is_empty() {
        bail!(
            "no row could be compared: the record has no row of these cases with a baseline that both runs measured"
        );
    }
    if comparison.is_slower() {
        bail!("some rows are slower than they were");
    }
    Ok(())
}

/// Runs the measurements and appends them to the record of the day; gives their lines.
fn measure(workspace: &Workspace, options: &Bench) -> Result<String> {
    let shell = workspace.shell()?;
    let date = cmd!(shell, "date --utc +%Y-%m-%dT%H:%M:%SZ").read()?;
    let commit = cmd!(shell, "git describe --always --dirty")
        .quiet()
        .ignore_stderr()
        .read()
        .unwrap_or_default();
    let machine = machine(workspace)?;
    let mut command = workspace.ferroflash("run", &FEATURES);
    command
        .args(["--", "bench", "--json"])
        .args(&options.arguments)
        .stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take().context("the output is a pipe")?;
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        lines.push(line);
    }
    if !child.wait()?.success() {
        bail!("ferroflash bench failed; nothing is recorded");
    }
    let folder = workspace.root.join("tests/benches/record");
    fs::create_dir_all(&folder)?;
    let day = date.split('T').next().unwrap_or(&date);
    let path = folder.join(format!("{day}.jsonl"));
    let mut record = OpenOptions::new().create(true).append(true).open(&path)?;
    let arguments = [
        "ferroflash bench --json".to_owned(),
        options.arguments.join(" "),
    ]
    .join(" ");
    let header = serde_json::json!({ "date": date, "commit": commit, "machine": machine, "command": arguments.trim_end() });
    writeln!(record, "{header}")?;
    for line in &lines {
        writeln!(record, "{line}")?;
    }
    eprintln!("{} lines appended to {}", lines.len(), path.display());
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_of_nothing_fails() {
        let run = |ms: f64| {
            format!(
                "{{\"date\": \"\"}}\n{{\"peer\": \"ferroflash-flash3\", \"S\": 8, \"ms\": {ms}}}\n{{\"peer\": \"fa4\", \"S\": 8, \"ms\": 1}}"
            )
        };
        let judged = |old: &str, new: &str| match judge(&Comparison::new(old, new)) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(judged(&run(1.0), &run(1.0)), "");
        assert!(judged(&run(1.0), &run(2.0)).contains("slower"));
        assert!(judged("", &run(1.0)).starts_with("no row could be compared"));
    }
}
