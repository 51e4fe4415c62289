//! Probes of tf32.

use super::{each, get, get_f32, put_all};
use crate::ptx::{convert, mma};

pub(super) unsafe fn cvt_tf32(input: u64, output: u64) {
    each(input, output, |x| {
        f32::from_bits(convert::cvt_tf32(x) & convert::TF32_BITS)
    })
}

/// A product whose accumulator is words 0 to 3, `a` words 4 to 7, `b` words 8 and 9, both rounded first.
pub(super) unsafe fn mma_tf32(input: u64, output: u64) {
    let operand = |k| convert::cvt_tf32(get_f32(input, k));
    let mut acc = [0, 1, 2, 3].map(|k| f32::from_bits(get(input, k)));
    let (a, b) = ([4, 5, 6, 7].map(operand), [8, 9].map(operand));
    mma::mma_m16n8k8_tf32(&mut acc, a, b);
    put_all(output, 0, &acc.map(f32::to_bits));
}

pub(super) unsafe fn mma_tf32_sums(input: u64, output: u64) {
    mma_tf32(input, output)
}
