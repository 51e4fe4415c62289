//! `bench`: the command's own measurements, kept with their date.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use xshell::cmd;

use crate::workspace::Workspace;

/// Measures with `ferroflash bench` and appends the lines to a record under tests/benches/record.
#[derive(clap::Args, Clone, Debug)]
pub struct Bench {
    /// Arguments of `ferroflash bench`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the measurements. The record says when, of what, and by which command.
pub fn bench(workspace: &Workspace, options: &Bench) -> Result<()> {
    let shell = workspace.shell()?;
    let date = cmd!(shell, "date --utc +%Y-%m-%dT%H:%M:%SZ").read()?;
    let commit = cmd!(shell, "git describe --always --dirty")
        .quiet()
        .ignore_stderr()
        .read()
        .unwrap_or_default();
    let mut command = Command::new(workspace.cargo());
    command.current_dir(&workspace.root).args([
        "run",
        "--release",
        "--package",
        "ferroflash",
        "--features",
        "cli",
    ]);
    command
        .args(["--bin", "ferroflash", "--", "bench", "--json"])
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
    let header =
        serde_json::json!({ "date": date, "commit": commit, "command": arguments.trim_end() });
    writeln!(record, "{header}")?;
    for line in &lines {
        writeln!(record, "{line}")?;
    }
    eprintln!("{} lines appended to {}", lines.len(), path.display());
    Ok(())
}
