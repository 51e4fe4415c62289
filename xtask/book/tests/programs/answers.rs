//! Numbers in exercises and their answers, and those that follow from a few sizes.

use ferroflash::{Dtype, bf16};
use ferroflash_book::programs::fp8::E4M3;
use ferroflash_lab::estimate::Gpu;

use super::assert_says;

fn percent(part: usize, of: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / of as f64)
}

/// Cycles of an SM: 4096 operations of a product in each, 16 exponentials.
#[test]
fn cycles_of_a_block() {
    let (rows, keys) = (64, 128);
    let product = |d: usize| 2 * rows * keys * d / 4096;
    let exponentials = rows * keys / 16;
    assert_eq!((product(128), product(128)), (exponentials, exponentials));
    assert_eq!(2 * product(64), exponentials);
    let says = format!(
        "takes {} cycles for S, {} for O, and {exponentials} for the exponentials",
        product(128),
        product(128)
    );
    assert_says("flash3.md", &[says]);
}

#[test]
fn registers_of_a_consumer() {
    let of = |columns: usize, bytes: usize| 64 * columns * bytes / 4 / 128;
    let (s, p, o) = (of(128, 4), of(128, 2), of(256, 4));
    let says = format!("= {s} for S, {p} for P, and {o} for O: {}.", s + p + o);
    assert_says("tiles.md", &[says, format!("leaves {}", 255 - s - p - o)]);
    assert_says(
        "flash3.md",
        &[format!("{p} registers for each of 128 threads")],
    );
}

#[test]
fn blocks_under_a_causal_mask() {
    let n = 16384 / 128;
    let visited = n * (n + 1) / 2;
    let said = [
        format!("{visited} are visited: {}", percent(visited, n * n)),
        format!("{n} of these are edges: {}", percent(n, visited)),
    ];
    assert_says("masks.md", &said);
}

#[test]
fn bytes_of_parts() {
    let bytes = 32 * 16 * (128 + 1) * 4;
    assert_says(
        "decode.md",
        &[format!("{:.2} MB, written", bytes as f64 / 1e6)],
    );
    assert!(2.0 * f64::from(bytes) < 0.004 * 134e6);
}

/// A pass of flash1 over the queries, and the scores of `standard`, for each query.
#[test]
fn keys_at_which_flash1_moves_more() {
    let d = 128;
    let pass = 2 * d + 8 * d + 16;
    let says = format!("{pass}·N for d = 128");
    assert_says("flash1.md", &[says, format!("less than {}", pass / 16)]);
}

#[test]
fn ridges() {
    let ridge = |name: &str| {
        let gpu = Gpu::named(name).expect("it is in the table");
        gpu.peak(Dtype::Bf16).expect("it has bf16") / gpu.bandwidth
    };
    let h200 = ridge("H200");
    let said = [
        format!("At {:.0} FLOP per byte", ridge("A100")),
        format!("more than {h200:.0} from N = {:.0} on", 2.0 * h200),
    ];
    assert_says("roofline.md", &said);
    let gpu = Gpu::named("H200").expect("it is in the table");
    let said = [
        format!("(SMs): {} of them", gpu.n_sms),
        format!("| {} MB |", gpu.l2_bytes.unwrap_or(0) >> 20),
        format!("| {} GB |", gpu.memory_bytes.unwrap_or(0) >> 30),
        format!("{:.1} TB/s in all", gpu.bandwidth / 1e12),
        format!(
            "{:.0} · 10¹² operations",
            gpu.bf16_flops.unwrap_or(0.0) / 1e12
        ),
        format!("That is {h200:.0} for each byte"),
    ];
    assert_says("gpu.md", &said);
}

#[test]
fn rounded_numbers() {
    let round = |x| E4M3.round(x);
    let said = format!(
        "1.06 becomes {:.1} and 1.07 becomes {}",
        round(1.06),
        round(1.07)
    );
    let small = format!(
        "0.0009 becomes {} and 0.001 becomes {:.5}",
        round(0.0009),
        round(0.001)
    );
    let large = format!("500 becomes {}", round(500.0));
    assert_says("fp8.md", &[said, small, large]);
}

#[test]
fn waves_of_tiles() {
    let (tiles, sms) = (16 * 8192 / 128, 132);
    let (waves, rest) = (tiles / sms, tiles % sms);
    let average = tiles as f64 / sms as f64;
    let lost = 100.0 * (1.0 - average / (waves + 1) as f64);
    let says = format!(
        "{waves} full waves of them, and the eighth has {rest}. So the time is {} tiles for an average of {average:.2}: {lost:.1} % is lost",
        waves + 1
    );
    assert_says("schedules.md", &[format!("There are {tiles} tiles"), says]);
}

/// Sums of floating-point numbers, and the rounding of a score to bf16.
#[test]
fn rounding() {
    let (a, b, c) = (1e8f32, -1e8f32, 1f32);
    assert_eq!(((a + b) + c, a + (b + c)), (1.0, 0.0));
    assert_says(
        "determinism.md",
        &["the first sum is 1, the second one is 0".to_owned()],
    );
    // The step of bf16 between 16 and 32.
    let step = 2f32.powi(4 - 7);
    assert_eq!(bf16::from_f32(30.0 + step).to_f32(), 30.0 + step);
    assert_eq!(bf16::from_f32(30.0 + step / 4.0).to_f32(), 30.0);
    let change = 100.0 * ((step / 2.0).exp() - 1.0);
    let says = format!(
        "by up to 1/{}, which changes its weight by {change:.0} %",
        2.0 / step
    );
    assert_says("number_formats.md", &[says]);
}
