//! Probes of conversions.

use super::{each_pair, get, put_all, put_f32};
use crate::ptx::convert;

pub(super) unsafe fn cvt_bf16x2(input: u64, output: u64) {
    each_pair(input, output, convert::cvt_bf16x2)
}

pub(super) unsafe fn cvt_f16x2(input: u64, output: u64) {
    each_pair(input, output, convert::cvt_f16x2)
}

pub(super) unsafe fn unpack(input: u64, output: u64) {
    let mut k = 0;
    while k < 4 {
        let x = get(input, k);
        put_all(output, 5 * k, &convert::unpack_bf16x2(x).map(f32::to_bits));
        put_all(
            output,
            5 * k + 2,
            &convert::unpack_f16x2(x).map(f32::to_bits),
        );
        put_f32(output, 5 * k + 4, convert::cvt_f32_f16(x));
        k += 1;
    }
}

pub(super) unsafe fn prmt(input: u64, output: u64) {
    let x = get(input, 0);
    let orders = [
        convert::prmt::<0x3120>(x),
        convert::prmt::<0x0123>(x),
        convert::prmt::<0x2222>(x),
    ];
    put_all(output, 0, &orders);
}

pub(super) unsafe fn prmt_signs(input: u64, output: u64) {
    let (x, y) = (get(input, 0), get(input, 1));
    let signs = [
        convert::prmt_signs::<0xcc88>(x, y),
        convert::prmt_signs::<0xffbb>(x, y),
        convert::prmt_signs::<0x9e8d>(x, y),
    ];
    put_all(output, 0, &signs);
}
