//! Bytes and sums that lie side by side, stored through the copy engine.

use ferroflash_kernels::emu::Kind;
use ferroflash_kernels::ptx::{shared, special, tma};

use super::{SHARED, accepted, elements, found, operand, run};
use crate::SEEDS;

#[derive(Clone, Copy)]
enum Instruction {
    Store,
    Add,
}

/// Begins a store, and leaves it to the thread's next group.
fn begin(instruction: Instruction, to: u64, from: u32, bytes: u32) {
    // SAFETY: wrong on purpose, or the thread has written and fenced what it stores.
    unsafe {
        match instruction {
            Instruction::Store => tma::bulk_store(to, from, bytes),
            Instruction::Add => tma::bulk_add_f32(to, from, bytes),
        }
    }
}

fn finish() {
    tma::bulk_commit_group();
    tma::bulk_wait_group::<0>();
}

/// 64 bytes of shared memory: 1, 2, 3, …
fn write() {
    for word in 0..16 {
        // SAFETY: inside shared memory.
        unsafe { shared::st_shared_f32(super::at(word * 4), (word + 1) as f32) };
    }
    tma::fence_proxy_async();
}

/// One thread writes, stores to 128 bytes of output where it is to add, and begins what is asked for.
fn one(instruction: Instruction, to: u64, from: u32, bytes: u32) {
    if special::thread_idx_x() == 0 {
        write();
        begin(instruction, to, super::at(from), bytes);
        finish();
    }
}

fn numbers(stored: &[u16]) -> Vec<f32> {
    let words = stored.as_chunks::<2>().0;
    words
        .iter()
        .map(|[low, high]| f32::from_bits(u32::from(*low) | u32::from(*high) << 16))
        .collect()
}

#[test]
fn what_was_stored_is_added_to() {
    for seed in SEEDS {
        let stored = run(32, seed, |given| {
            if special::thread_idx_x() == 0 {
                let to = given.output.base + 32;
                write();
                begin(Instruction::Store, to, super::at(0), 64);
                finish();
                begin(Instruction::Add, to + 16, super::at(0), 16);
                begin(Instruction::Add, to + 16, super::at(32), 32);
                finish();
            }
        });
        let mut expected = [0.0; 32];
        for (word, x) in expected[8..24].iter_mut().enumerate() {
            *x = (word + 1) as f32;
        }
        for word in 0..4 {
            expected[12 + word] += (word + 1) as f32;
        }
        for word in 0..8 {
            expected[12 + word] += (word + 9) as f32;
        }
        assert_eq!(numbers(&stored.unwrap()[..64]), expected, "seed {seed}");
    }
}

/// A thread's own stores are in no order, either, until it has waited.
#[test]
fn stores_of_one_thread_are_unordered() {
    let kernel = |to: u64, wait: fn()| {
        if special::thread_idx_x() == 0 {
            write();
            begin(Instruction::Store, to, super::at(0), 64);
            tma::bulk_commit_group();
            wait();
            begin(Instruction::Add, to, super::at(0), 64);
            finish();
        }
    };
    let race = |kind: &Kind| matches!(kind, Kind::Race { .. });
    accepted(32, |given| {
        kernel(given.output.base, tma::bulk_wait_group::<0>)
    });
    found(32, race, |given| {
        kernel(given.output.base, tma::bulk_wait_group::<1>)
    });
    found(32, race, |given| {
        kernel(given.output.base, tma::bulk_wait_group_read::<0>)
    });
}

#[test]
fn stores_refuse_wrong_operands() {
    let misaligned = |kind: &Kind| matches!(kind, Kind::Misaligned { alignment: 16, .. });
    let outside = |kind: &Kind| matches!(kind, Kind::OutOfBounds { .. });
    let end = elements() as u64 * 2;
    for instruction in [Instruction::Store, Instruction::Add] {
        found(32, misaligned, |given| {
            one(instruction, given.output.base, 8, 16)
        });
        found(32, misaligned, |given| {
            one(instruction, given.output.base + 8, 0, 16)
        });
        found(32, operand, |given| {
            one(instruction, given.output.base, 0, 24)
        });
        found(32, outside, |given| {
            one(instruction, given.output.base, SHARED - 16, 32)
        });
        found(32, outside, |given| {
            one(instruction, given.output.base + end - 16, 0, 32)
        });
        found(
            32,
            |kind| matches!(kind, Kind::ReadOnly { .. }),
            |given| one(instruction, given.input.base, 0, 16),
        );
        // What is stored has not been written.
        found(
            32,
            |kind| matches!(kind, Kind::Uninitialised { .. }),
            |given| one(instruction, given.output.base, 64, 16),
        );
    }
    accepted(32, |given| {
        one(Instruction::Store, given.output.base + end - 64, 0, 64)
    });
    found(
        32,
        |kind| matches!(kind, Kind::Uninitialised { .. }),
        |given| one(Instruction::Add, given.output.base, 0, 16),
    );
}

/// So many threads store, each to a place of its own.
fn many(output: u64, threads: u32) {
    let thread = special::thread_idx_x();
    if thread.is_multiple_of(2) && thread < 2 * threads {
        let from = super::at(thread * 16);
        // SAFETY: a place of its own, which it has written.
        unsafe { shared::st_shared_x4(from, [thread; 4]) };
        tma::fence_proxy_async();
        for _ in 0..2 {
            let to = output + u64::from(thread) * 16;
            begin(Instruction::Store, to, from, 16);
            finish();
        }
    }
}

#[test]
fn few_threads_of_a_block_store() {
    accepted(64, |given| many(given.output.base, 12));
    found(64, operand, |given| many(given.output.base, 13));
}
