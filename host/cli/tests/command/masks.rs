//! Masks by options and by metadata.

use super::*;

#[test]
fn a_prefix_is_an_option_and_is_written() {
    let output = scratch("prefix_of_40.safetensors");
    let output = output.to_str().unwrap();
    let input = real("causal_d64.safetensors");
    let of_cpu = ["--backend", "cpu"];
    let arguments = ["run", &input, "--prefix", "40", "--output", output];
    let (stdout, _) = expect(0, &[&arguments[..], &of_cpu].concat());
    assert!(stdout.contains("prefix-lm 40"), "{stdout}");
    assert!(
        stdout.contains("the options ask for another problem"),
        "{stdout}"
    );
    let bytes = std::fs::read(output).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["prefix"], "40");
    expect(2, &["run", &input, "--prefix", "40", "--window-left", "9"]);
    expect(2, &["run", &input, "--prefix", "40", "--causal=false"]);
}

#[test]
fn metadata_that_contradict_themselves_are_named() {
    let cases = [
        (
            changed("prefix.safetensors", |_, metadata| {
                metadata.insert("prefix".into(), "some".into());
            }),
            "prefix is \"some\"; it must be a number of keys",
        ),
        (
            changed("windowed_prefix.safetensors", |_, metadata| {
                metadata.insert("prefix".into(), "9".into());
                metadata.insert("window_left".into(), "20".into());
            }),
            "prefix 9 is for a causal mask without a window",
        ),
    ];
    for (input, message) in cases {
        let (_, stderr) = expect(2, &["run", &input, "--backend", "cpu"]);
        assert!(stderr.contains(message), "{stderr}");
    }
}
