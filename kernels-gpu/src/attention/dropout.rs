//! Which weights are dropped: a random byte for each score, by Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
//!
//! A byte depends only on the seed, the offset, the head and the position of its score: so every kernel, every shape of tiles
//! and both passes drop the same weights. One call of Philox gives 16 bytes, for a *patch* of 4 queries and 4 keys:
//!
//! ```text
//! patch of a position x    4 ⌊x / 16⌋ + ⌊x / 2⌋ mod 4       positions 2c, 2c + 1, 2c + 8 and 2c + 9 of each 16
//! key                      seed mod 2³², ⌊seed / 2³²⌋ xor ⌊offset / 2³²⌋
//! counter                  batch · heads_q + head, patch of the key, offset mod 2³², patch of the query
//! word                     2 (query mod 2) + key mod 2
//! byte of the word         ⌊query / 8⌋ mod 2 + 2 (⌊key / 8⌋ mod 2)      the lowest is 0
//! ```
//!
//! A weight is kept if its byte is below a threshold. A patch is the part of two adjacent fragments that two lanes hold, half each, whether the rows
//! are queries or keys: see `kernels/common/dropout.rs`. The counter's first and third number are the same for all scores of a head, and only they
//! are multiplied in the first of the ten rounds: [`Head`] is the state after that round.

/// The multipliers of the generator's two halves.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// The key increments of a round.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
/// Rounds.
const ROUNDS: u32 = 10;

/// One round.
#[inline(always)]
const fn round([a, b, c, d]: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let left = MULTIPLIERS[0] as u64 * a as u64;
    let right = MULTIPLIERS[1] as u64 * c as u64;
    [
        (right >> 32) as u32 ^ b ^ key[0],
        right as u32,
        (left >> 32) as u32 ^ d ^ key[1],
        left as u32,
    ]
}

/// The key of the next round.
#[inline(always)]
const fn next([left, right]: [u32; 2]) -> [u32; 2] {
    [left.wrapping_add(WEYL[0]), right.wrapping_add(WEYL[1])]
}

/// Rounds `first ..` of the generator.
#[inline(always)]
const fn rounds(mut counter: [u32; 4], mut key: [u32; 2], first: u32) -> [u32; 4] {
    let mut i = first;
    while i < ROUNDS {
        counter = round(counter, key);
        key = next(key);
        i += 1;
    }
    counter
}

/// The patch of a position, along one side.
#[inline(always)]
pub const fn patch(position: u32) -> u32 {
    position / 16 * 4 + position / 2 % 4
}

/// The state that the bytes of a call depend on, in addition to head and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    offset: u32,
}

impl Stream {
    /// The state of a seed and an offset, each with its lower half first.
    #[inline(always)]
    pub const fn new(seed: [u32; 2], offset: [u32; 2]) -> Stream {
        Stream {
            key: [seed[0], seed[1] ^ offset[1]],
            offset: offset[0],
        }
    }

    /// The state of one head, counted through the batch.
    #[inline(always)]
    pub const fn of_head(self, head: u32) -> Head {
        Head {
            counter: round([head, 0, self.offset, 0], self.key),
            key: next(self.key),
        }
    }
}

/// The random bytes of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    counter: [u32; 4],
    key: [u32; 2],
}

impl Head {
    /// The words of a patch.
    #[inline(always)]
    pub const fn words(self, query_patch: u32, key_patch: u32) -> [u32; 4] {
        let [a, b, c, d] = self.counter;
        rounds([a ^ key_patch, b, c ^ query_patch, d], self.key, 1)
    }
}

/// Bytes of which the first bit says whether the byte of `word` is at the threshold or above it. That is in each byte its last seven bits, `low`, and the
/// first bit where it is 0, `high`: see [`crate::params::DropoutParams`].
#[inline(always)]
pub const fn dropped(word: u32, low: u32, high: u32) -> u32 {
    // The first bits say where the last seven reach those of the threshold: no byte borrows from the next.
    let reached = (word | 0x8080_8080) - low;
    (word & reached) | (high & (word | reached))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::DropoutParams;

    /// Test vectors of the authors' implementation, Random123: `kat_vectors`.
    #[test]
    fn the_generator_gives_the_known_answers() {
        for (counter, key, answer) in [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(rounds(counter, key, 0), answer);
            let stream = Stream {
                key,
                offset: counter[2],
            };
            let head = stream.of_head(counter[0]);
            assert_eq!(head.words(counter[3], counter[1]), answer);
        }
    }

    #[test]
    fn both_halves_of_seed_and_offset_count() {
        let words = |seed, offset| Stream::new(seed, offset).of_head(5).words(6, 7);
        let all = [
            words([1, 2], [3, 4]),
            words([0, 2], [3, 4]),
            words([1, 0], [3, 4]),
            words([1, 2], [0, 4]),
            words([1, 2], [3, 0]),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one));
        }
    }

    #[test]
    fn bytes_are_dropped_from_the_threshold_on() {
        for kept in 1..=255 {
            let DropoutParams { low, high, .. } = DropoutParams::keeping(kept);
            for byte in 0..=255u32 {
                // Beside neighbours that would borrow or carry.
                for others in [0, 0xff, 0x80, 0x7f] {
                    let word = byte << 16 | others << 24 | others << 8 | others;
                    let is_dropped = dropped(word, low, high) >> 23 & 1 != 0;
                    assert_eq!(is_dropped, byte >= kept, "{byte} {kept} {others}");
                }
            }
        }
    }
}
