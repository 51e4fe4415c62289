//! Which devices are of the table, and what is refused.

use super::*;

fn device(name: &str, n_sms: u32, gigabytes: u64) -> DeviceInfo {
    DeviceInfo {
        name: name.into(),
        n_sms,
        memory_bytes: gigabytes << 30,
        ..DeviceInfo::a100()
    }
}

#[test]
fn devices_are_found_by_name_sms_and_memory() {
    let bandwidth = |info: &DeviceInfo| Gpu::of_device(info).map(|gpu| gpu.bandwidth);
    for (name, n_sms, gigabytes, gb_per_s) in [
        ("Tesla T4", 40, 15, 320.0),
        ("Tesla V100-SXM2-16GB", 80, 16, 900.0),
        ("NVIDIA A100-SXM4-80GB", 108, 79, 2039.0),
        ("NVIDIA A100-SXM4-40GB", 108, 40, 1555.0),
        ("NVIDIA A100-PCIE-40GB", 108, 40, 1555.0),
        ("NVIDIA A100 80GB PCIe", 108, 79, 1935.0),
        ("NVIDIA L4", 58, 23, 300.0),
        ("NVIDIA GeForce RTX 4090", 128, 24, 1008.0),
        ("NVIDIA H100 80GB HBM3", 132, 80, 3350.0),
        ("NVIDIA H200", 132, 140, 4800.0),
        ("NVIDIA B200", 148, 178, 7700.0),
    ] {
        let given = bandwidth(&device(name, n_sms, gigabytes));
        assert_eq!(given, Ok(gb_per_s * 1e9), "{name}");
    }
}

/// FLOP of an SM in a clock, of fp16 with sums in f32: tensor cores of an SM × multiply-adds of each × 2, as the whitepapers of the architectures have them
/// (of B200 FlashAttention-4, 2026). Products of tf32 are half as fast.
#[test]
fn peaks_follow_from_sms_and_clocks() {
    let per_clock = |row: &Row| match row.compute_capability {
        (7, 0) | (7, 5) => 8 * 64 * 2,
        (8, 0) => 4 * 256 * 2,
        (8, 9) if row.name.starts_with("RTX") => 4 * 64 * 2,
        (8, 9) => 4 * 128 * 2,
        (9, 0) => 4 * 512 * 2,
        (10, 0) => 8192,
        other => panic!("{}: {other:?}", row.name),
    };
    for row in &TABLE {
        let derived = f64::from(row.n_sms * per_clock(row)) * row.boost / 1e3;
        let near = |published: f64, derived: f64| (derived / published - 1.0).abs() < 0.02;
        assert!(near(row.f16, derived), "{}: {derived} of fp16", row.name);
        if let Some(tf32) = row.tf32 {
            assert!(near(tf32, derived / 2.0), "{}: {derived} / 2", row.name);
        }
    }
}

#[test]
fn the_record_is_of_an_h200() {
    assert_eq!(Gpu::h200(), Gpu::named("H200").unwrap());
}

/// Other cards of the same name have other clocks, SMs and memory.
#[test]
fn devices_that_only_sound_alike_are_refused() {
    for (name, n_sms, gigabytes) in [
        ("NVIDIA H100 PCIe", 114, 80),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 16),
        ("NVIDIA L40", 142, 48),
        ("Tesla V100-SXM2-32GB", 80, 32),
    ] {
        let error = Gpu::of_device(&device(name, n_sms, gigabytes)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn what_is_bad_is_named() {
    let text = |gpu: Result<Gpu, EstimateError>| gpu.unwrap_err().to_string();
    let bad = text(Gpu::custom(f64::NAN, 1.0, 1, 1));
    assert_eq!(bad, "peak is NaN; allowed: finite numbers greater than 0");
    assert!(text(Gpu::custom(1.0, 1.0, 0, 1)).contains("sram is 0"));
    let bad = text(Gpu::named("A1000"));
    assert!(
        bad.contains("\"A1000\"") && bad.contains("RTX 4090"),
        "{bad}"
    );
    let bad = Gpu::named("v100").unwrap().peak(Dtype::Bf16).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "dtype is bf16; the tensor cores of V100 multiply f16"
    );
}
