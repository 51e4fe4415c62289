//! Block masks: read from files.

use super::*;

/// The real input, of 384 queries and keys, with a map of these dimensions.
fn with_map(name: &str, shape: &[usize], bytes: &[u8], metadata: &[(&str, &str)]) -> String {
    changed(name, |tensors, stored| {
        tensors.push(Stored {
            name: "block_mask".into(),
            dtype: safetensors::Dtype::U8,
            shape: shape.to_vec(),
            bytes: bytes.to_vec(),
        });
        let metadata = metadata.iter();
        stored.extend(metadata.map(|&(name, value)| (name.to_owned(), value.to_owned())));
    })
}

#[test]
fn a_block_mask_is_read() {
    let partial = with_map("partial.safetensors", &[1, 1, 3, 3], &[1; 9], &[]);
    let (stdout, _) = expect(0, &["run", &partial, "--backend", "cpu"]);
    assert!(stdout.contains("causal, blocks 128×128,"), "{stdout}");
    assert_eq!(stdout.matches("agrees").count(), 5, "{stdout}");
    let sizes = [("block_q", "256"), ("block_k", "384")];
    let hidden = with_map("hidden.safetensors", &[1, 2, 2, 1], &[1, 0, 1, 1], &sizes);
    let (stdout, _) = expect(1, &["run", &hidden, "--backend", "cpu"]);
    assert!(stdout.contains("blocks 256×384 per head"), "{stdout}");
    assert_eq!(stdout.matches("DIFFERS").count(), 5, "{stdout}");
}

#[test]
fn a_block_mask_that_makes_no_sense_is_bad_input() {
    for (input, message) in [
        (
            with_map("short_map.safetensors", &[1, 1, 3, 2], &[1; 6], &[]),
            "tensor block_mask has shape [1, 1, 3, 2]; needed: [1, 1, 3, 3]",
        ),
        (
            with_map("heads_map.safetensors", &[1, 3, 3, 3], &[1; 27], &[]),
            "tensor block_mask has shape [1, 3, 3, 3]; needed: [1, 2, 3, 3]",
        ),
        (
            with_map("flat_map.safetensors", &[3, 3], &[1; 9], &[]),
            "tensor block_mask has shape [3, 3]; needed: [batch or 1, heads_q or 1",
        ),
        (
            with_map(
                "odd_map.safetensors",
                &[1, 1, 4, 3],
                &[1; 12],
                &[("block_q", "100")],
            ),
            "block_q of the block mask is 100; it must be a positive multiple of 128",
        ),
        (
            with_map(
                "word_map.safetensors",
                &[1, 1, 3, 3],
                &[1; 9],
                &[("block_k", "many")],
            ),
            "metadata block_k is \"many\"; it must be a number of rows",
        ),
        (
            changed("float_map.safetensors", |tensors, _| {
                tensors.push(Stored {
                    name: "block_mask".into(),
                    dtype: safetensors::Dtype::F32,
                    shape: vec![1, 1, 1, 1],
                    bytes: vec![0; 4],
                });
            }),
            "tensor block_mask is F32; needed: U8",
        ),
    ] {
        let (_, stderr) = expect(2, &["run", &input, "--backend", "cpu"]);
        assert!(stderr.contains(message), "{input}: {stderr}");
    }
}
