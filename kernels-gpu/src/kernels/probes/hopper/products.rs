//! Probes of `wgmma`.

use crate::kernels::probes::{get, put_all};
use crate::ptx::wgmma::{
    Descriptor, Major, Types, Wgmma, WgmmaElement, wgmma_commit_group, wgmma_fence,
};
use crate::ptx::{barrier, shared, special, tma};
use crate::tile::element::{Bf16, E4m3, F16};

/// Types of 8 bits that no kernel multiplies yet.
struct E5m2;
struct E4m3E5m2;
struct E5m2E4m3;

macro_rules! types {
    ($($types:ident)*) => { $(
        impl WgmmaElement for $types {
            #[inline(always)]
            fn types() -> Types {
                Types::$types
            }
        }
    )* };
}

types!(E5m2 E4m3E5m2 E5m2E4m3);

/// Bytes of a part of a tile: 64 rows of 64 columns.
const PART: u32 = 64 * 128;
/// Steps of 16 along the inner dimension, in 8 bits of 32.
const STEPS: u32 = 4;

/// Where A comes from.
#[derive(Clone, Copy)]
enum Left {
    /// Shared memory, stored as its rows.
    Rows,
    /// Shared memory, stored as its columns.
    Columns,
    Registers,
}

/// Copies `words` words of each thread to shared memory.
#[inline(always)]
unsafe fn fill(to: u32, input: u64, first: u32, words: u32) {
    for k in 0..words {
        let at = to + (k * 128 + special::thread_idx_x()) * 4;
        shared::st_shared_u32(at, get(input, first + k));
    }
}

/// A product of 64 × 8 `F`, begun in accumulators without a value, over an inner dimension of 64, in 8 bits of 128. A is words 0 to 15 of each thread, B the words after those:
/// `[8 F][64]` or parts of `[64][64]`, whatever numbers the swizzle makes of them.
#[inline(always)]
unsafe fn product<E: WgmmaElement, const MAJOR: u32, const F: usize>(
    input: u64,
    output: u64,
    left: Left,
) where
    [[f32; 4]; F]: Wgmma,
{
    let a = special::shared_base();
    let b = a + PART;
    let columns = const { 8 * F as u32 };
    fill(a, input, 0, PART / 512);
    let (along, leading) = if MAJOR == Major::K as u32 {
        fill(b, input, 16, columns * 128 / 512);
        (32, 16)
    } else {
        fill(b, input, 16, columns.div_ceil(64) * PART / 512);
        (16 * 128, PART)
    };
    tma::fence_proxy_async();
    barrier::barrier_sync_all();
    let mut registers = [[0; 4]; STEPS as usize];
    for step in 0..registers.len() {
        for i in 0..4 {
            registers[step][i] = get(input, 4 * step as u32 + i as u32);
        }
    }
    let tile = |address: u32, leading: u32| Descriptor {
        low: address >> 4 | leading >> 4 << 16,
        high: 1024 >> 4 | 1 << 30,
    };
    let mut acc = <[[f32; 4]; F]>::undefined();
    wgmma_fence();
    for step in 0..STEPS {
        let accumulate = (step > 0) as u32;
        let b = tile(b + step * along, leading);
        match left {
            Left::Rows => {
                let a = tile(a + step * 32, 16);
                acc.multiply_ss::<E, { Major::K as u32 }, MAJOR>(a, b, accumulate);
            }
            Left::Columns => {
                let a = tile(a + step * 16 * 128, 16);
                acc.multiply_ss::<E, { Major::Mn as u32 }, MAJOR>(a, b, accumulate);
            }
            Left::Registers => {
                acc.multiply_rs::<E, MAJOR>(registers[step as usize], b, accumulate);
            }
        }
    }
    wgmma_commit_group();
    acc.wait::<0>();
    for n in 0..F {
        put_all(output, 4 * n as u32, &acc[n].map(f32::to_bits));
    }
}

macro_rules! products {
    ($($name:ident: $element:ident, $left:ident, $major:ident, $fragments:literal;)*) => { $(
        pub(in crate::kernels::probes) unsafe fn $name(input: u64, output: u64, _: u64) {
            product::<$element, { Major::$major as u32 }, $fragments>(input, output, Left::$left)
        }
    )* };
}

products! {
    wgmma_n40_ss_k: F16, Rows, K, 5;
    wgmma_n64_ss_k: Bf16, Rows, K, 8;
    wgmma_n64_ss_mn: F16, Rows, Mn, 8;
    wgmma_n64_ts_k: F16, Columns, K, 8;
    wgmma_n64_ts_mn: Bf16, Columns, Mn, 8;
    wgmma_n64_rs_k: F16, Registers, K, 8;
    wgmma_n64_rs_mn: Bf16, Registers, Mn, 8;
    wgmma_n80_ss_k: F16, Rows, K, 10;
    wgmma_n80_ts_k: Bf16, Columns, K, 10;
    wgmma_n80_rs_mn: Bf16, Registers, Mn, 10;
    wgmma_n96_ss_k: Bf16, Rows, K, 12;
    wgmma_n96_rs_mn: F16, Registers, Mn, 12;
    wgmma_n112_ss_k: F16, Rows, K, 14;
    wgmma_n112_rs_mn: Bf16, Registers, Mn, 14;
    wgmma_n128_ss_k: Bf16, Rows, K, 16;
    wgmma_n128_ss_mn: Bf16, Rows, Mn, 16;
    wgmma_n128_ts_mn: F16, Columns, Mn, 16;
    wgmma_n128_rs_k: F16, Registers, K, 16;
    wgmma_n128_rs_mn: F16, Registers, Mn, 16;
    wgmma_n160_ss_k: F16, Rows, K, 20;
    wgmma_n160_rs_mn: Bf16, Registers, Mn, 20;
    wgmma_n192_ss_k: Bf16, Rows, K, 24;
    wgmma_n192_rs_mn: F16, Registers, Mn, 24;
    wgmma_n256_ss_k: F16, Rows, K, 32;
    wgmma_n256_ts_mn: Bf16, Columns, Mn, 32;
    wgmma_n256_rs_mn: Bf16, Registers, Mn, 32;
    wgmma_n64_rs_e4m3: E4m3, Registers, K, 8;
    wgmma_n96_ss_e4m3: E4m3, Rows, K, 12;
    wgmma_n96_rs_e4m3: E4m3, Registers, K, 12;
    wgmma_n128_ss_e4m3: E4m3, Rows, K, 16;
    wgmma_n128_rs_e4m3: E4m3, Registers, K, 16;
    wgmma_n192_ss_e4m3: E4m3, Rows, K, 24;
    wgmma_n192_rs_e4m3: E4m3, Registers, K, 24;
    wgmma_n256_rs_e4m3: E4m3, Registers, K, 32;
    wgmma_n128_ss_e5m2: E5m2, Rows, K, 16;
    wgmma_n128_rs_e4m3_e5m2: E4m3E5m2, Registers, K, 16;
    wgmma_n128_ss_e5m2_e4m3: E5m2E4m3, Rows, K, 16;
}
