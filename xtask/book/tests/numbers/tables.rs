//! Where exponentials overflow, and how small numbers may be, by type.

use super::assert_says;

/// exp(x) of each type overflows above the logarithm of its greatest number.
#[test]
fn exponentials_overflow() {
    let greatest = [
        ("fp16", 65504.0, 2f64.powi(-24)),
        (
            "bf16",
            2f64.powi(127) * (2.0 - 2f64.powi(-7)),
            2f64.powi(-133),
        ),
        ("f32", f64::from(f32::MAX), 2f64.powi(-149)),
        ("e4m3", 448.0, 2f64.powi(-9)),
    ];
    let row = |(name, greatest, least): (&str, f64, f64)| {
        format!(
            "| {name} | {greatest:.3e} | {least:.1e} | {:.2} |",
            greatest.ln()
        )
    };
    assert_says("number_formats.md", &greatest.map(row));
    assert!(88.72f32.exp().is_finite() && 88.73f32.exp().is_infinite());
}

/// A softmax in f32 without the running maximum, of two scores of 100 and 99: ∞ / ∞.
#[test]
fn without_the_maximum_there_is_no_number() {
    let scores = [100f32, 99.0];
    let without: Vec<f32> = scores.iter().map(|s| s.exp()).collect();
    let sum: f32 = without.iter().sum();
    assert!(without.iter().all(|p| (p / sum).is_nan()));
    let with = scores.map(|s| (s - 100.0).exp());
    let sum: f32 = with.iter().sum();
    let weights = with.map(|p| format!("{:.4}", p / sum));
    assert_says(
        "number_formats.md",
        &[format!("NaN, with it {} and {}", weights[0], weights[1])],
    );
}
