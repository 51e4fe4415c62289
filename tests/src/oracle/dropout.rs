//! Which weights are dropped, worked out from the definition: Philox4x32-10 as its authors write it (Salmon et al. 2011, section 3.2), and the place of each
//! weight's byte as `ProblemBuilder::dropout` and the kernels' crate say. Numbers are of 128 bits, so nothing is cut but where a modulus says so.

/// 2³².
const WORD: u128 = 1 << 32;

/// The generator: ten times a substitution, with keys that grow by the golden ratio and by √3 − 1.
pub fn philox(counter: [u128; 4], key: [u128; 2]) -> [u128; 4] {
    (0..10).fold(counter, |[r0, l0, r1, l1], round| {
        let key = |half: usize, step: u128| (key[half] + round * step) % WORD;
        let (m0, m1) = (0xD251_1F53 * r0, 0xCD9E_8D57 * r1);
        [
            (m1 / WORD) ^ l0 ^ key(0, 0x9E37_79B9),
            m1 % WORD,
            (m0 / WORD) ^ l1 ^ key(1, 0xBB67_AE85),
            m0 % WORD,
        ]
    })
}

/// The random byte of a weight. `head` counts through the batch.
pub fn byte([seed, offset]: [u64; 2], head: usize, query: usize, key: usize) -> u32 {
    let (seed, offset) = (u128::from(seed), u128::from(offset));
    let patch = |x: usize| (4 * (x / 16) + x / 2 % 4) as u128;
    let counter = [head as u128, patch(key), offset % WORD, patch(query)];
    let words = philox(counter, [seed % WORD, (seed / WORD) ^ (offset / WORD)]);
    let word = words[2 * (query % 2) + key % 2];
    let place = query / 8 % 2 + 2 * (key / 8 % 2);
    (word / 256_u128.pow(place as u32) % 256) as u32
}

/// Which weights are kept, and what they are divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Weights whose byte is below this are kept.
    pub kept_bytes: u32,
    /// Seed and offset.
    pub rng: [u64; 2],
}

impl Dropout {
    /// What a weight is multiplied by: 0, or 1 / the share that is kept.
    pub fn factor(&self, head: usize, query: usize, key: usize) -> f64 {
        match byte(self.rng, head, query, key) < self.kept_bytes {
            true => 256.0 / f64::from(self.kept_bytes),
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the authors' implementation, Random123: `kat_vectors`.
    #[test]
    fn the_generator_gives_the_known_answers() {
        let ones = WORD - 1;
        for (counter, key, answer) in [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [ones; 4],
                [ones; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox(counter, key), answer);
        }
    }

    /// Each byte of a call belongs to one weight of its patch.
    #[test]
    fn weights_of_a_span_have_bytes_of_their_own() {
        let mut seen = std::collections::HashSet::new();
        for (query, key) in (0..16).flat_map(|query| (0..16).map(move |key| (query, key))) {
            let patch = |x: usize| x / 2 % 4;
            let word = 2 * (query % 2) + key % 2;
            let place = query / 8 + 2 * (key / 8);
            assert!(seen.insert((patch(query), patch(key), word, place)));
        }
        assert_eq!(seen.len(), 256);
    }
}
