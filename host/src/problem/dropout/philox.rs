//! Philox4x32-10, number by number, and which of its bytes belongs to which weight: the CPU's own, and that of
//! [`dropout_mask`](crate::dropout_mask). The kernels' crate says in `attention/dropout.rs` how places are numbered.

use std::ops::Range;

use super::Dropout;

/// Four words of the generator.
fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let product = |multiplier: u32, x: u32| {
        let product = u64::from(multiplier) * u64::from(x);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (high_0, low_0) = product(0xD251_1F53, counter[0]);
        let (high_1, low_1) = product(0xCD9E_8D57, counter[2]);
        counter = [
            high_1 ^ counter[1] ^ key[0],
            low_1,
            high_0 ^ counter[3] ^ key[1],
            low_0,
        ];
        key[0] = key[0].wrapping_add(0x9E37_79B9);
        key[1] = key[1].wrapping_add(0xBB67_AE85);
    }
    counter
}

/// Positions that a patch's positions lie among.
const SPAN: usize = 16;

/// Which weights of a call are dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropper {
    key: [u32; 2],
    offset: u32,
    kept: u32,
    inverse_keep: f32,
}

impl Dropper {
    /// By a seed and an offset.
    pub(crate) fn new(dropout: Dropout, [seed, offset]: [u64; 2]) -> Dropper {
        Dropper {
            key: [seed as u32, (seed >> 32) as u32 ^ (offset >> 32) as u32],
            offset: offset as u32,
            kept: dropout.kept_bytes(),
            inverse_keep: 1.0 / dropout.keep_probability(),
        }
    }

    /// 1 / the share that is kept.
    pub(crate) fn inverse_keep(&self) -> f32 {
        self.inverse_keep
    }

    /// Calls `f` with every one of these keys whose weight in a row is dropped. Heads are counted through the batch.
    pub(crate) fn dropped_keys(
        &self,
        head: usize,
        query: usize,
        keys: Range<usize>,
        mut f: impl FnMut(usize),
    ) {
        let patch = |position: usize| (position / SPAN * 4 + position % SPAN / 2 % 4) as u32;
        let mut first = keys.start / SPAN * SPAN;
        while first < keys.end {
            let words: [[u32; 4]; 4] = std::array::from_fn(|i| {
                let counter = [head as u32, patch(first + 2 * i), self.offset, patch(query)];
                philox4x32_10(counter, self.key)
            });
            for key in keys.start.max(first)..keys.end.min(first + SPAN) {
                let word = words[key % 8 / 2][query % 2 * 2 + key % 2];
                let byte = word.to_le_bytes()[query / 8 % 2 + key / 8 % 2 * 2];
                if u32::from(byte) >= self.kept {
                    f(key);
                }
            }
            first += SPAN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the authors' implementation, Random123: `kat_vectors`.
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
            assert_eq!(philox4x32_10(counter, key), answer);
        }
    }

    #[test]
    fn keys_are_dropped_wherever_the_range_begins() {
        let dropper = Dropper::new(Dropout::of(0.5), [3, 1 << 40]);
        let dropped = |keys| {
            let mut all = Vec::new();
            dropper.dropped_keys(5, 21, keys, |key| all.push(key));
            all
        };
        let all = dropped(0..100);
        assert!(all.len() > 30 && all.len() < 70);
        for (begin, end) in [(0, 100), (7, 8), (15, 17), (16, 64), (3, 99), (9, 9)] {
            let some = all.iter().copied().filter(|key| (begin..end).contains(key));
            assert!(dropped(begin..end).into_iter().eq(some));
        }
    }
}
