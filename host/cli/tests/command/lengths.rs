//! Sequences of different lengths: read from files, measured on random inputs.

use super::*;

/// A tensor of integers.
fn integers(name: &str, numbers: &[i64], dtype: safetensors::Dtype) -> Stored {
    let bytes = numbers.iter().flat_map(|&n| match dtype {
        safetensors::Dtype::I64 => n.to_le_bytes().to_vec(),
        _ => (n as i32).to_le_bytes().to_vec(),
    });
    Stored {
        name: name.into(),
        dtype,
        shape: vec![numbers.len()],
        bytes: bytes.collect(),
    }
}

/// The real input as packed sequences: its tensors lose the dimension of one batch entry.
fn pack(tensors: &mut Vec<Stored>, cu_seqlens: &[i64]) {
    for tensor in tensors.iter_mut() {
        tensor.shape.remove(0);
    }
    let (i32, i64) = (safetensors::Dtype::I32, safetensors::Dtype::I64);
    tensors.push(integers("cu_seqlens_q", cu_seqlens, i32));
    tensors.push(integers("cu_seqlens_k", cu_seqlens, i64));
}

#[test]
fn packed_sequences_are_read_and_written() {
    let one = changed("packed.safetensors", |tensors, _| pack(tensors, &[0, 384]));
    let output = scratch("packed_written.safetensors");
    let path = output.to_str().unwrap();
    let (stdout, _) = expect(0, &["run", &one, "--backend", "cpu", "--output", path]);
    assert_eq!(stdout.matches("agrees").count(), 5, "{stdout}");
    let bytes = std::fs::read(&output).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("o").unwrap().shape(), [384, 2, 64]);
    assert_eq!(file.tensor("d_k").unwrap().shape(), [384, 2, 64]);
    assert_eq!(file.tensor("lse").unwrap().shape(), [2, 384]);
    // Cut in two, the second sequence no longer sees the first.
    let two = changed("two.safetensors", |tensors, _| {
        pack(tensors, &[0, 200, 384])
    });
    let (stdout, _) = expect(1, &["run", &two, "--backend", "cpu"]);
    assert_eq!(stdout.matches("DIFFERS").count(), 5, "{stdout}");
    // Of a padded side too, some rows may be used: here all.
    let used = changed("used.safetensors", |tensors, _| {
        tensors.push(integers("seqused_k", &[384], safetensors::Dtype::I64));
    });
    let (stdout, _) = expect(0, &["run", &used, "--backend", "cpu"]);
    assert_eq!(stdout.matches("agrees").count(), 5, "{stdout}");
}

#[test]
fn lengths_that_make_no_sense_are_bad_input() {
    let cu_seqlens = |name, numbers: &[i64]| changed(name, |tensors, _| pack(tensors, numbers));
    let i64 = safetensors::Dtype::I64;
    for (input, message) in [
        (
            cu_seqlens("falling.safetensors", &[0, 300, 200]),
            "cu_seqlens_q, sequence 1: 200; allowed: 300 to 384",
        ),
        (
            cu_seqlens("beyond.safetensors", &[0, 100, 385]),
            "cu_seqlens_q, sequence 1: 385; allowed: 100 to 384",
        ),
        (
            cu_seqlens("huge_lengths.safetensors", &[0, 1 << 40]),
            "tensor cu_seqlens_k has a number that 32 bits do not hold",
        ),
        (
            changed("rank_packed.safetensors", |tensors, _| {
                tensors.push(integers("cu_seqlens_q", &[0, 384], i64));
            }),
            "needed: [total, heads, head_dim], beside its cu_seqlens",
        ),
        (
            changed("too_many_used.safetensors", |tensors, _| {
                tensors.push(integers("seqused_q", &[385], i64));
            }),
            "seqused_q, sequence 0: 385; allowed: 0 to 384",
        ),
        (
            changed("float_lengths.safetensors", |tensors, _| {
                let mut lengths = integers("seqused_q", &[1], safetensors::Dtype::I32);
                lengths.dtype = safetensors::Dtype::F32;
                tensors.push(lengths);
            }),
            "tensor seqused_q is F32; allowed: I32, I64",
        ),
        (
            changed("square_lengths.safetensors", |tensors, _| {
                let mut lengths = integers("seqused_q", &[1], i64);
                lengths.shape = vec![1, 1];
                tensors.push(lengths);
            }),
            "tensor seqused_q has shape [1, 1]; needed: a vector",
        ),
    ] {
        let (_, stderr) = expect(2, &["run", &input, "--backend", "cpu"]);
        assert!(stderr.contains(message), "{input}: {stderr}");
    }
}

#[test]
fn packed_sequences_are_measured() {
    let arguments = [
        "bench",
        "--backend",
        "cpu",
        "--lengths",
        "3,1,12",
        "--hdims",
        "64",
        "--width",
        "64",
        "--rep",
        "1",
        "--warm-up",
        "0",
        "--rounds",
        "1",
        "--json",
        "--causal",
        "0",
    ];
    let (stdout, _) = expect(0, &arguments);
    assert_eq!(
        stdout.matches("\"lengths\":[3,1,12]").count(),
        2,
        "{stdout}"
    );
    assert!(!stdout.contains("\"err\""), "{stdout}");
}
