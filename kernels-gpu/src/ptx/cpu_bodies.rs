//! The CPU bodies of the instructions against the PTX manual's own definitions, written here a second time: element
//! by element, as the manual indexes them.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every kernel here is one warp whose lanes all come by, on rows that they wrote; the emulator checks it"
)]

use std::sync::Mutex;

use super::{barrier, convert, ldmatrix, math, mma, shared, shuffle, special};
use crate::emu::{self, GlobalMemory, Launch, Options};
use crate::spec::Spec;
use half::{bf16, f16};

/// Runs one warp and gives what each lane returned.
fn warp<T: Copy + Default>(lane: impl Fn(u32) -> T) -> [T; 32] {
    let results = Mutex::new([T::default(); 32]);
    let launch = Launch {
        grid: 1,
        threads: 32,
        shared_bytes: 4096,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    let kernel = || {
        let idx = special::lane_idx();
        let result = lane(idx);
        results.lock().unwrap()[idx as usize] = result;
    };
    emu::run(
        &launch,
        &Options::seeded(5),
        &mut GlobalMemory::new(),
        &kernel,
    )
    .unwrap();
    results.into_inner().unwrap()
}

/// A 16 × 16 matrix of small whole numbers, and an 8 columns wide one.
fn operands() -> ([[f32; 16]; 16], [[f32; 8]; 16]) {
    let a = std::array::from_fn(|i| std::array::from_fn(|k| ((i * 16 + k) * 7 % 13) as f32 - 6.0));
    let b = std::array::from_fn(|k| std::array::from_fn(|j| ((k * 8 + j) * 5 % 11) as f32 - 5.0));
    (a, b)
}

/// "Matrix Fragments for mma.m16n8k16": element `i` of A's fragment as (row, column).
fn a_index(lane: usize, i: usize) -> (usize, usize) {
    let (group, thread_in_group) = (lane >> 2, lane % 4);
    let row = if i < 2 || (4..6).contains(&i) {
        group
    } else {
        group + 8
    };
    let column = thread_in_group * 2 + (i & 1) + if i < 4 { 0 } else { 8 };
    (row, column)
}

/// Element `i` of B's fragment as (row, column).
fn b_index(lane: usize, i: usize) -> (usize, usize) {
    let (group, thread_in_group) = (lane >> 2, lane % 4);
    (
        thread_in_group * 2 + (i & 1) + if i < 2 { 0 } else { 8 },
        group,
    )
}

/// Element `i` of the accumulator's fragment as (row, column).
fn c_index(lane: usize, i: usize) -> (usize, usize) {
    let (group, thread_in_group) = (lane >> 2, lane % 4);
    (
        if i < 2 { group } else { group + 8 },
        thread_in_group * 2 + (i & 1),
    )
}

fn check_mma(bits: fn(f32) -> u16, multiply: unsafe fn(&mut [f32; 4], [u32; 4], [u32; 2])) {
    let (a, b) = operands();
    let c = |row: usize, column: usize| (row * 8 + column) as f32;
    let pack = |lo: f32, hi: f32| u32::from(bits(lo)) | u32::from(bits(hi)) << 16;
    let results = warp(|lane| {
        let lane = lane as usize;
        let a_element = |i| {
            let (row, column) = a_index(lane, i);
            a[row][column]
        };
        let b_element = |i| {
            let (row, column) = b_index(lane, i);
            b[row][column]
        };
        let a = std::array::from_fn(|i| pack(a_element(2 * i), a_element(2 * i + 1)));
        let b = std::array::from_fn(|i| pack(b_element(2 * i), b_element(2 * i + 1)));
        let mut acc = std::array::from_fn(|i| {
            let (row, column) = c_index(lane, i);
            c(row, column)
        });
        unsafe { multiply(&mut acc, a, b) };
        acc
    });
    for (lane, acc) in results.iter().enumerate() {
        for (i, x) in acc.iter().enumerate() {
            let (row, column) = c_index(lane, i);
            let sum: f32 = (0..16).map(|k| a[row][k] * b[k][column]).sum();
            assert_eq!(*x, c(row, column) + sum, "lane {lane}, register {i}");
        }
    }
}

#[test]
fn mma_multiplies_the_manuals_fragments() {
    check_mma(
        |x| bf16::from_f32(x).to_bits(),
        |c, a, b| unsafe { mma::mma_m16n8k16_bf16(c, a, b) },
    );
    check_mma(
        |x| f16::from_f32(x).to_bits(),
        |c, a, b| unsafe { mma::mma_m16n8k16_f16(c, a, b) },
    );
}

/// Element `column` of row `row` of matrix `matrix`, unlike any other.
fn element(matrix: u32, row: u32, column: u32) -> u16 {
    (matrix * 64 + row * 8 + column) as u16
}

/// Writes four matrices, a row to a lane, and gives this lane's row's address.
fn write_matrices(lane: u32) -> u32 {
    let pair = |i: u32| {
        let at = |column| u32::from(element(lane / 8, lane % 8, column));
        at(2 * i) | at(2 * i + 1) << 16
    };
    let row = special::shared_base() + lane * 16;
    unsafe {
        shared::st_shared_x4(row, [pair(0), pair(1), pair(2), pair(3)]);
        barrier::warp_sync();
    }
    row
}

#[test]
fn ldmatrix_deals_out_rows_and_columns() {
    let rows = warp(|lane| unsafe { ldmatrix::ldmatrix_x4(write_matrices(lane)) });
    let columns = warp(|lane| unsafe { ldmatrix::ldmatrix_x4_trans(write_matrices(lane)) });
    let two_rows = warp(|lane| unsafe { ldmatrix::ldmatrix_x2(write_matrices(lane)) });
    let two_columns = warp(|lane| unsafe { ldmatrix::ldmatrix_x2_trans(write_matrices(lane)) });
    for lane in 0..32u32 {
        let at = lane as usize;
        for matrix in 0..4u32 {
            let row = |i| u32::from(element(matrix, lane / 4, lane % 4 * 2 + i));
            let column = |i| u32::from(element(matrix, lane % 4 * 2 + i, lane / 4));
            let (row, column) = (row(0) | row(1) << 16, column(0) | column(1) << 16);
            let register = matrix as usize;
            assert_eq!(
                (rows[at][register], columns[at][register]),
                (row, column),
                "lane {lane}"
            );
            if matrix < 2 {
                assert_eq!(
                    (two_rows[at][register], two_columns[at][register]),
                    (row, column)
                );
            }
        }
    }
}

#[test]
fn stmatrix_stores_what_ldmatrix_deals_out() {
    let words = warp(|lane| unsafe {
        let dealt = ldmatrix::ldmatrix_x4(write_matrices(lane));
        let row = special::shared_base() + 1024 + lane * 16;
        ldmatrix::stmatrix_x4(row, dealt);
        barrier::warp_sync();
        shared::ld_shared_x4(row)
    });
    for lane in 0..32u32 {
        for word in 0..4u32 {
            let at = |i| u32::from(element(lane / 8, lane % 8, 2 * word + i));
            let pair = at(0) | at(1) << 16;
            assert_eq!(words[lane as usize][word as usize], pair, "lane {lane}");
        }
    }
}

#[test]
fn stmatrix_trans_stores_columns_as_rows() {
    let words = warp(|lane| unsafe {
        let dealt = ldmatrix::ldmatrix_x4(write_matrices(lane));
        let row = special::shared_base() + 1024 + lane * 16;
        ldmatrix::stmatrix_x4_trans(row, dealt);
        barrier::warp_sync();
        shared::ld_shared_x4(row)
    });
    for lane in 0..32u32 {
        for word in 0..4u32 {
            let at = |i| u32::from(element(lane / 8, 2 * word + i, lane % 8));
            let pair = at(0) | at(1) << 16;
            assert_eq!(words[lane as usize][word as usize], pair, "lane {lane}");
        }
    }
}

#[test]
fn shuffles_and_votes_reach_the_lane_they_name() {
    for mask in [1, 2, 4, 8, 16, 31] {
        let got = warp(|lane| unsafe { shuffle::shuffle_bfly_u32(lane * 3, mask) });
        assert!((0..32).all(|lane| got[lane as usize] == (lane ^ mask) * 3));
    }
    let got = warp(|lane| unsafe { shuffle::shuffle_idx_f32(lane as f32, (lane + 7) % 32) });
    assert!((0..32).all(|lane| got[lane] == ((lane + 7) % 32) as f32));
    for lanes in [0u32, 1, 0x8000_0000, u32::MAX - 1, u32::MAX] {
        let got = warp(|lane| unsafe {
            let mine = lanes >> lane & 1 == 1;
            let ballot = shuffle::vote_ballot(mine);
            (shuffle::vote_any(mine), shuffle::vote_all(mine), ballot)
        });
        assert!(
            got.iter()
                .all(|votes| *votes == (lanes != 0, lanes == u32::MAX, lanes)),
            "{lanes:#x}"
        );
    }
}

#[test]
fn reductions_are_of_all_lanes() {
    let reduce = |x: fn(u32) -> u32| {
        let got = warp(|lane| unsafe {
            let x = x(lane);
            (shuffle::redux_add_u32(x), shuffle::redux_max_u32(x))
        });
        assert!(got.iter().all(|of_lane| *of_lane == got[0]));
        got[0]
    };
    assert_eq!(reduce(|lane| lane * 3), (1488, 93));
    assert_eq!(reduce(|lane| 40 - lane), (784, 40));
    assert_eq!(reduce(|lane| 1 << lane), (u32::MAX, 1 << 31));
    assert_eq!(reduce(|_| u32::MAX), (u32::MAX - 31, u32::MAX));
}

#[test]
fn approximations_flush_subnormal_numbers() {
    let subnormal = f32::from_bits(1);
    assert_eq!(math::ex2_approx(subnormal), 1.0);
    assert_eq!(math::ex2_approx(-126.5).to_bits(), 0);
    assert_eq!(math::ex2_approx(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(math::ex2_approx(128.0), f32::INFINITY);
    assert_eq!(math::lg2_approx(subnormal), f32::NEG_INFINITY);
    assert_eq!(math::rcp_approx(-subnormal), f32::NEG_INFINITY);
    assert_eq!(math::rcp_approx(f32::MAX).to_bits(), 0);
    assert!(math::lg2_approx(-1.0).is_nan());
}

#[test]
fn max_prefers_numbers_and_positive_zeros() {
    assert_eq!(math::max(f32::NAN, -3.0), -3.0);
    assert_eq!(math::max(2.0, f32::NAN), 2.0);
    assert!(math::max(f32::NAN, f32::NAN).is_nan());
    assert_eq!(math::max(-0.0, 0.0).to_bits(), 0);
    assert_eq!(math::max(0.0, -0.0).to_bits(), 0);
    assert_eq!(math::max(-0.0, -0.0).to_bits(), (-0.0f32).to_bits());
}

#[test]
fn numbers_of_8_bits_are_exact_in_16() {
    for bits in 0..=u8::MAX {
        let found = convert::cvt_f16x2_e4m3x2(u32::from(bits) << 8 | u32::from(bits));
        let number = float8::F8E4M3::from_bits(bits);
        let [lo, hi] = convert::unpack_f16x2(found);
        assert_eq!(lo.to_bits(), hi.to_bits());
        assert!(
            lo == number.to_f32() || lo.is_nan() && number.is_nan(),
            "{bits}"
        );
    }
    for bits in 0..=u8::MAX {
        let found = convert::cvt_f16x2_e5m2x2(u32::from(bits));
        let number = float8::F8E5M2::from_bits(bits);
        let [lo, _] = convert::unpack_f16x2(found);
        let expected = number.to_f32();
        assert!(lo == expected || lo.is_nan() && expected.is_nan(), "{bits}");
    }
    assert_eq!(
        convert::prmt_pair(0x3322_1100, 0x7766_5544, 0x0527),
        0x0055_2277
    );
    assert_eq!(convert::prmt::<0x3120>(0xddcc_bbaa), 0xddbb_ccaa);
    let signs = convert::prmt_signs::<0xcb98>(0x8000_8000, 0x7f7f_7f80);
    assert_eq!(signs, 0xffff_ff00);
}

#[test]
fn numbers_of_8_bits_saturate() {
    let bytes = |x: [f32; 4]| convert::cvt_e4m3x4(x).to_le_bytes();
    // Ties go to even; 448 is the greatest number.
    assert_eq!(
        bytes([1.0625, 1.1875, 464.0, f32::INFINITY]),
        [0x38, 0x3a, 0x7e, 0x7e]
    );
    assert_eq!(
        bytes([-1e9, f32::NAN, -0.0, 2f32.powi(-10)]),
        [0xfe, 0x7f, 0x80, 0x00]
    );
    let bytes = |x: [f32; 4]| convert::cvt_e5m2x4(x).to_le_bytes();
    assert_eq!(
        bytes([1.125, 1.375, 61440.0, f32::INFINITY]),
        [0x3c, 0x3e, 0x7b, 0x7b]
    );
    assert_eq!(
        bytes([-1e9, f32::NAN, -0.0, 2f32.powi(-17)]),
        [0xfb, 0x7f, 0x80, 0x00]
    );
}

#[test]
fn conversions_round_to_nearest_even() {
    let halfway = f32::from_bits(0x3f80_8000);
    let above = f32::from_bits(0x3f81_8000);
    assert_eq!(convert::cvt_bf16x2(halfway, above), 0x3f82_3f80);
    assert_eq!(
        convert::cvt_bf16x2(f32::NAN, f32::NEG_INFINITY),
        0xff80_7fff
    );
    assert_eq!(convert::cvt_f16x2(65519.9, 65520.0), 0x7c00_7bff);
    assert_eq!(convert::cvt_f16x2(-f32::NAN, 1.0), 0x3c00_7fff);
    for x in [0x0000_0001u32, 0x3c00_bc00, 0x7bff_8400] {
        let [lo, hi] = convert::unpack_f16x2(x);
        assert_eq!(convert::cvt_f16x2(lo, hi), x);
        let [lo, hi] = convert::unpack_bf16x2(x);
        assert_eq!(convert::cvt_bf16x2(lo, hi), x);
    }
}

/// "Matrix Fragments for mma.m16n8k8", of `.tf32`.
#[test]
fn mma_of_tf32_multiplies_what_the_manual_says() {
    let (a, b) = operands();
    let c = |row: usize, column: usize| (row * 8 + column) as f32;
    let results = warp(|lane| {
        let lane = lane as usize;
        let (group, thread_in_group) = (lane >> 2, lane % 4);
        // Bits below those of tf32 make no difference.
        let register = |x: f32| x.to_bits() | 0x1fff;
        let of_a = std::array::from_fn(|i| {
            let row = if i == 0 || i == 2 { group } else { group + 8 };
            let column = thread_in_group + if i < 2 { 0 } else { 4 };
            register(a[row][column])
        });
        let of_b = std::array::from_fn(|i| register(b[thread_in_group + 4 * i][group]));
        let mut acc = std::array::from_fn(|i| {
            let (row, column) = c_index(lane, i);
            c(row, column)
        });
        unsafe { mma::mma_m16n8k8_tf32(&mut acc, of_a, of_b) };
        acc
    });
    for (lane, acc) in results.iter().enumerate() {
        for (i, &x) in acc.iter().enumerate() {
            let (row, column) = c_index(lane, i);
            let product: f32 = (0..8).map(|k| a[row][k] * b[k][column]).sum();
            assert_eq!(x, c(row, column) + product);
        }
    }
}

#[test]
fn tf32_is_the_nearest_of_ten_bits() {
    let rounded = |x: f32| f32::from_bits(convert::cvt_tf32(x));
    let unit = 2f32.powi(-10);
    for x in [1.0 + unit / 2.0, 1.0 + unit, 1.0 + unit * 1.49] {
        // Ties go away from zero.
        assert_eq!(rounded(x), 1.0 + unit);
        assert_eq!(rounded(-x), -1.0 - unit);
    }
    assert_eq!(rounded(1.0 + unit * 0.499), 1.0);
    assert_eq!(rounded(2.0 - f32::EPSILON), 2.0);
    assert_eq!(rounded(f32::MAX), f32::INFINITY);
    assert_eq!(rounded(f32::NEG_INFINITY), f32::NEG_INFINITY);
    assert!(rounded(f32::NAN).is_nan());
    assert_eq!(rounded(-0.0).to_bits(), (-0f32).to_bits());
}
