//! Barriers that count bytes, and the copies that they count.

use ferroflash_kernels::emu::{Asynchronous, Kind};
use ferroflash_kernels::params::TensorMap;
use ferroflash_kernels::ptx::{barrier, mbarrier, shared, special, tma};

use super::{Given, ROWS, SHARED, SIZES, accepted, address, asynchronous, at, found, operand, run};
use crate::SEEDS;

/// A barrier for one arrival, known to all.
unsafe fn make_barrier(offset: u32) {
    if special::thread_idx_x() == 0 {
        // SAFETY: as the caller promises.
        unsafe { mbarrier::mbarrier_init(at(offset), 1) };
        mbarrier::fence_mbarrier_init();
    }
    // SAFETY: as the caller promises.
    unsafe { barrier::barrier_sync_all() };
}

/// The element of a box that has arrived.
unsafe fn element(row: usize, column: usize) -> u16 {
    let chunk = (column / 8) ^ (row % 8);
    let offset = row * 128 + chunk * 16 + column % 8 * 2;
    // SAFETY: the caller has waited for the box.
    let pair = unsafe { shared::ld_shared_u32(at(offset as u32 & !3)) };
    (pair >> (offset % 4 * 8)) as u16
}

/// Boxes inside the tensor and over each of its edges.
const CORNERS: [[i32; 4]; 7] = [
    [0, 0, 0, 0],
    [8, 4, 2, 1],
    [64, 12, 1, 0],
    [-8, -3, 1, 1],
    [0, 0, 3, 0],
    [0, 0, 0, -1],
    [i32::MIN, i32::MAX, 0, 0],
];

#[test]
fn boxes_over_the_edges_are_filled_up_with_zeros() {
    for corner in CORNERS {
        accepted(32, |given| {
            // SAFETY: one warp; all wait for the box.
            unsafe {
                make_barrier(8192);
                if special::lane_idx() == 0 {
                    mbarrier::mbarrier_arrive_expect_tx(at(8192), 2048);
                    tma::tma_load(
                        at(0),
                        address(&given.input),
                        corner.map(|x| x as u32),
                        at(8192),
                    );
                }
                mbarrier::mbarrier_wait(at(8192), 0);
                for row in 0..ROWS {
                    for column in (special::lane_idx() as usize..64).step_by(32) {
                        let place = [column, row, 0, 0];
                        let place: [i64; 4] =
                            std::array::from_fn(|i| i64::from(corner[i]) + place[i] as i64);
                        let inside = place
                            .iter()
                            .zip(SIZES)
                            .all(|(x, size)| (0..size as i64).contains(x));
                        let index = ((place[3] * 3 + place[2]) * 20 + place[1]) * 72 + place[0];
                        let expected = if inside { index as u16 + 1 } else { 0 };
                        assert_eq!(element(row, column), expected, "{corner:?} {place:?}");
                    }
                }
            }
        });
    }
}

/// One thread writes a box of its own numbers and stores it at a corner.
unsafe fn store_box(given: &Given, corner: [i32; 4]) {
    for word in 0..512 {
        // SAFETY: inside shared memory.
        unsafe { shared::st_shared_u32(at(word * 4), 0x4000_4000 + word) };
    }
    tma::fence_proxy_async();
    // SAFETY: the box has been written by this thread.
    unsafe { tma::tma_store_if(address(&given.output), corner.map(|x| x as u32), at(0), 1) };
    tma::bulk_commit_group();
    tma::bulk_wait_group_read::<0>();
}

#[test]
fn boxes_over_the_edges_are_cut_off() {
    for (corner, seed) in CORNERS.into_iter().zip(SEEDS) {
        let stored = run(32, seed, |given| {
            if special::lane_idx() == 0 {
                // SAFETY: one thread.
                unsafe { store_box(given, corner) };
            }
        });
        let stored = stored.unwrap_or_else(|fault| panic!("{corner:?}: {fault}"));
        for (index, x) in stored.into_iter().enumerate() {
            let place = [index % 72, index / 72 % 20, index / 1440 % 3, index / 4320];
            let [column, row, head, batch]: [i64; 4] =
                std::array::from_fn(|i| place[i] as i64 - i64::from(corner[i]));
            let inside = (0..64).contains(&column)
                && (0..ROWS as i64).contains(&row)
                && (head, batch) == (0, 0);
            let offset = row * 128 + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2;
            let expected = match inside {
                true if offset % 4 == 0 => 0x4000 + (offset / 4) as u16,
                true => 0x4000,
                false => 0,
            };
            assert_eq!(x, expected, "{corner:?}: element {place:?}");
        }
    }
}

fn init(offset: u32, count: u32) {
    // SAFETY: wrong on purpose.
    unsafe { mbarrier::mbarrier_init(at(offset), count) };
}

#[test]
fn barriers_refuse_wrong_operands() {
    found(32, operand, |_| init(0, 0));
    found(
        32,
        |kind| matches!(kind, Kind::Misaligned { alignment: 8, .. }),
        |_| init(4, 1),
    );
    found(
        32,
        |kind| matches!(kind, Kind::OutOfBounds { .. }),
        |_| init(SHARED, 1),
    );
    found(32, operand, |_| {
        // SAFETY: wrong on purpose.
        unsafe {
            make_barrier(0);
            mbarrier::mbarrier_wait(at(0), 2);
        }
    });
    found(32, operand, |_| {
        // SAFETY: wrong on purpose.
        unsafe {
            make_barrier(0);
            mbarrier::mbarrier_arrive_expect_tx(at(0), 1 << 20);
        }
    });
    found(
        32,
        asynchronous(|what| matches!(what, Asynchronous::NoMbarrier { .. })),
        |_| {
            // SAFETY: wrong on purpose.
            unsafe { mbarrier::mbarrier_arrive_if(at(0), 1) }
        },
    );
}

/// Nobody arrives any more: the report says at which barrier, in which phase, and what is missing.
#[test]
fn a_deadlock_names_the_barrier() {
    let fault = run(64, 3, |_| {
        // SAFETY: wrong on purpose.
        unsafe {
            make_barrier(16);
            if special::thread_idx_x() == 5 {
                mbarrier::mbarrier_arrive_if(at(16), 1);
            }
            mbarrier::mbarrier_wait(at(16), 0);
            barrier::barrier_sync_all();
            if special::thread_idx_x() == 40 {
                mbarrier::mbarrier_arrive_expect_tx(at(16), 256);
            }
            mbarrier::mbarrier_wait(at(16), 1);
        }
    });
    let report = fault.unwrap_err().to_string();
    let expected = "wait for the end of phase 1 of the mbarrier at shared memory, byte 16, which lacks 0 arrivals and \
                    256 bytes";
    assert!(
        report.contains("64 threads") && report.contains(expected),
        "{report}"
    );
}

/// One thread waits for the barrier; the others know only by meeting it.
#[test]
fn who_has_not_waited_must_meet_one_who_has() {
    let kernel = |given: &Given, meet: fn()| {
        // SAFETY: without the meeting, wrong on purpose.
        unsafe {
            make_barrier(8192);
            if special::thread_idx_x() == 33 {
                mbarrier::mbarrier_arrive_expect_tx(at(8192), 2048);
                tma::tma_load(at(0), address(&given.input), [0; 4], at(8192));
                mbarrier::mbarrier_wait(at(8192), 0);
            }
            meet();
            assert_eq!(element(0, 5), 6);
        }
    };
    accepted(64, |given| {
        // SAFETY: the whole block comes by.
        kernel(given, || unsafe { barrier::barrier_sync_all() })
    });
    found(
        64,
        |kind| {
            matches!(
                kind,
                Kind::Race { .. } | Kind::InFlight { .. } | Kind::Uninitialised { .. }
            )
        },
        |given| kernel(given, || {}),
    );
}

#[test]
fn copies_refuse_wrong_operands() {
    let load = |given: &Given, change: fn(&mut TensorMap), to: u32| {
        let mut map = given.input;
        change(&mut map);
        // SAFETY: wrong on purpose.
        unsafe {
            make_barrier(16384);
            if special::lane_idx() == 0 {
                mbarrier::mbarrier_arrive_expect_tx(at(16384), 2048);
                tma::tma_load(at(to), address(&map), [0; 4], at(16384));
            }
            mbarrier::mbarrier_wait(at(16384), 0);
        }
    };
    accepted(32, |given| load(given, |_| {}, 0));
    found(32, operand, |given| {
        load(given, |map| map.box_rows = 257, 0)
    });
    found(32, operand, |given| load(given, |map| map.box_heads = 0, 0));
    found(32, operand, |given| {
        load(given, |map| map.strides[0] += 8, 0)
    });
    found(32, operand, |given| load(given, |map| map.base += 2, 0));
    found(32, operand, |given| load(given, |map| map.sizes[3] = 0, 0));
    let outside = |kind: &Kind| matches!(kind, Kind::OutOfBounds { .. });
    found(32, outside, |given| load(given, |_| {}, SHARED - 1024));
    found(32, outside, |given| {
        load(
            given,
            |map| (map.strides[0], map.strides[1]) = (1 << 20, 144),
            0,
        )
    });
    found(
        32,
        |kind| matches!(kind, Kind::ReadOnly { .. }),
        |given| {
            let given = Given {
                output: given.input,
                ..*given
            };
            // SAFETY: wrong on purpose.
            unsafe { store_box(&given, [0; 4]) };
        },
    );
}

/// Ordinary writes and the copy engine's are of two kinds: a fence stands between them.
#[test]
fn a_copy_over_what_a_thread_wrote_wants_a_fence() {
    let kernel = |given: &Given, fence: fn()| {
        // SAFETY: wrong on purpose, without the fence.
        unsafe {
            make_barrier(16384);
            if special::lane_idx() == 0 {
                shared::st_shared_u32(at(128), 7);
                fence();
                mbarrier::mbarrier_arrive_expect_tx(at(16384), 2048);
                tma::tma_load(at(0), address(&given.input), [0; 4], at(16384));
            }
            mbarrier::mbarrier_wait(at(16384), 0);
        }
    };
    accepted(32, |given| kernel(given, tma::fence_proxy_async));
    found(
        32,
        asynchronous(|what| matches!(what, Asynchronous::Unfenced { .. })),
        |given| kernel(given, || {}),
    );
}
