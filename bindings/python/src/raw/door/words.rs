//! A call without its memory, as words: the key of plans.

use std::sync::{PoisonError, RwLock};

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

/// The settings of a call other than tensors.
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
    /// Equal calls have equal words. `exact`: products of f32 are exact.
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

/// Codes for the numbers of calls: a node of autograd's graph keeps only one number of PyTorch's operator, dropout_p. A code is not a valid
/// probability, so no other call of that operator has one.
#[derive(Default)]
pub(super) struct Codes {
    numbers: RwLock<Vec<Numbers>>,
}

/// How many numbers have a code. A graph may keep its code forever, so a code is never reused.
const MOST_CODES: usize = 4096;

/// The code of the first numbers.
const FIRST_CODE: usize = 2;

impl Codes {
    /// The code of these numbers, known or new; `None` if no code is left.
    pub(super) fn code(&self, numbers: &Numbers) -> Option<f64> {
        let spelled = |numbers: &Numbers| {
            let mut words = Words::new();
            numbers.spell(false, &mut words);
            words
        };
        let words = spelled(numbers);
        let is_this = |known: &Numbers| spelled(known).as_slice() == words.as_slice();
        let mut known = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        let at = match known.iter().position(is_this) {
            Some(at) => at,
            None if known.len() == MOST_CODES => return None,
            None => {
                known.push(*numbers);
                known.len() - 1
            }
        };
        Some((FIRST_CODE + at) as f64)
    }

    /// The numbers with this code.
    pub(super) fn numbers(&self, code: f64) -> Option<Numbers> {
        let known = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        let at = (code as usize).checked_sub(FIRST_CODE)?;
        known.get(at).filter(|_| code.fract() == 0.0).copied()
    }
}
