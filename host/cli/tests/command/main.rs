//! The command: what it prints and writes, and its exit codes.

mod blocks;
mod decode;
mod demo;
mod device;
mod estimate;
mod info;
mod kernels;
mod lengths;
mod manual;
mod masks;
mod pictures;
mod report;
mod values;
mod weights;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// Where cargo put something: what it, or the script of a bundle, says at run time, else what it said to the compiler.
fn place(variable: &str, compiled: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(compiled), PathBuf::from)
}

fn ferroflash(arguments: &[&str]) -> Output {
    Command::new(place(
        "CARGO_BIN_EXE_ferroflash",
        env!("CARGO_BIN_EXE_ferroflash"),
    ))
    .args(arguments)
    .output()
    .unwrap()
}

/// A real input of the repository, by name.
fn real(name: &str) -> String {
    let package = place("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"));
    let folder = package.join("../../tests/data");
    folder.join(name).to_str().unwrap().to_owned()
}

/// A path in this test run's folder, different for each test.
fn scratch(name: &str) -> PathBuf {
    place("CARGO_TARGET_TMPDIR", env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs, expects an exit code, gives stdout and stderr.
fn expect(code: i32, arguments: &[&str]) -> (String, String) {
    let output = ferroflash(arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}\n{stdout}\n{stderr}"
    );
    (stdout, stderr)
}

/// The real input with something changed: its tensors as `(name, dtype, shape, bytes)`, its metadata.
fn changed(
    name: &str,
    change: impl FnOnce(&mut Vec<Stored>, &mut std::collections::HashMap<String, String>),
) -> String {
    let bytes = std::fs::read(real("causal_d64.safetensors")).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata = header.metadata().clone().unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<Stored> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| Stored {
            name,
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        })
        .collect();
    change(&mut tensors, &mut metadata);
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap();
        (tensor.name.clone(), view)
    });
    let path = scratch(name);
    std::fs::write(
        &path,
        safetensors::serialize(views, Some(metadata.clone())).unwrap(),
    )
    .unwrap();
    path.to_str().unwrap().to_owned()
}

struct Stored {
    name: String,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn stored<'a>(tensors: &'a mut [Stored], name: &str) -> &'a mut Stored {
    tensors
        .iter_mut()
        .find(|tensor| tensor.name == name)
        .unwrap()
}

#[test]
fn a_real_input_agrees_and_is_written() {
    let output = scratch("written.safetensors");
    let arguments = [
        "run",
        &real("causal_gqa_d64.safetensors"),
        "--backend",
        "cpu",
        "--output",
    ];
    let (stdout, _) = expect(0, &[&arguments[..], &[output.to_str().unwrap()]].concat());
    assert_eq!(stdout.matches("agrees").count(), 5, "{stdout}");
    assert!(
        stdout.contains("tiled on cpu") && stdout.contains("flash2    cannot run"),
        "{stdout}"
    );

    let bytes = std::fs::read(&output).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort();
    assert_eq!(names, ["d_k", "d_q", "d_v", "lse", "o"]);
    assert_eq!(file.tensor("o").unwrap().shape(), [2, 200, 8, 64]);
    assert_eq!(file.tensor("o").unwrap().dtype(), safetensors::Dtype::BF16);
    assert_eq!(file.tensor("lse").unwrap().shape(), [2, 8, 200]);
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["causal"], "true");
}

#[test]
fn a_wrong_stored_result_is_told_by_exit_code_1() {
    let input = changed("wrong.safetensors", |tensors, _| {
        stored(tensors, "o").bytes[400..404].copy_from_slice(&3f32.to_le_bytes());
    });
    let (stdout, _) = expect(1, &["run", &input, "--backend", "cpu", "--pass", "forward"]);
    assert!(stdout.contains("DIFFERS"), "{stdout}");
}

/// A tensor d_lse of the real input, of this type and shape, each element the same.
fn d_lse(dtype: safetensors::Dtype, shape: &[usize], element: f32) -> Stored {
    Stored {
        name: "d_lse".into(),
        dtype,
        shape: shape.to_vec(),
        bytes: element.to_le_bytes().repeat(shape.iter().product()),
    }
}

#[test]
fn a_stored_gradient_of_lse_enters_the_backward_pass() {
    for (element, code, differing) in [(0.0, 0, 0), (10.0, 1, 2)] {
        let input = changed("d_lse.safetensors", |tensors, _| {
            tensors.push(d_lse(safetensors::Dtype::F32, &[1, 2, 384], element))
        });
        let (stdout, _) = expect(code, &["run", &input, "--backend", "cpu"]);
        assert!(stdout.contains("gradients  from d_o and d_lse"), "{stdout}");
        assert_eq!(stdout.matches("DIFFERS").count(), differing, "{stdout}");
        assert_eq!(stdout.matches("agrees").count(), 5 - differing, "{stdout}");
    }
    let input = real("causal_d64.safetensors");
    let (stdout, _) = expect(0, &["run", &input, "--backend", "cpu"]);
    assert!(!stdout.contains("d_lse"), "{stdout}");
}

#[test]
fn another_mask_than_the_stored_results_is_not_compared() {
    let input = real("causal_d64.safetensors");
    let arguments = [
        "run",
        &input,
        "--backend",
        "cpu",
        "--pass",
        "forward",
        "--causal=false",
    ];
    let (stdout, _) = expect(0, &arguments);
    assert!(stdout.contains("compared   nothing"), "{stdout}");
}

#[test]
fn bad_input_is_told_by_exit_code_2_and_writes_nothing() {
    let cut = scratch("cut.safetensors");
    let whole = std::fs::read(real("causal_d64.safetensors")).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let huge = scratch("huge.safetensors");
    std::fs::write(&huge, [0xff; 64]).unwrap();
    let empty = scratch("empty.safetensors");
    std::fs::write(&empty, []).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let cases = [
        (
            path(&scratch("there_is_no_such_file")),
            "there_is_no_such_file",
        ),
        (path(&cut), "not a safetensors file"),
        (path(&huge), "not a safetensors file"),
        (path(&empty), "not a safetensors file"),
        (
            changed("no_k.safetensors", |tensors, _| {
                tensors.retain(|tensor| tensor.name != "k")
            }),
            "tensor k is missing",
        ),
        (
            changed("rank.safetensors", |tensors, _| {
                stored(tensors, "v").shape = vec![384, 2, 64]
            }),
            "tensor v has shape",
        ),
        (
            changed("dtype.safetensors", |tensors, _| {
                stored(tensors, "v").dtype = safetensors::Dtype::F16
            }),
            "tensor v is f16",
        ),
        (
            changed("integers.safetensors", |tensors, _| {
                stored(tensors, "q").dtype = safetensors::Dtype::I16
            }),
            "allowed: BF16, F16, F32",
        ),
        (
            changed("shapes.safetensors", |tensors, _| {
                tensors.retain(|tensor| ["q", "k", "v"].contains(&tensor.name.as_str()));
                stored(tensors, "k").shape = vec![1, 192, 4, 64]
            }),
            "heads_q is 2",
        ),
        (
            changed("window.safetensors", |_, metadata| {
                metadata.insert("window_left".into(), "-3".into());
            }),
            "window_left",
        ),
        (
            changed("layout.safetensors", |_, metadata| {
                metadata.insert("layout".into(), "bhsd".into());
            }),
            "layout",
        ),
        (
            changed("causal.safetensors", |_, metadata| {
                metadata.insert("causal".into(), "perhaps".into());
            }),
            "true or false",
        ),
        (
            changed("scale.safetensors", |_, metadata| {
                metadata.insert("softmax_scale".into(), "-1".into());
            }),
            "softmax_scale is -1",
        ),
    ];
    let output = scratch("never_written.safetensors");
    for (input, message) in cases {
        let arguments = [
            "run",
            &input,
            "--backend",
            "cpu",
            "--output",
            output.to_str().unwrap(),
        ];
        let (_, stderr) = expect(2, &arguments);
        assert!(stderr.contains(message), "{input}: {stderr}");
        assert!(!output.exists(), "{input} left an output");
    }
}

#[test]
fn a_gradient_of_lse_of_another_shape_or_type_is_bad_input() {
    let (f32, bf16) = (safetensors::Dtype::F32, safetensors::Dtype::BF16);
    let transposed = changed("d_lse_shape.safetensors", |tensors, _| {
        tensors.push(d_lse(f32, &[1, 384, 2], 0.0))
    });
    let halves = changed("d_lse_dtype.safetensors", |tensors, _| {
        tensors.push(d_lse(bf16, &[1, 2, 192], 0.0));
        stored(tensors, "d_lse").shape = vec![1, 2, 384];
    });
    for (input, message) in [
        (
            transposed,
            "tensor d_lse has shape [1, 384, 2]; needed: [1, 2, 384]",
        ),
        (halves, "tensor d_lse is bf16; needed: f32"),
    ] {
        let (_, stderr) = expect(2, &["run", &input, "--backend", "cpu"]);
        assert!(stderr.contains(message), "{stderr}");
    }
}

#[test]
fn the_output_is_never_the_input() {
    let input = changed("both.safetensors", |_, _| {});
    let (_, stderr) = expect(2, &["run", &input, "--backend", "cpu", "--output", &input]);
    assert!(stderr.contains("is the input"), "{stderr}");
}

#[test]
fn an_output_that_cannot_be_written_leaves_nothing() {
    let output = scratch("no_such_folder").join("o.safetensors");
    let input = real("causal_d64.safetensors");
    let arguments = [
        "run",
        &input,
        "--backend",
        "cpu",
        "--pass",
        "forward",
        "--output",
    ];
    expect(2, &[&arguments[..], &[output.to_str().unwrap()]].concat());
    assert!(!output.exists());
}

#[test]
fn what_cannot_run_is_told_by_exit_code_3() {
    let input = real("causal_d64.safetensors");
    let (_, stderr) = expect(
        3,
        &["run", &input, "--backend", "cpu", "--algorithm", "flash2"],
    );
    assert!(
        stderr.contains("flash2    cannot run: it does not run on cpu"),
        "{stderr}"
    );
}

#[test]
fn bench_takes_lengths_and_heads_of_k() {
    let arguments = "bench --backend cpu --seqs 4 --seqlen-k 32 --hdims 64 --causal 1 --tokens 64 --width 128 --heads-k 1 --passes fwd --rep 1 --rounds 1 --json";
    let (stdout, _) = expect(0, &arguments.split(' ').collect::<Vec<_>>());
    let row: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    for (name, value) in [("S", 4), ("Sk", 32), ("B", 2), ("H", 2), ("Hk", 1)] {
        assert_eq!(row[name], value, "{row}");
    }
    let ungrouped = arguments.replace("--heads-k 1", "--heads-k 3");
    let (_, stderr) = expect(2, &ungrouped.split(' ').collect::<Vec<_>>());
    assert!(stderr.contains("heads_k"), "{stderr}");
}

#[test]
fn bench_takes_splits() {
    let arguments = "bench --backend cpu --seqs 1 --seqlen-k 32 --split-kv never,16 --hdims 64 --causal 0 --tokens 32 --width 64 --passes fwd --rep 1 --rounds 1 --json";
    let (stdout, _) = expect(0, &arguments.split(' ').collect::<Vec<_>>());
    let names: Vec<String> = stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["peer"].to_string())
        .collect();
    assert_eq!(
        names,
        [
            "\"ferroflash-tiled-undivided\"",
            "\"ferroflash-tiled-split16\""
        ]
    );
}

#[test]
fn bench_prints_the_peers_json() {
    let arguments = "bench --backend cpu --seqs 32 --hdims 64 --causal 1 --tokens 32 --width 64 --rep 1 --rounds 1 --json";
    let (stdout, _) = expect(0, &arguments.split(' ').collect::<Vec<_>>());
    let rows: Vec<serde_json::Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 2, "{stdout}");
    for (row, pass) in rows.iter().zip(["fwd", "bwd"]) {
        assert_eq!(
            (row["peer"].as_str(), row["p"].as_str()),
            (Some("ferroflash-tiled"), Some(pass))
        );
        for (name, value) in [("D", 64), ("causal", 1), ("S", 32), ("B", 1), ("H", 1)] {
            assert_eq!(row[name], value, "{row}");
        }
        assert!(
            0.0 < row["ms"].as_f64().unwrap() && row["tflops"].is_number(),
            "{row}"
        );
    }
}
