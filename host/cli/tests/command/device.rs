//! What a problem runs on: memory that there is not, a folder for compiled kernels.

use super::*;

#[test]
fn tensors_that_no_memory_holds_are_bad_options() {
    for sizes in ["--seqlen-k 100000000000 --seqs 1", "--seqs 100000000000"] {
        let line = format!(
            "bench --backend cpu {sizes} --hdims 64 --causal 0 --passes fwd --rep 1 --rounds 1"
        );
        let (_, stderr) = expect(2, &line.split(' ').collect::<Vec<_>>());
        let message = "no memory for a tensor of 204800000000000 elements";
        assert!(stderr.contains(message), "{stderr}");
    }
}

/// Without a GPU nothing is compiled, and the folder is left alone.
#[test]
fn every_subcommand_takes_a_folder_for_kernels() {
    let folder = scratch("kernels_of_no_gpu");
    let cache = [
        "--backend",
        "cpu",
        "--kernel-cache",
        folder.to_str().unwrap(),
    ];
    let input = real("causal_d64.safetensors");
    let bench = "bench --seqs 4 --hdims 64 --causal 1 --tokens 4 --width 64 --passes fwd --rep 1 --rounds 1";
    let run = vec!["run", &input];
    for line in [
        run,
        vec!["info", "--seqlen", "8"],
        bench.split(' ').collect(),
    ] {
        expect(0, &[&line[..], &cache].concat());
        assert!(!folder.exists());
    }
}
