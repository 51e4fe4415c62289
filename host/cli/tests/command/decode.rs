//! `ferroflash bench --decode` on the processor.

use super::*;

/// Runs it on the processor, for a moment, expects an exit code, gives stdout and stderr.
fn decode(code: i32, line: &str) -> (String, String) {
    let line = format!("bench --decode --backend cpu --rep 1 --warm-up 0 --rounds 1 {line}");
    expect(code, &line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn decode_is_measured_without_a_gpu() {
    let line = "--heads 4/2,4 --hdims 64 --seqs 1,4 --seqlen-k 32,50 --batch 1,3 --split-kv never,16 --json";
    let (stdout, _) = decode(0, line);
    let rows: Vec<serde_json::Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 2 * 2 * 2 * 2 * 2, "{stdout}");
    for row in &rows {
        assert_eq!(
            (row["graph"].as_bool(), row["views"].as_u64()),
            (Some(false), Some(1))
        );
        assert_eq!(row["p"], "fwd");
        assert!(
            0.0 < row["ms"].as_f64().unwrap() && row["gbps"].is_number(),
            "{row}"
        );
    }
    let last = &rows[31];
    let sizes = [
        ("D", 64),
        ("H", 4),
        ("Hk", 4),
        ("S", 4),
        ("Sk", 50),
        ("B", 3),
        ("causal", 1),
    ];
    for (name, value) in sizes {
        assert_eq!(last[name], value, "{last}");
    }
    assert_eq!(last["peer"], "ferroflash-tiled-split16");
}

#[test]
fn a_table_of_decode_has_a_word_under_each_head() {
    let (stdout, _) = decode(
        0,
        "--heads 4/2 --hdims 64 --seqlen-k 131072 --batch 1 --split-kv 65536",
    );
    let lines: Vec<&str> = stdout.lines().collect();
    let [heads, row] = lines.as_slice() else {
        panic!("{stdout}");
    };
    // Columns of numbers end under the end of their heads.
    for (head, word) in [(" Sk", " 131072"), (" Hk", " 2"), ("GB/s", "")] {
        let end = heads.find(head).unwrap() + head.len();
        assert!(row[..end].ends_with(word), "{head}: {stdout}");
        assert!(row[end..].starts_with(' '), "{head}: {stdout}");
    }
}

#[test]
fn what_decode_does_not_measure_is_a_bad_option() {
    for (line, message) in [
        (
            "--passes bwd",
            "--passes bwd: --decode measures the forward pass",
        ),
        ("--lengths 3,4", "'--lengths <LENGTHS>'"),
        ("--tokens 64", "'--tokens <TOKENS>'"),
        ("--width 64", "'--width <WIDTH>'"),
        ("--heads-k 1", "'--heads-k <HEADS_K>'"),
        ("--order fastest", "'--order <ORDER>'"),
        ("--prefix 4", "'--prefix <PREFIX>'"),
        ("--heads 4/", "heads of q and of k are needed, as 32/8"),
        ("--heads 4/3", "heads_q is 4, heads_k is 3"),
    ] {
        let (stdout, stderr) = decode(2, line);
        assert!(stderr.contains(message), "{line}: {stderr}");
        assert_eq!(stdout, "", "{line}");
    }
    let (_, stderr) = expect(2, &["bench", "--batch", "8"]);
    assert!(stderr.contains("--decode"), "{stderr}");
}
