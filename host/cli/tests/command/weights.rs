//! Rows of the weights: as a table, as JSON and CSV, as a picture; sinks and expressions of a file.

use expect_test::{Expect, expect};

use super::*;

/// What `weights` prints of a file, less the line that names it.
fn printed(input: &str, arguments: &[&str], expected: Expect) {
    let (stdout, _) = super::expect(0, &[&["weights", input], arguments].concat());
    let lines = stdout.lines().filter(|line| !line.starts_with("input"));
    expected.assert_eq(&lines.map(|line| format!("{line}\n")).collect::<String>());
}

/// All weights of some rows.
fn rows(input: &str, arguments: &[&str]) -> Vec<Vec<f64>> {
    let (stdout, _) = super::expect(0, &[&["weights", input, "--json"], arguments].concat());
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["backend"], "cpu");
    let rows = json["weights"].as_array().unwrap().iter();
    rows.map(|row| {
        let row = row.as_array().unwrap().iter();
        row.map(|p| p.as_f64().unwrap()).collect()
    })
    .collect()
}

/// Three tokens, one head, one column: q is 1, keys are 0, ln 2 and ln 4, and softmax_scale is 1.
fn small(name: &str, more: Vec<Stored>) -> String {
    changed(name, |tensors, metadata| {
        let f32s = |name: &str, numbers: [f32; 3]| Stored {
            name: name.into(),
            dtype: safetensors::Dtype::F32,
            shape: vec![1, 3, 1, 1],
            bytes: numbers.map(f32::to_le_bytes).concat(),
        };
        let keys = [0f32, 2f32.ln(), 4f32.ln()];
        *tensors = vec![f32s("q", [1.0; 3]), f32s("k", keys), f32s("v", [0.0; 3])];
        tensors.extend(more);
        metadata.insert("softmax_scale".into(), "1".into());
    })
}

fn vector(name: &str, numbers: &[f32]) -> Stored {
    Stored {
        name: name.into(),
        dtype: safetensors::Dtype::F32,
        shape: vec![numbers.len()],
        bytes: numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

#[test]
fn the_strongest_keys_of_each_row_are_named() {
    let input = small("weights_small.safetensors", vec![]);
    printed(
        &input,
        &["--top", "2"],
        expect![[r#"
        weights    batch 0, head 0, queries 0..3, 3 keys
        computed   cpu: these rows and no others
        query 0    sum 1.0000  key 0 1.0000
        query 1    sum 1.0000  key 1 0.6667  key 0 0.3333
        query 2    sum 1.0000  key 2 0.5714  key 1 0.2857
    "#]],
    );
}

#[test]
fn all_weights_are_data() {
    let input = small("weights_csv.safetensors", vec![]);
    printed(
        &input,
        &["--rows", "1..3", "--csv", "--causal=false"],
        expect![[r#"
        query,0,1,2
        1,0.14285715,0.2857143,0.5714286
        2,0.14285715,0.2857143,0.5714286
    "#]],
    );
    let input = real("causal_d64.safetensors");
    let rows = rows(&input, &["--head", "1", "--rows", "300..384"]);
    assert_eq!(rows.len(), 84);
    for (row, query) in rows.iter().zip(300..) {
        assert_eq!(row.len(), 384);
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-5);
        assert!(row[query + 1..].iter().all(|&p| p == 0.0));
    }
}

#[test]
fn sinks_and_expressions_of_a_file_count() {
    let more = || vec![vector("sinks", &[0.0]), vector("slopes", &[2f32.ln()])];
    let input = small("weights_sinks.safetensors", more());
    let close = |given: &[f64], expected: [f64; 3]| {
        let apart = given.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f64::max) < 1e-6, "{given:?}");
    };
    // exp of the scores: 1, 2, 4; of the sink: 1.
    close(
        &rows(&input, &["--rows", "2..3"])[0],
        [1.0 / 8.0, 2.0 / 8.0, 4.0 / 8.0],
    );
    // A slope of ln 2 halves the first and quarters the one before it.
    let alibi = ["--rows", "2..3", "--score", "alibi"];
    close(
        &rows(&input, &alibi)[0],
        [0.25 / 6.25, 1.0 / 6.25, 4.0 / 6.25],
    );
    let input = small("weights_no_slopes.safetensors", vec![]);
    let (_, stderr) = super::expect(2, &["weights", &input, "--score", "alibi"]);
    assert!(stderr.contains("slopes"), "{stderr}");
    let soft_cap = [
        "weights", &input, "--score", "soft-cap", "--param", "cap=0.5",
    ];
    super::expect(0, &soft_cap);
    let (_, stderr) = super::expect(2, &[&soft_cap[..5], &["cap=high"]].concat());
    assert!(stderr.contains("--param cap"), "{stderr}");
    // `run` takes them, too.
    let input = small("run_sinks.safetensors", more());
    let (stdout, _) = super::expect(0, &["run", &input, "--backend", "cpu", "--score", "alibi"]);
    assert!(
        stdout.contains("sinks") && stdout.contains("compared   nothing"),
        "{stdout}"
    );
}

#[test]
fn a_picture_is_drawn() {
    let input = real("causal_d64.safetensors");
    let svg = scratch("weights.svg");
    let arguments = [
        "weights", &input, "--head", "1", "--rows", "320..384", "--svg",
    ];
    let (_, stderr) = super::expect(0, &[&arguments[..], &[svg.to_str().unwrap()]].concat());
    assert!(stderr.contains("written"), "{stderr}");
    let svg = std::fs::read_to_string(&svg).unwrap();
    let text = svg.lines().map(str::trim);
    let text: Vec<&str> = text
        .filter(|line| !line.is_empty() && !line.starts_with('<'))
        .collect();
    expect![[r#"
        attention weights: batch 0, head 1, causal
        0
        50
        100
        150
        200
        250
        300
        350
        320
        330
        340
        350
        360
        370
        380
        key index
        query index
        weight
        0.000
        0.062
        0.250
        0.562
        0.999
        one cell for each pair; colour follows the root of the weight"#]]
    .assert_eq(&text.join("\n"));
}

#[test]
fn what_is_not_there_is_bad_input() {
    let input = real("causal_d64.safetensors");
    for (arguments, message) in [
        (["--batch", "1"], "batch is 1; allowed: below 1"),
        (["--head", "2"], "head is 2; allowed: below 2"),
        (
            ["--rows", "380..385"],
            "rows are 380..385; allowed: within 0..384",
        ),
        (["--rows", "9..8"], "rows are 9..8"),
        (["--rows", "all"], "allowed: FROM..TO"),
        (["--svg", &input], "is the input"),
    ] {
        let (_, stderr) = super::expect(2, &[&["weights", &input], &arguments[..]].concat());
        assert!(stderr.contains(message), "{stderr}");
    }
}
