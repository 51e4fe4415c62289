//! Loads of bytes by the copy engine, matrices stored by a warp, and additions of four numbers.

use ferroflash_kernels::emu::{Asynchronous, Kind};
use ferroflash_kernels::ptx::{atomic, barrier, global, ldmatrix, mbarrier, shared, special, tma};

use super::{Given, SHARED, accepted, asynchronous, at, found, operand, run};
use crate::SEEDS;

fn misaligned(kind: &Kind) -> bool {
    matches!(kind, Kind::Misaligned { alignment: 16, .. })
}

/// Where the barrier lies.
const BAR: u32 = 1024;

/// A load of bytes.
#[derive(Clone, Copy)]
struct Load {
    to: u32,
    from: u64,
    n_bytes: u32,
}

/// Bytes 32 .. 96 of the input.
const HALVES: [Load; 2] = [
    Load {
        to: 16,
        from: 32,
        n_bytes: 32,
    },
    Load {
        to: 48,
        from: 64,
        n_bytes: 32,
    },
];

/// One thread loads, so many bytes are expected, all wait and read the 16 words at byte 16.
fn load(given: &Given, loads: [Load; 2], expected: u32, wait: fn()) {
    // SAFETY: the block comes by; what is wrong is wrong on purpose.
    unsafe {
        if special::thread_idx_x() == 0 {
            mbarrier::mbarrier_init(at(BAR), 1);
            mbarrier::fence_mbarrier_init();
            mbarrier::mbarrier_arrive_expect_tx(at(BAR), expected);
            for Load { to, from, n_bytes } in loads {
                tma::bulk_load(at(to), given.input.base + from, n_bytes, at(BAR));
            }
        }
        barrier::barrier_sync_all();
        wait();
        let word = special::thread_idx_x() % 16;
        let first = 17 + 2 * word;
        let loaded = shared::ld_shared_u32(at(16 + word * 4));
        assert_eq!(loaded, first | (first + 1) << 16);
    }
}

fn wait() {
    // SAFETY: the barrier was made.
    unsafe { mbarrier::mbarrier_wait(at(BAR), 0) };
}

#[test]
fn bytes_arrive_before_the_phase_ends() {
    accepted(64, |given| load(given, HALVES, 64, wait));
    let too_early = |kind: &Kind| matches!(kind, Kind::InFlight { .. } | Kind::Race { .. });
    found(64, too_early, |given| load(given, HALVES, 32, wait));
    found(64, too_early, |given| load(given, HALVES, 64, || {}));
    found(
        64,
        |kind| matches!(kind, Kind::Deadlock { .. }),
        |given| load(given, HALVES, 80, wait),
    );
}

#[test]
fn loads_of_bytes_refuse_wrong_operands() {
    let with = |change: fn(&mut Load), accepts: fn(&Kind) -> bool| {
        found(64, accepts, |given| {
            let mut loads = HALVES;
            change(&mut loads[0]);
            load(given, loads, 64, wait);
        });
    };
    let outside = |kind: &Kind| matches!(kind, Kind::OutOfBounds { .. });
    with(|load| load.n_bytes = 24, operand);
    with(|load| load.to = 8, misaligned);
    with(|load| load.from = 40, misaligned);
    with(|load| load.to = SHARED, outside);
    with(|load| load.from = 1 << 20, outside);
}

/// Ordinary writes and the copy engine's are of two kinds: a fence stands between them.
#[test]
fn a_load_over_what_a_thread_wrote_wants_a_fence() {
    let kernel = |given: &Given, fence: fn()| {
        if special::thread_idx_x() == 0 {
            // SAFETY: inside shared memory.
            unsafe { shared::st_shared_u32(at(48), 7) };
            fence();
        }
        load(given, HALVES, 64, wait);
    };
    accepted(64, |given| kernel(given, tma::fence_proxy_async));
    found(
        64,
        asynchronous(|what| matches!(what, Asynchronous::Unfenced { .. })),
        |given| kernel(given, || {}),
    );
}

/// Two warps store matrices, each row by the lane whose number `row` makes of its own; warp 0 reads what warp 1 stored.
fn store(row: fn(u32) -> u32, bent: u32, meet: fn()) {
    let (lane, warp) = (special::lane_idx(), special::thread_idx_x() / 32);
    let to = at(warp * 512 + row(lane) * 16 + bent);
    // SAFETY: the block comes by; what is wrong is wrong on purpose.
    unsafe {
        ldmatrix::stmatrix_x4(to, [0, 1, 2, 3].map(|matrix| matrix << 8 | lane));
        meet();
        if warp == 0 {
            for word in 0..4 {
                let stored = shared::ld_shared_u32(at(512 + lane * 16 + word * 4));
                assert_eq!(stored, lane / 8 * 256 + lane % 8 * 4 + word);
            }
        }
    }
}

#[test]
fn matrices_are_stored_row_by_row() {
    let all = || {
        // SAFETY: the block comes by.
        unsafe { barrier::barrier_sync_all() }
    };
    let race = |kind: &Kind| matches!(kind, Kind::Race { .. });
    accepted(64, |_| store(|lane| lane, 0, all));
    // Two lanes give one row; no row begins at the address; the warps do not meet.
    found(64, race, |_| store(|lane| lane & !1, 0, all));
    found(64, misaligned, |_| store(|lane| lane, 8, all));
    found(
        64,
        |kind| matches!(kind, Kind::Race { .. } | Kind::Uninitialised { .. }),
        |_| store(|lane| lane, 0, || {}),
    );
}

#[test]
fn matrices_are_stored_by_whole_warps() {
    found(
        32,
        |kind| matches!(kind, Kind::Divergence { .. } | Kind::Exited { .. }),
        |_| {
            let lane = special::lane_idx();
            if lane < 16 {
                // SAFETY: wrong on purpose.
                unsafe { ldmatrix::stmatrix_x4(at(lane * 16), [0; 4]) };
            }
        },
    );
}

/// Adds from all threads to four numbers at this byte of the output, of which the first 32 bytes have been written.
fn add(output: u64, byte: u64) {
    // SAFETY: the block comes by; what is wrong is wrong on purpose.
    unsafe {
        if special::thread_idx_x() < 2 {
            let place = output + u64::from(special::thread_idx_x()) * 16;
            global::st_global_x4(place, [0; 4]);
        }
        barrier::barrier_sync_all();
        let thread = special::thread_idx_x() as f32;
        atomic::red_add_f32x4(output + byte, [1.0, thread, 0.5, -thread]);
    }
}

#[test]
fn four_numbers_are_added_at_once() {
    for seed in SEEDS {
        let stored = run(64, seed, |given| add(given.output.base, 16)).unwrap();
        let sums: Vec<f32> = stored[8..16]
            .chunks_exact(2)
            .map(|x| f32::from_bits(u32::from(x[0]) | u32::from(x[1]) << 16))
            .collect();
        assert_eq!(sums, [64.0, 2016.0, 32.0, -2016.0], "seed {seed}");
    }
    // Between the places of fours, and where nothing has been written.
    found(64, misaligned, |given| add(given.output.base, 8));
    found(
        64,
        |kind| matches!(kind, Kind::Uninitialised { .. }),
        |given| add(given.output.base, 32),
    );
    found(
        64,
        |kind| matches!(kind, Kind::ReadOnly { .. }),
        |given| {
            // SAFETY: wrong on purpose.
            unsafe { atomic::red_add_f32x4(given.input.base, [1.0; 4]) }
        },
    );
}
