//! What types of numbers cost, as the book's chapter has it: errors of o, and of dQ with a scaled loss. `--nocapture` prints the rows.

use conformance::book::assert_says;
use conformance::cases::Case;
use conformance::inputs::Values;
use conformance::oracle::Output;
use conformance::reference::Reference;
use conformance::trial::{self, Results};
use ferroflash::backend::emulated::EmulatorOptions;
use ferroflash::{Algorithm, Device, Dtype, Mask, Order, Precision};

/// The chapter.
const CHAPTER: &str = "number_formats.md";

fn run(case: &Case, values: &Values) -> Results {
    let device = Device::emulated(EmulatorOptions::seeded(case.seed));
    let order = Order::Deterministic;
    trial::run(case, values, &device, Algorithm::Flash2, order).expect("flash2 takes the case")
}

/// The root mean square of the error, relative to that of the reference.
fn relative(ours: &[f64], reference: &[f64]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 = ours.iter().zip(reference).map(|(a, b)| square(a - b)).sum();
    let size: f64 = reference.iter().copied().map(square).sum();
    (error / size).sqrt()
}

/// The largest error.
fn largest(ours: &[f64], reference: &[f64]) -> f64 {
    let errors = ours.iter().zip(reference).map(|(a, b)| (a - b).abs());
    errors.fold(0.0, f64::max)
}

#[test]
fn errors_of_o_by_type() {
    let cases = [
        ("bf16", "bf16", Dtype::Bf16, Precision::Tensor),
        ("fp16", "fp16", Dtype::F16, Precision::Tensor),
        ("f32", "tf32", Dtype::F32, Precision::Tensor),
        ("f32", "three of tf32", Dtype::F32, Precision::Full),
    ];
    let rows = cases.map(|(tensors, products, dtype, precision)| {
        let case = Case {
            precision,
            ..Case::new(dtype, Mask::Full, 64, 150, 300)
        };
        let values = case.values();
        let scale = case.problem().expect("a good case").scale();
        let Output { o, lse } = Reference::new(&case, &values, scale).output;
        let ours = run(&case, &values).output;
        let (of_o, of_lse) = (relative(&ours.o, &o), largest(&ours.lse, &lse));
        format!("| {tensors} | {products} | {of_o:.1e} | {of_lse:.1e} |")
    });
    println!("{}", rows.join("\n"));
    assert_says(CHAPTER, &rows);
}

/// Gradients of a small loss, in fp16: as they are, and with the loss multiplied by a power of two, which the result is divided by.
#[test]
fn a_scaled_loss_keeps_small_gradients() {
    let case = Case::new(Dtype::F16, Mask::Full, 64, 150, 300);
    let mut values = case.values();
    values.d_o.iter_mut().for_each(|x| *x *= 2f64.powi(-16));
    let scale = case.problem().expect("a good case").scale();
    let reference = Reference::new(&case, &values, scale).gradients;
    let rows = [0, 8, 16].map(|log2: i32| {
        let factor = 2f64.powi(log2);
        let mut scaled = values.clone();
        scaled.d_o.iter_mut().for_each(|x| *x *= factor);
        let gradients = run(&case, &scaled).gradients;
        let divided =
            |gradient: Vec<f64>| -> Vec<f64> { gradient.into_iter().map(|x| x / factor).collect() };
        let zeros = gradients.d_q.iter().filter(|x| **x == 0.0).count();
        let percent = (100.0 * zeros as f64 / gradients.d_q.len() as f64).round();
        let d_q = relative(&divided(gradients.d_q), &reference.d_q);
        let d_v = relative(&divided(gradients.d_v), &reference.d_v);
        format!("| {factor} | {d_q:.1e} | {d_v:.1e} | {percent} |")
    });
    println!("{}", rows.join("\n"));
    assert_says(CHAPTER, &rows);
}
