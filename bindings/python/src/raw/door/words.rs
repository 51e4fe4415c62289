//! A call without its memory, as words: what plans are found by.

use super::view::MOST_DIMS;

/// Three tensors and six lengths, two words each and two for each dimension; then numbers.
const MOST_WORDS: usize = 9 * (2 + 2 * MOST_DIMS) + 8;

/// The words of a call.
#[derive(Clone, Copy)]
pub(super) struct Words {
    n: usize,
    words: [i64; MOST_WORDS],
}

impl Words {
    pub(super) fn new() -> Words {
        let words = [0; MOST_WORDS];
        Words { n: 0, words }
    }

    pub(super) fn push(&mut self, word: i64) {
        self.words[self.n] = word;
        self.n += 1;
    }

    pub(super) fn extend(&mut self, words: &[i64]) {
        for &word in words {
            self.push(word);
        }
    }

    pub(super) fn as_slice(&self) -> &[i64] {
        &self.words[..self.n]
    }
}

/// What a call says beside tensors.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    pub(super) max_seqlen_q: Option<i64>,
    pub(super) max_seqlen_k: Option<i64>,
    pub(super) softmax_scale: Option<f64>,
    pub(super) left: Option<i64>,
    pub(super) right: Option<i64>,
    pub(super) num_splits: i64,
}

impl Numbers {
    /// Two calls have the same words where they say the same. `exact`: products of f32 are exact.
    pub(super) fn spell(&self, exact: bool, words: &mut Words) {
        let scale = self.softmax_scale.map(|scale| scale.to_bits() as i64);
        let numbers = [
            self.max_seqlen_q,
            self.max_seqlen_k,
            scale,
            self.left,
            self.right,
        ];
        let mut given = i64::from(exact);
        for (at, number) in numbers.iter().enumerate() {
            given |= i64::from(number.is_some()) << (at + 1);
        }
        words.push(given);
        words.extend(&numbers.map(Option::unwrap_or_default));
        words.push(self.num_splits);
    }
}
