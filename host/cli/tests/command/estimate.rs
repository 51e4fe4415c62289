//! Predictions of the command: tables, JSON, pictures, and bad GPUs.

mod compare;
mod profile;

use expect_test::expect;

use super::*;

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn a_table_for_each_pass() {
    let line = "estimate --gpu A100 --seqlen 2048 --heads 32 --head-dim 64 --dtype f16 --batch 8";
    let (stdout, _) = expect(0, &words(line));
    expect![[r#"
        GPU       A100: 312 TFLOP/s of f16, 2039 GB/s, 108 SMs with 164 KB, 40 MB of L2
        problem   f16 batch 8, 32 heads over 32, 2048 queries over 2048 keys, head_dim 64, full

        forward        GFLOP     HBM MB      L2 MB   FLOP/B   extra MB  bound by              µs speed-up
        standard       412.3    17450.4    20470.3       24     6442.5  memory           10371.3     1.00
        flash1         274.9     3231.7     3231.7       85      138.4  compute           4201.6     2.47
        flash2         274.9      270.5     2283.8     1016        0.0  compute           1629.0     6.37
                  inputs and outputs, each once: 270.5 MB

        backward       GFLOP     HBM MB      L2 MB   FLOP/B   extra MB  bound by              µs speed-up
        standard      1099.5    35171.3    42217.8       31     6446.6  memory           21844.4     1.00
        flash1         687.2     7254.1     7254.1       95      138.4  compute           7869.7     2.78
        flash2         687.2      882.9     4972.4      778      138.4  compute           6087.9     3.59
                  inputs and outputs, each once: 539.0 MB

        A model: nine in ten times of flash2 and flash3 that were measured on an H200 are within 15 % of it; elsewhere it goes by analogy (documentation of ferroflash_lab::estimate).
    "#]].assert_eq(&stdout);
}

#[test]
fn a_sweep_is_printed_and_drawn() {
    let svg = scratch("estimate.svg");
    let line = "estimate --gpu H100 --seqs 512..2048 --head-dim 64 --causal --pass forward --svg";
    let mut arguments = words(line);
    arguments.push(svg.to_str().unwrap());
    let (stdout, _) = expect(0, &arguments);
    expect![[r#"
        GPU       H100: 989.4 TFLOP/s of bf16, 3350 GB/s, 132 SMs with 228 KB, 50 MB of L2
        problem   bf16 batch 1, 16 heads over 16, head_dim 64, causal; µs, speed-up over standard, what binds

        forward                 standard                flash1                flash2                flash3
        512               32.3 ( 1.00) m        47.1 ( 0.69) c        15.0 ( 2.15) c        13.3 ( 2.44) l
        1024              85.9 ( 1.00) m       131.8 ( 0.65) c        20.6 ( 4.17) c        17.1 ( 5.01) c
        2048             387.0 ( 1.00) m       446.4 ( 0.87) c        55.6 ( 6.96) c        27.6 (14.02) c

        bound by: c compute, m memory, e exponentials, l launch

        A model: nine in ten times of flash2 and flash3 that were measured on an H200 are within 15 % of it; elsewhere it goes by analogy (documentation of ferroflash_lab::estimate).
    "#]].assert_eq(&stdout);
    let drawn = std::fs::read_to_string(&svg).unwrap();
    for text in [
        "<svg",
        "standard",
        "flash3",
        "sequence length",
        "H100, forward",
    ] {
        assert!(drawn.contains(text), "{text}");
    }
}

#[test]
fn values_of_other_columns_are_posed_and_named() {
    let line = "estimate --gpu H200 --seqlen 2048 --head-dim 64 --head-dim-v 256 --pass forward";
    let (stdout, _) = expect(0, &words(line));
    assert!(
        stdout.contains("head_dim 64, head_dim_v 256, full"),
        "{stdout}"
    );
    let (stdout, _) = expect(0, &words(&format!("{line} --json")));
    assert_eq!(stdout.lines().count(), 4, "{stdout}");
    for line in stdout.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&row["head_dim"], &row["head_dim_v"]),
            (&64.into(), &256.into())
        );
    }
}

#[test]
fn q_k_and_v_in_8_bits_are_posed_and_named() {
    let line = "estimate --gpu H200 --seqlen 8192 --fp8";
    let (stdout, _) = expect(0, &words(&format!("{line} one-level --causal")));
    expect![[r#"
        GPU       H200: 989.4 TFLOP/s of bf16, 1978.8 of e4m3, 4800 GB/s, 132 SMs with 228 KB, 50 MB of L2
        problem   bf16 batch 1, 16 heads over 16, 8192 queries over 8192 keys, head_dim 128, causal, q, k and v in e4m3 with a scale per tensor, sums of one level

        forward        GFLOP     HBM MB      L2 MB   FLOP/B   extra MB  bound by              µs speed-up
        flash3         283.5       84.4     1157.9     3358        0.0  compute            307.2    14.53
                  inputs and outputs, each once: 84.4 MB

        backward       GFLOP     HBM MB      L2 MB   FLOP/B   extra MB  bound by              µs speed-up
        standard      1374.4    34915.0    49712.5       39     6544.2  memory            9484.0     1.00
        flash1         697.9     7098.9     7098.9       98      168.8  compute          19510.9     0.49
        flash2         697.9      589.8     4850.7     1183      168.8  compute           2211.8     4.29
        flash3         697.9      589.8     4850.7     1183      168.8  compute           1248.3     7.60
                  inputs and outputs, each once: 218.6 MB

        A model: nine in ten times of flash2 and flash3 that were measured on an H200 are within 15 % of it; elsewhere it goes by analogy (documentation of ferroflash_lab::estimate).
    "#]].assert_eq(&stdout);
    for (fp8, words_of_it) in [
        ("two-levels", "a scale per tensor, sums of two levels"),
        ("blocks", "a scale per block, sums of two levels"),
    ] {
        let (stdout, _) = expect(0, &words(&format!("{line} {fp8}")));
        assert!(stdout.contains(words_of_it), "{stdout}");
        let (stdout, _) = expect(0, &words(&format!("{line} {fp8} --json")));
        // flash3 alone forward, all four backward.
        assert_eq!(stdout.lines().count(), 5, "{stdout}");
        for line in stdout.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(row["fp8"], fp8);
        }
    }
}

#[test]
fn json_has_a_line_for_each_schedule() {
    let line = "estimate --peak 300 --bandwidth 2000 --sram 160 --sms 100 --seqlen 1024 --json";
    let (stdout, _) = expect(0, &words(line));
    let rows: Vec<serde_json::Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // Three schedules, two passes.
    assert_eq!(rows.len(), 6, "{stdout}");
    for row in &rows {
        assert_eq!(row["gpu"], "custom GPU");
        assert!(row["has_kernels"].is_null());
        assert!(row["hbm_bytes"].as_u64() >= row["least_bytes"].as_u64());
        assert!(row["seconds"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn bad_gpus_are_named() {
    for (line, message) in [
        ("estimate", "no GPU is given"),
        (
            "estimate --gpu A1000",
            "gpu is \"A1000\"; allowed: T4, V100",
        ),
        (
            "estimate --gpu A100 --fp8 two-levels",
            "no kernel multiplies q, k and v in 8 bits on A100; allowed: compute capability 9.0",
        ),
        (
            "estimate --peak 300 --bandwidth 2000",
            "without --sram and --sms",
        ),
        ("estimate --peak 300", "--bandwidth"),
        (
            "estimate --peak -1 --bandwidth 2000 --sram 160 --sms 100",
            "peak is -1000000000000; allowed: finite",
        ),
        (
            "estimate --peak 0 --bandwidth 2000 --sram 160 --sms 100",
            "peak is 0; allowed: finite numbers greater than 0",
        ),
        ("estimate --gpu T4 --dtype bf16", "multiply f16"),
        (
            "estimate --gpu A100 --seqs 4096..512",
            "the first at least 1",
        ),
        ("estimate --gpu A100 --svg out.svg", "--seqs"),
        ("estimate --gpu A100 --head-dim 0", "head_dim is 0"),
    ] {
        let (_, stderr) = expect(2, &words(line));
        assert!(stderr.contains(message), "{line}\n{stderr}");
    }
}
