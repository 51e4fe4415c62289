//! Shares on the emulator: every block finds one, and every split of every sequence is found once.

use super::*;
use crate::attention::divisor::Divisor;
use crate::emu::{self, GlobalMemory, Launch, Options};
use crate::spec::{Constant, Spec};
use std::sync::Mutex;

const HEADS: u32 = 8;

/// The shares that blocks find; of those that find none, nothing.
fn found(lens: &[i32], parts: u32, seed: u64) -> Vec<Option<WorkTile>> {
    let batch = lens.len() as u32;
    // As plans have it.
    let grid = parts / HEADS + batch;
    let shares = Mutex::new(vec![None; grid as usize]);
    let mut memory = GlobalMemory::new();
    let mut p = ForwardParams::default();
    p.shape.batch = batch;
    p.shape.seqlen_k = 1 << 20;
    p.lengths.rows_k = 1 << 20;
    p.lengths.seqused_k = memory.input("seqused_k", lens);
    p.split.parts = parts;
    p.split.keys = 2 * KEYS;
    p.divisors.parts = Divisor::new(parts);
    let launch = Launch {
        grid,
        threads: 32,
        shared_bytes: 0,
        resident_blocks: 4,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN.with(Constant::Lengths).with(Constant::SplitKv),
    };
    emu::run(&launch, &Options::seeded(seed), &mut memory, &|| {
        let idx = special::block_idx_x();
        // SAFETY: all lanes come here; the lengths are there.
        let share = unsafe { WorkTile::find(&p, HEADS, idx) };
        if special::lane_idx() == 0 {
            shares.lock().unwrap()[idx as usize] = share;
        }
    })
    .unwrap_or_else(|fault| panic!("{fault}"));
    shares.into_inner().unwrap()
}

/// That each split of each sequence is somebody's, and only one's.
fn check(lens: &[i32], parts: u32) {
    let n = lens.len();
    let shares = found(lens, parts, n as u64);
    let first_none = shares.iter().position(Option::is_none);
    let n_found = first_none.unwrap_or(shares.len());
    assert!(shares[n_found..].iter().all(Option::is_none), "{n}");
    let mut are_whole = false;
    for share in shares.iter().flatten() {
        // Behind the first whole sequence there are no splits.
        are_whole |= share.n_splits == 1 && share.split_keys >= share.rows_k.len;
        assert!(!are_whole || share.n_splits == 1, "{n}");
    }
    let mut of_sequences = vec![Vec::new(); n];
    for share in shares.iter().flatten() {
        of_sequences[share.sequence as usize].push(*share);
    }
    for (own, &len) in of_sequences.iter().zip(lens) {
        let splits = own.iter().map(|share| share.split);
        assert!(splits.eq(0..own.len() as u32), "{n}: {len}");
        let keys = own[0].split_keys;
        assert!(keys.is_multiple_of(KEYS) && own.iter().all(|share| share.split_keys == keys));
        for share in own {
            let len = len as u32;
            assert_eq!(share.rows_k, Rows { first: 0, len });
            assert_eq!(share.n_splits, own.len() as u32);
        }
        // The last ones may be left without keys, as all before them are equally long.
        assert!(
            own.len() >= n_splits(len as u32, keys) as usize,
            "{n}: {len}"
        );
    }
}

#[test]
fn every_split_of_every_sequence_is_found_once() {
    // More sequences than lanes, too, and than lanes of lanes.
    for (n, parts) in [
        (1, 264),
        (5, 264),
        (32, 264),
        (33, 264),
        (64, 2),
        (129, 40),
        (257, 264),
        (300, 2112),
        (1100, 264),
    ] {
        let len = |at: i32| match at % 7 {
            0 => 0,
            1 => at * 7919 % (1 << 18),
            _ => at * 911 % 3000,
        };
        check(&(3..n + 3).map(len).collect::<Vec<_>>(), parts);
        // As long as each other; without keys; one that is long, the first, the last, or in between.
        for equal in [0, 64, 1000, 1 << 20] {
            check(&vec![equal; n as usize], parts);
        }
        for long in [0, n / 2, n - 1] {
            let len = |at| if at == long { 1 << 20 } else { 70 };
            check(&(0..n).map(len).collect::<Vec<_>>(), parts);
        }
    }
}
