//! Constants of the code that chapters quote.

use std::fs;

use ferroflash::plan::{Algorithm, Backend, DeviceInfo, plan};
use ferroflash::tensor::Location;
use ferroflash::validate::{Pass, without_tensors};
use ferroflash::{Dtype, Problem};

use super::assert_says;

/// The model's constants are private: the chapter's are compared with the text of the code.
#[test]
fn constants_of_the_estimate() {
    let path = ferroflash_book::root().join("host/lab/src/estimate/efficiency.rs");
    let code = fs::read_to_string(path).expect("the code is there");
    for (code_has, chapter_says) in [
        ("MEMORY: f64 = 0.91;", "| share of the bandwidth | 0.91 |"),
        (
            "EXPONENTIALS: f64 = 0.64;",
            "| share of the special-function units | 0.64 |",
        ),
        ("LAUNCH: f64 = 3.5e-6;", "| a launch | 3.5 µs |"),
        ("CALL: f64 = 3.5e-6;", "and the call 3.5 µs more"),
        (
            "    (64, 0.58, 0.53),\n    (128, 0.72, 0.62),\n    (256, 0.75, 0.41),\n    (u32::MAX, 0.41, 0.41),\n",
            "| 0.58, 0.72, 0.75, 0.41 forward; 0.53, 0.62, 0.41 backward, to 256 |",
        ),
        (
            "    (64, 0.40, 0.27),\n    (128, 0.43, 0.34),\n",
            "| 0.40, 0.43 forward; 0.27, 0.34 backward |",
        ),
    ] {
        assert!(code.contains(code_has), "{code_has}");
        assert_says("estimate.md", &[chapter_says.to_owned()]);
    }
}

/// Kilobytes of a block of flash2's main backward kernel, on a device that gives a block so many.
fn shared_kilobytes(head_dim: usize, device: &DeviceInfo) -> u32 {
    let problem = Problem::builder(Dtype::Bf16).seqlen(1024).heads(8);
    let problem = problem.head_dim(head_dim).build().expect("a good problem");
    let checked = without_tensors(&problem, Pass::Backward, Location::Cuda(0));
    let checked = checked.expect("sizes are good");
    let plan = plan(&checked, device, Backend::Cuda, Some(Algorithm::Flash2));
    let plan = plan.expect("it is planned");
    let bytes = plan.launches.iter();
    let bytes = bytes.map(|launch| launch.variant.tile_config.shared_bytes);
    (bytes.max().unwrap_or(0) + 512) / 1024
}

#[test]
fn shared_memory_of_flash2_backward() {
    let (large, small) = (
        DeviceInfo::a100(),
        DeviceInfo {
            compute_capability: (8, 9),
            shared_bytes_per_block: 99 << 10,
            ..DeviceInfo::a100()
        },
    );
    let of = |head_dim, device| shared_kilobytes(head_dim, device);
    assert_says(
        "matrix.md",
        &[
            format!(
                "takes {} KB of shared memory above head_dim 64, and {} KB above 128",
                of(128, &large),
                of(256, &large)
            ),
            format!(
                "which take {} KB and {} KB",
                of(128, &small),
                of(256, &small)
            ),
        ],
    );
}
