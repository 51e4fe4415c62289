//! A block's share of the work, where sequences have lengths of their own: each block finds it by itself, from all lengths.
//!
//! The keys of all sequences, for each of the heads and tiles, are divided into parts, as many as blocks run at once; of few keys there are
//! fewer parts, with as many keys as a split has at least. A sequence that is longer than a part by more than a quarter, of few keys by
//! anything, is divided into equal splits. The blocks of divided sequences come first, as theirs are long; those of the others fill the
//! gaps.

use super::KEYS;
use crate::attention::divide;
use crate::attention::split_kv::blocks_of_part;
use crate::kernels::lengths;
use crate::params::ForwardParams;
use crate::ptx::{shuffle, special};

/// One split of a sequence.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) sequence: u32,
    pub(super) split: u32,
    /// Keys of each of the sequence's splits.
    pub(super) split_keys: u32,
}

/// How a sequence is divided.
#[derive(Clone, Copy)]
struct Division {
    /// Blocks of keys.
    blocks: u32,
    /// Splits: one at least.
    n: u32,
}

impl Share {
    /// The `idx`-th; `None` where there are not so many. The work is that of so many heads and tiles.
    ///
    /// # Safety
    /// All lanes of the warp come here with the same numbers; the lengths are as the parameters say.
    #[inline(always)]
    pub(super) unsafe fn find(p: &ForwardParams, heads: u32, idx: u32) -> Option<Share> {
        // SAFETY: the caller's contract.
        unsafe {
            let mut own = 0u32;
            let mut at = special::lane_idx();
            while at < p.shape.batch {
                own = own.saturating_add(blocks_of(p, at));
                at += 32;
            }
            let least = divide(p.split.keys, KEYS);
            let part = blocks_of_part(sum(own), heads, p.split.parts, least);
            let most = if part > least {
                part.saturating_add(part / 4)
            } else {
                part
            };
            let mut n_divided = 0;
            let mut at = special::lane_idx();
            while at < p.shape.batch {
                let n = divide_into(blocks_of(p, at), most).n;
                n_divided += if n > 1 { n } else { 0 };
                at += 32;
            }
            let n_divided = sum(n_divided);
            if idx < n_divided {
                Share::among(p, most, true, idx)
            } else {
                Share::among(p, most, false, idx - n_divided)
            }
        }
    }

    /// The `idx`-th of the sequences that are divided, or of those that are not.
    #[inline(always)]
    unsafe fn among(p: &ForwardParams, most: u32, divided: bool, idx: u32) -> Option<Share> {
        let lane = special::lane_idx();
        let (mut first, mut before) = (0, 0);
        // SAFETY: the caller's contract; `first` and `before` are the same in all lanes.
        unsafe {
            while first < p.shape.batch {
                let sequence = first + lane;
                let mut own = Division { blocks: 0, n: 0 };
                if sequence < p.shape.batch {
                    own = divide_into(blocks_of(p, sequence), most);
                }
                let n = if (own.n > 1) == divided { own.n } else { 0 };
                let end = before + sum_up_to(n);
                let begin = end - n;
                // At most one lane has it.
                let is_its = (idx >= begin) & (idx < end);
                if shuffle::vote_any(is_its) {
                    let of_it = |x: u32| sum(if is_its { x } else { 0 });
                    let (blocks, n) = (of_it(own.blocks), of_it(own.n));
                    return Some(Share {
                        sequence: of_it(sequence),
                        split: of_it(idx.wrapping_sub(begin)),
                        split_keys: divide(blocks + n - 1, n).max(1) * KEYS,
                    });
                }
                before = shuffle::shuffle_idx_u32(end, 31);
                first += 32;
            }
        }
        None
    }
}

/// Blocks of keys of a sequence.
#[inline(always)]
unsafe fn blocks_of(p: &ForwardParams, sequence: u32) -> u32 {
    // SAFETY: the sequence exists.
    let keys = unsafe { lengths::rows_k(&p.lengths, &p.shape, sequence) };
    keys.len.div_ceil(KEYS)
}

/// Into splits of at most so many blocks.
#[inline(always)]
fn divide_into(blocks: u32, most: u32) -> Division {
    let n = divide(blocks.saturating_add(most - 1), most);
    Division {
        blocks,
        n: if n > 1 { n } else { 1 },
    }
}

/// The sum over the lanes up to the lane's own.
#[inline(always)]
unsafe fn sum_up_to(x: u32) -> u32 {
    let lane = special::lane_idx();
    let mut sum = x;
    for distance in [1, 2, 4, 8, 16] {
        // SAFETY: all lanes of the warp come here.
        let before = unsafe { shuffle::shuffle_idx_u32(sum, lane.wrapping_sub(distance) % 32) };
        sum += if lane >= distance { before } else { 0 };
    }
    sum
}

/// The sum over all lanes.
#[inline(always)]
unsafe fn sum(x: u32) -> u32 {
    let mut sum = x;
    for mask in [1, 2, 4, 8, 16] {
        // SAFETY: all lanes of the warp come here.
        sum = sum.saturating_add(unsafe { shuffle::shuffle_bfly_u32(sum, mask) });
    }
    sum
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::attention::split_kv::n_splits;
    use crate::emu::{self, GlobalMemory, Launch, Options};
    use crate::spec::{Constant, Spec};
    use std::sync::Mutex;

    const HEADS: u32 = 8;

    /// The shares that blocks find: sequence, split, keys of a split; of those that find none, nothing.
    fn found(lens: &[i32], parts: u32, seed: u64) -> Vec<Option<[u32; 3]>> {
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
        let launch = Launch {
            grid,
            threads: 32,
            shared_bytes: 0,
            resident_blocks: 4,
            blocks_per_sm: 1,
            spec: Spec::PLAIN.with(Constant::Lengths).with(Constant::SplitKv),
        };
        emu::run(&launch, &Options::seeded(seed), &mut memory, &|| {
            let idx = special::block_idx_x();
            // SAFETY: all lanes come here; the lengths are there.
            let share = unsafe { Share::find(&p, HEADS, idx) };
            if special::lane_idx() == 0 {
                let words = share.map(|share| [share.sequence, share.split, share.split_keys]);
                shares.lock().unwrap()[idx as usize] = words;
            }
        })
        .unwrap_or_else(|fault| panic!("{fault}"));
        shares.into_inner().unwrap()
    }

    #[test]
    fn every_split_of_every_sequence_is_found_once() {
        // More sequences than lanes, too.
        for (n, parts) in [
            (1, 264),
            (5, 264),
            (33, 264),
            (64, 2),
            (257, 264),
            (300, 2112),
        ] {
            let len = |at: i32| match at % 7 {
                0 => 0,
                1 => at * 7919 % (1 << 18),
                _ => at * 911 % 3000,
            };
            let lens: Vec<i32> = (3..n + 3).map(len).collect();
            let shares = found(&lens, parts, n as u64);
            let first_none = shares.iter().position(Option::is_none);
            let n_found = first_none.unwrap_or(shares.len());
            assert!(shares[n_found..].iter().all(Option::is_none), "{n}");
            for (sequence, &len) in lens.iter().enumerate() {
                let own = shares.iter().flatten();
                let own: Vec<_> = own.filter(|share| share[0] == sequence as u32).collect();
                let splits: Vec<u32> = own.iter().map(|share| share[1]).collect();
                assert!(
                    splits.iter().copied().eq(0..splits.len() as u32),
                    "{n}: {own:?}"
                );
                let keys = own[0][2];
                assert!(keys.is_multiple_of(KEYS) && own.iter().all(|share| share[2] == keys));
                // The last ones may be left without keys, as all before them are equally long.
                assert!(
                    own.len() >= n_splits(len as u32, keys) as usize,
                    "{n}: {own:?}"
                );
            }
        }
    }
}
