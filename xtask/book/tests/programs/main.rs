//! Programs of the book: each gives what the definition gives, what the library gives on the CPU, and what the kernels give on the emulator. Where a chapter
//! shows numbers of a program, they are computed again here.

mod answers;
mod backward;
mod decode;
mod emulated;
mod forward;
mod fp8;
mod masks;
mod overlap;
mod pictures;

use std::fs;

use ferroflash_book::programs::{Attended, Head, Row};

/// A chapter must have each of these; what it lacks is printed.
fn assert_says(chapter: &str, words: &[String]) {
    let path = ferroflash_book::root().join("docs/src").join(chapter);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let lacking: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .filter(|words| !text.contains(words))
        .collect();
    assert!(
        lacking.is_empty(),
        "{chapter} lacks\n{}",
        lacking.join("\n")
    );
}

/// Numbers between −1 and 1 that 16 bits hold.
fn rows<const D: usize>(n: usize, seed: u64) -> Vec<Row<D>> {
    let mut state = seed;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 57) as f64 / 64.0 - 1.0
    };
    (0..n).map(|_| [(); D].map(|()| number())).collect()
}

/// A head with numbers of its own.
struct Random<const D: usize> {
    q: Vec<Row<D>>,
    k: Vec<Row<D>>,
    v: Vec<Row<D>>,
}

impl<const D: usize> Random<D> {
    fn new(seqlen_q: usize, seqlen_k: usize) -> Self {
        Random {
            q: rows(seqlen_q, 1),
            k: rows(seqlen_k, 2),
            v: rows(seqlen_k, 3),
        }
    }

    fn head(&self) -> Head<'_, D> {
        Head {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            scale: 1.0 / (D as f64).sqrt(),
        }
    }
}

/// The elements of rows, in the library's order: `[1, seqlen, 1, D]`.
fn elements<T, const D: usize>(rows: &[Row<D>], from: impl Fn(f32) -> T) -> Vec<T> {
    rows.as_flattened()
        .iter()
        .map(|x| from(*x as f32))
        .collect()
}

fn assert_near(name: &str, given: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(given.len(), expected.len(), "{name}");
    for (idx, (given, expected)) in given.iter().zip(expected).enumerate() {
        let error = (given - expected).abs();
        assert!(
            error <= tolerance,
            "{name}, element {idx}: {given} and {expected}"
        );
    }
}

/// O and L, as the library gives them.
fn of_f32<const D: usize>(o: &[f32], lse: &[f32]) -> Attended<D> {
    let o: Vec<f64> = o.iter().copied().map(f64::from).collect();
    let (rows, _) = o.as_chunks::<D>();
    (rows.to_vec(), lse.iter().copied().map(f64::from).collect())
}
