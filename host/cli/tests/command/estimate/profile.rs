//! What `profile` knows without a GPU, and its errors.

use super::super::*;
use expect_test::expect;

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn what_is_known_beforehand() {
    let line = "profile --predict --seqlen 4096 --heads 16 --head-dim 128 --causal";
    let (stdout, _) = expect(0, &words(line));
    expect![[r#"
        GPU       H200: compute capability 9.0, 132 SMs
        problem   bf16 batch 1, 16 heads over 16, 4096 queries over 4096 keys, head_dim 128, causal, Deterministic

        forward with flash3
        kernel                                     µs share %     grid  threads   shared registers  blocks/SM
        forward_sm90a_bf16_d128 right_bound         -       -      132      384   229696         -          1
        FLOPs     68.7 G as the papers count
                  70.9 G executed, in whole blocks
        HBM       67.4 MB by count
        roof      compute: predicted 118.0 µs
        idle      5.3 % of the main kernel, simulated: 3.7 % beginnings and ends of tiles, 0.0 % waits at semaphores, 1.6 % without a tile

        backward with flash3
        kernel                                           µs share %     grid  threads   shared registers  blocks/SM
        backward_preprocess_sm90a_bf16_d128 plain         -       -     1024      256        0         -          1
        backward_sm90a_bf16_d128 right_bound              -       -      132      384   230848         -          1
        FLOPs     171.8 G as the papers count
                  177.2 G executed, in whole blocks
        HBM       219.4 MB by count
        roof      compute: predicted 330.3 µs
        idle      8.3 % of the main kernel, simulated: 8.1 % beginnings and ends of tiles, 0.0 % waits at semaphores, 0.3 % without a tile
    "#]].assert_eq(&stdout);
}

#[test]
fn other_gpus_and_schedules() {
    let line = "profile --predict --gpu A100 --seqlen 2048 --heads 32 --head-dim 64 --passes bwd";
    let (stdout, _) = expect(0, &words(line));
    expect![[r#"
        GPU       A100: compute capability 8.0, 108 SMs
        problem   bf16 batch 1, 32 heads over 32, 2048 queries over 2048 keys, head_dim 64, full, Deterministic

        backward with flash2
        kernel                                          µs share %     grid  threads   shared registers  blocks/SM
        backward_preprocess_sm80_bf16_d64 plain          -       -     1024      256        0         -          1
        backward_sm80_bf16_d64 plain                     -       -      108      256    99376         -          1
        backward_postprocess_sm80_bf16_d64 plain         -       -     1024      256     8192         -          1
        FLOPs     85.9 G as the papers count
                  85.9 G executed, in whole blocks
        HBM       110.4 MB by count
        roof      compute: predicted 812.0 µs
        idle      24.1 % of the main kernel, simulated: 6.9 % beginnings and ends of tiles, 5.5 % waits at semaphores, 11.6 % without a tile
    "#]].assert_eq(&stdout);
    let line = "profile --predict --algorithm standard --seqlen 512 --passes fwd";
    let (stdout, _) = expect(0, &words(line));
    expect![[r#"
        GPU       H200: compute capability 9.0, 132 SMs
        problem   bf16 batch 1, 16 heads over 16, 512 queries over 512 keys, head_dim 128, full, Deterministic

        forward with standard
        kernel                                  µs share %     grid  threads   shared registers  blocks/SM
        standard_scores_sm80_bf16 plain          -       -      256      256    49152         -          2
        standard_softmax_sm80_bf16 plain         -       -     2048      128        0         -          1
        standard_output_sm80_bf16 plain          -       -       64      256    49152         -          2
        FLOPs     2.1 G as the papers count
                  2.1 G executed, in whole blocks
        HBM       58.8 MB by count
        roof      launch: predicted 28.4 µs
        idle      not simulated: no kernel of standard takes tiles in an order that is planned
    "#]].assert_eq(&stdout);
}

#[test]
fn json_has_the_same() {
    let line = "profile --predict --seqlen 4096 --passes fwd --json";
    let (stdout, _) = expect(0, &words(line));
    let row: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(row["algorithm"], "flash3");
    assert_eq!(row["kernels"][0]["kernel"], "forward_sm90a_bf16_d128");
    assert_eq!(row["kernels"][0]["grid"], 132);
    assert!(row["kernels"][0]["ms"].is_null() && row["ms"].is_null());
    assert!(row["predicted_ms"].as_f64().unwrap() > 0.0);
    let idle = row["idle"]["share"].as_f64().unwrap();
    assert!(0.0 < idle && idle < 0.5, "{row}");
}

#[test]
fn the_timeline_is_drawn() {
    let svg = scratch("profile.svg");
    let mut arguments = words("profile --predict --seqlen 2048 --heads 4 --causal --svg");
    arguments.push(svg.to_str().unwrap());
    expect(0, &arguments);
    let drawn = std::fs::read_to_string(&svg).unwrap();
    for text in [
        "forward with flash3 on H200: bf16, 2048 queries",
        "backward with flash3 on H200",
        "Simulated, not measured",
        "time in steps",
    ] {
        assert!(drawn.contains(text), "{text}");
    }
}

/// On a machine without a GPU, or without kernels.
#[test]
fn without_a_gpu_the_error_says_what_is_left() {
    let output = ferroflash(&["profile", "--seqlen", "128"]);
    if output.status.code() == Some(0) {
        // There is a GPU.
        return;
    }
    assert_eq!(output.status.code(), Some(3));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("profile measures on a GPU, and there is none"),
        "{stderr}"
    );
    assert!(stderr.contains("--predict"), "{stderr}");
}

#[test]
fn without_ncu_the_error_says_so() {
    let nowhere = scratch("no_programs");
    let program = place("CARGO_BIN_EXE_ferroflash", env!("CARGO_BIN_EXE_ferroflash"));
    let mut command = Command::new(program);
    let output = command
        .args(["profile", "--ncu"])
        .env("PATH", nowhere)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("it is not on PATH"), "{stderr}");
}

#[test]
fn bad_options_are_bad_input() {
    for (line, message) in [
        ("profile --predict --gpu H1000", "gpu is \"H1000\""),
        ("profile --predict --ncu", "cannot be used with"),
        ("profile --predict --head-dim 0", "head_dim"),
    ] {
        let (_, stderr) = expect(2, &words(line));
        assert!(stderr.contains(message), "{line}: {stderr}");
    }
    // No kernel of the list runs there.
    let (_, stderr) = expect(3, &words("profile --predict --gpu T4 --dtype f16"));
    assert!(stderr.contains("compute capability"), "{stderr}");
}
