//! Numbers of 8 bits, and what they do to attention.

use ferroflash_book::programs::fp8::{E4M3, E5M2, Format, rotate, with_rounded_weights};
use ferroflash_book::programs::standard::standard;
use ferroflash_book::programs::{Head, Row};
use float8::{F8E4M3, F8E5M2};

use super::assert_says;

/// Every number of both formats stays what it is, and what lies between two of them goes to the nearer one.
#[test]
fn formats_are_those_of_the_hardware() {
    let all = |of: fn(u8) -> f32, format: Format| {
        let mut numbers: Vec<f64> = (0..=255).map(|bits| f64::from(of(bits))).collect();
        numbers.retain(|x| x.is_finite() && *x >= 0.0);
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        for pair in numbers.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            assert_eq!((format.round(a), format.round(-b)), (a, -b));
            let quarter = (b - a) / 4.0;
            assert_eq!(format.round(a + quarter), a, "{a} {b}");
            assert_eq!(format.round(b - quarter), b, "{a} {b}");
        }
        (numbers[1], *numbers.last().expect("there are some"))
    };
    let e4m3 = all(|bits| F8E4M3::from_bits(bits).to_f32(), E4M3);
    let e5m2 = all(|bits| F8E5M2::from_bits(bits).to_f32(), E5M2);
    let row = |name: &str, Format(mantissa, least, _): Format, (tiny, most): (f64, f64)| {
        let step = 2f64.powi(-mantissa - 1) * 100.0;
        format!("| {name} | {mantissa} | {most} | 2^{least} | {tiny:.1e} | {step:.2} % |")
    };
    let said = [row("e4m3", E4M3, e4m3), row("e5m2", E5M2, e5m2)];
    assert_says("fp8.md", &said);
}

/// Normally distributed numbers, near enough: sums of twelve uniform ones.
fn normal<const D: usize>(n: usize, seed: u64) -> Vec<Row<D>> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut number = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
    (0..n).map(|_| [(); D].map(|()| number())).collect()
}

/// The root mean square of the difference, relative to that of what is expected.
fn error<const D: usize>(given: &[Row<D>], expected: &[Row<D>]) -> f64 {
    let (given, expected) = (given.as_flattened(), expected.as_flattened());
    let squares = given.iter().zip(expected).map(|(a, b)| (a - b).powi(2));
    let all = expected.iter().map(|x| x * x);
    (squares.sum::<f64>() / all.sum::<f64>()).sqrt()
}

const D: usize = 64;

fn head<'a>([q, k, v]: [&'a [Row<D>]; 3]) -> Head<'a, D> {
    let scale = 1.0 / (D as f64).sqrt();
    Head { q, k, v, scale }
}

#[test]
fn errors_are_the_chapters() {
    let [q, k, v] = [1, 2, 3].map(|seed| normal::<D>(128, seed));
    let exact = standard(&head([&q, &k, &v])).0;
    let of = |x: [&[Row<D>]; 3]| error(&standard(&head(x)).0, &exact);
    let round = |format: Format, x: &[Row<D>]| format.round_tensor(x);
    let weights = |format, unit| {
        error(
            &with_rounded_weights(&head([&q, &k, &v]), format, unit).0,
            &exact,
        )
    };
    let line = |name: &str, error: f64| format!("| {name} | {error:.4} |");
    let tiny =
        |x: &[Row<D>]| -> Vec<Row<D>> { x.iter().map(|row| row.map(|x| x * 1e-4)).collect() };
    let tiny_v = tiny(&v);
    let of_tiny = |rounded: &[Row<D>]| {
        let exact = standard(&head([&q, &k, &tiny_v])).0;
        error(&standard(&head([&q, &k, rounded])).0, &exact)
    };
    let unscaled: Vec<Row<D>> = tiny_v
        .iter()
        .map(|row| row.map(|x| E4M3.round(x)))
        .collect();
    let lines = [
        line("Q in e4m3", of([&round(E4M3, &q), &k, &v])),
        line("K in e4m3", of([&q, &round(E4M3, &k), &v])),
        line("V in e4m3", of([&q, &k, &round(E4M3, &v)])),
        line(
            "Q, K and V in e4m3",
            of([&round(E4M3, &q), &round(E4M3, &k), &round(E4M3, &v)]),
        ),
        line(
            "Q, K and V in e5m2",
            of([&round(E5M2, &q), &round(E5M2, &k), &round(E5M2, &v)]),
        ),
        line("P in e4m3, as it is", weights(E4M3, 1.0)),
        line("P in e4m3, times 256", weights(E4M3, 256.0)),
        line("P in e5m2, times 256", weights(E5M2, 256.0)),
        line("V of 1e-4 in e4m3, without a scale", of_tiny(&unscaled)),
        line(
            "V of 1e-4 in e4m3, with a scale",
            of_tiny(&round(E4M3, &tiny_v)),
        ),
    ];
    assert_says("fp8.md", &lines);
}

/// One key with a large weight, and thousands with small ones, which add up to more.
#[test]
fn small_weights_are_lost_without_a_unit() {
    let [mut k, v] = [4, 5].map(|seed| normal::<D>(4096, seed));
    let q = &normal::<D>(1, 1);
    k[0] = q[0];
    let sink = head([q, &k, &v]);
    let exact = standard(&sink);
    let line = |name: &str, unit| {
        let given = with_rounded_weights(&sink, E4M3, unit).0;
        format!("| {name} | {:.4} |", error(&given, &exact.0))
    };
    let lines = [line("P as it is", 1.0), line("P times 256", 256.0)];
    let weight = (sink.scores(0, 0..1)[0] - exact.1[0]).exp();
    let says = format!(
        "weighs {weight:.2}, the other 4095 together {:.2}",
        1.0 - weight
    );
    assert_says("fp8.md", &lines);
    assert_says("fp8.md", &[says]);
}

/// One element of Q and K in a thousand is ten times as large.
#[test]
fn a_rotation_spreads_outliers() {
    let mut tensors = [1, 2].map(|seed| normal::<D>(256, seed));
    for (at, x) in tensors.iter_mut().enumerate() {
        let elements = x.as_flattened_mut().iter_mut().skip(500 * at);
        elements.step_by(1001).for_each(|x| *x *= 10.0);
    }
    let [q, k] = &tensors;
    let v = &normal::<D>(256, 3);
    let exact = standard(&head([q, k, v])).0;
    let of = |q: &[Row<D>], k: &[Row<D>]| {
        let [q, k] = [q, k].map(|x| E4M3.round_tensor(x));
        error(&standard(&head([&q, &k, v])).0, &exact)
    };
    let signs = normal::<D>(1, 6)[0].map(f64::signum);
    let [turned_q, turned_k] = [q, k].map(|x| rotate(x, &signs));
    // The rotation alone changes nothing.
    let turned = standard(&head([&turned_q, &turned_k, v])).0;
    assert!(error(&turned, &exact) < 1e-12);
    let lines = [
        format!("| Q and K as they are | {:.4} |", of(q, k)),
        format!("| Q and K rotated | {:.4} |", of(&turned_q, &turned_k)),
    ];
    assert_says("fp8.md", &lines);
}
