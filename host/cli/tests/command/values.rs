//! Files whose values have columns of another number than the keys.

use super::*;

/// The first columns of every row.
fn cut(tensor: &mut Stored, columns: usize) {
    let of_row = tensor.shape[3];
    let element = tensor.bytes.len() / tensor.shape.iter().product::<usize>();
    let rows = tensor.bytes.chunks_exact(of_row * element);
    let cut = rows.flat_map(|row| row[..columns * element].to_vec());
    tensor.bytes = cut.collect();
    tensor.shape[3] = columns;
}

#[test]
fn columns_of_o_are_those_of_v() {
    let output = scratch("cut_values_out.safetensors");
    let output = output.to_str().unwrap();
    let input = changed("cut_values.safetensors", |tensors, _| {
        for name in ["v", "o", "d_o", "d_v"] {
            cut(stored(tensors, name), 24);
        }
    });
    let arguments = ["run", &input, "--backend", "cpu", "--output", output];
    let forward = [&arguments[..], &["--pass", "forward"]].concat();
    let (stdout, _) = expect(0, &forward);
    assert_eq!(stdout.matches("agrees").count(), 2, "{stdout}");
    assert!(stdout.contains(", head_dim_v 24, causal"), "{stdout}");
    let shape = |name: &str| {
        let bytes = std::fs::read(output).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        file.tensor(name).unwrap().shape()[3]
    };
    assert_eq!(shape("o"), 24);

    // Scores have other gradients then; those of the values are columns of what they were.
    let (stdout, _) = expect(1, &arguments);
    let of = |name: &str| {
        stdout
            .lines()
            .find(|line| line.trim_start().starts_with(name))
    };
    assert!(of("d_v").unwrap().contains("agrees"), "{stdout}");
    assert_eq!(["d_q", "d_k", "d_v"].map(shape), [64, 64, 24]);
}

#[test]
fn a_stored_result_of_other_columns_is_refused() {
    let input = changed("uncut_o.safetensors", |tensors, _| {
        cut(stored(tensors, "v"), 24);
    });
    let (_, stderr) = expect(2, &["run", &input, "--backend", "cpu"]);
    assert!(stderr.contains("stored "), "{stderr}");
}
