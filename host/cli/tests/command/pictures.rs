//! `ferroflash plot` and `ferroflash timeline`: in the terminal and as SVG.

use std::io::Write;
use std::process::Stdio;

use super::*;
use expect_test::expect as expect_text;

const ROWS: &str = r#"{"peer":"ferroflash-flash3","dtype":"bf16","D":128,"causal":1,"S":1024,"B":16,"H":16,"p":"fwd","ms":0.1,"tflops":400.0,"gbps":100.0}
{"peer":"cudnn","dtype":"bf16","D":128,"causal":1,"S":1024,"B":16,"H":16,"p":"fwd","ms":0.1,"tflops":300.0}
{"peer":"ferroflash-flash3","dtype":"bf16","D":128,"causal":1,"S":2048,"B":8,"H":16,"p":"fwd","ms":0.1,"tflops":500.0,"gbps":100.0}
{"peer":"ferroflash-flash2","dtype":"bf16","D":128,"causal":1,"S":2048,"B":8,"H":16,"p":"fwd","err":"no kernel"}
"#;

#[test]
fn rows_are_drawn_as_bars_and_as_a_chart() {
    let (rows, svg) = (scratch("rows.jsonl"), scratch("speed.svg"));
    std::fs::write(&rows, ROWS).unwrap();
    let files = [&rows, &svg].map(|path| path.to_str().unwrap().to_owned());
    let title = ["--title", "H200 & peers"];
    let (stdout, _) = expect(
        0,
        &[&["plot", &files[0], "--svg", &files[1]], &title[..]].concat(),
    );
    expect_text![[r#"
        forward, bf16, head_dim 128, causal, TFLOP/s by sequence length
           1024  ferroflash-flash3  █████████████████████████████████████████████████▋                400.00
                 cudnn              █████████████████████████████████████▎                            300.00
           2048  ferroflash-flash3  ██████████████████████████████████████████████████████████████    500.00

    "#]]
    .assert_eq(&stdout);
    let drawn = std::fs::read_to_string(&svg).unwrap();
    for text in ["<svg", "H200 &amp; peers", "cudnn", "TFLOP/s", "2k"] {
        assert!(drawn.contains(text), "{text}");
    }
}

#[test]
fn what_bench_prints_can_be_piped() {
    let line = "bench --backend cpu --decode --batch 1 --seqlen-k 32,64 --hdims 64 --heads 2/1 --rep 1 --rounds 1 --json";
    let (rows, _) = expect(0, &line.split(' ').collect::<Vec<_>>());
    let program = place("CARGO_BIN_EXE_ferroflash", env!("CARGO_BIN_EXE_ferroflash"));
    let mut command = Command::new(program);
    let piped = command.args(["plot", "-"]).stdin(Stdio::piped());
    let mut child = piped.stdout(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(rows.as_bytes())
        .unwrap();
    let stdout = text(&child.wait_with_output().unwrap().stdout);
    let title = "forward, bf16, head_dim 64, 1 query, batch 1, heads 2/1, GB/s by keys\n";
    assert!(stdout.starts_with(title), "{stdout}");
    assert_eq!(stdout.matches("ferroflash-tiled").count(), 2, "{stdout}");
}

#[test]
fn rows_that_are_none_are_bad_input() {
    let rows = scratch("no_rows.jsonl");
    std::fs::write(&rows, "{}\nwords\n").unwrap();
    let (_, stderr) = expect(2, &["plot", rows.to_str().unwrap()]);
    assert!(stderr.contains("no line is a measured row"), "{stderr}");
    expect(2, &["plot", "no_such_file"]);
}

#[test]
fn a_schedule_is_drawn() {
    let svg = scratch("timeline.svg");
    let line = "timeline --sms 4 --seqlen 1024 --heads 2 --causal --svg";
    let mut words: Vec<&str> = line.split(' ').collect();
    words.push(svg.to_str().unwrap());
    let (stdout, _) = expect(0, &words);
    expect_text![[r#"
        forward, flash3 on 4 SMs of H200
        problem   bf16 batch 1, 2 heads over 2, 1024 queries over 1024 keys, head_dim 128, causal
        time      20.6 steps, 12.5 % idle: 12.5 % beginnings and ends of tiles, 0.0 % waits at semaphores, 0.0 % without a tile
        SM 0      77777777777777777777777777777777777774444444444444444444444444333333333333333333330000000
        SM 1      77777777777777777777777777777777777774444444444444444444444444333333333333333333330000000
        SM 2      66666666666666666666666666666666655555555555555555555555555555222222222222222211111111111
        SM 3      66666666666666666666666666666666655555555555555555555555555555222222222222222211111111111
                  time in steps: one block of keys past one tile of queries
                  A letter is a tile, 0 to 9, then a to z, and a colour its head; - waits at a semaphore; . has no tile
    "#]].assert_eq(&stdout);
    let drawn = std::fs::read_to_string(&svg).unwrap();
    for text in [
        "<svg",
        "forward, flash3 on 4 SMs of H200",
        "Simulated, not measured",
        "SM 3",
    ] {
        assert!(drawn.contains(text), "{text}");
    }
}

#[test]
fn steps_and_many_places() {
    let line = "timeline --pass bwd --steps --sms 4 --seqlen 512 --heads 1";
    let (stdout, _) = expect(0, &line.split(' ').collect::<Vec<_>>());
    assert!(
        stdout.contains("A letter is a block of queries"),
        "{stdout}"
    );
    let (stdout, _) = expect(0, &["timeline"]);
    assert!(stdout.contains("The first 32 of 132 places"), "{stdout}");
}

#[test]
fn what_is_not_simulated_is_refused() {
    let (_, stderr) = expect(3, &["timeline", "--algorithm", "standard"]);
    assert!(
        stderr.contains("not simulated: no kernel of standard"),
        "{stderr}"
    );
    expect(2, &["timeline", "--gpu", "Abacus"]);
    expect(2, &["timeline", "--sms", "0"]);
}
