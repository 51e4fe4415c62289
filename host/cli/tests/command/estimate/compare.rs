//! `ferroflash bench --compare`: schedules beside their predictions, as a table, JSON, CSV and a picture.

use super::super::*;

/// A problem that a processor computes at once.
const SMALL: &str = "--seqs 8..16 --hdims 8 --width 8 --tokens 16 --causal 0 --passes fwd --rounds 1 --rep 1 --warm-up 1";

fn run(line: &str) -> String {
    let line = format!("bench --backend cpu {SMALL} {line}");
    let (stdout, _) = expect(0, &line.split(' ').collect::<Vec<_>>());
    stdout
}

#[test]
fn a_row_for_each_schedule_and_length() {
    let (csv, svg) = (scratch("compare.csv"), scratch("compare.svg"));
    let files = format!("--csv {} --svg {}", csv.display(), svg.display());
    let table = run(&format!(
        "--compare tiled,standard,flash2 --gpu H100 {files}"
    ));
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 1 + 2 * 3, "{table}");
    assert!(
        rows[0].starts_with("pass ") && rows[0].contains("predicted ms"),
        "{table}"
    );
    // The processor computes one of them. The others are predicted for the GPU.
    for row in &rows[1..] {
        let measured = row.contains(" tiled ");
        assert_eq!(row.contains("it does not run on cpu"), !measured, "{row}");
        assert_eq!(row.ends_with('-'), measured, "{row}");
    }

    let csv = std::fs::read_to_string(&csv).unwrap();
    let columns = csv.lines().next().unwrap().split(',').count();
    assert_eq!((csv.lines().count(), columns), (1 + 2 * 3, 18), "{csv}");
    let row = csv.lines().find(|row| row.contains(",tiled,")).unwrap();
    assert_eq!(row.split(',').count(), columns, "{row}");

    let svg = std::fs::read_to_string(&svg).unwrap();
    for text in [
        "<svg",
        "flash2",
        "memory beside inputs and outputs",
        "H100: roofline",
        "sequence length",
    ] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn json_has_what_is_measured_and_what_is_predicted() {
    let stdout = run("--compare tiled,flash2 --gpu H100 --json");
    let rows: Vec<serde_json::Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 4, "{stdout}");
    for row in &rows {
        let measured = row["peer"] == "ferroflash-tiled";
        assert_eq!(row["ms"].is_number(), measured, "{row}");
        assert_eq!(row["predicted_ms"].is_number(), !measured, "{row}");
        assert_eq!(row["hbm_bytes"].is_number(), !measured, "{row}");
    }
}

#[test]
fn counters_are_of_a_gpu() {
    let line = format!("bench --backend cpu {SMALL} --compare tiled --ncu");
    let (_, stderr) = expect(2, &line.split(' ').collect::<Vec<_>>());
    assert!(stderr.contains("--ncu counts"), "{stderr}");
}

#[test]
fn without_a_gpu_nothing_is_predicted() {
    let stdout = run("--compare tiled --json");
    assert!(
        !stdout.contains("predicted_ms") && stdout.contains("tflops"),
        "{stdout}"
    );
    let line = format!("bench --backend cpu {SMALL} --compare tiled --gpu Abacus");
    let (_, stderr) = expect(2, &line.split(' ').collect::<Vec<_>>());
    assert!(stderr.contains("Abacus"), "{stderr}");
}
