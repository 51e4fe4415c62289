//! Dropout of a case: how many weights, by which seed and offset, and how a call is given them.

use ferroflash::Inputs;

use crate::oracle;

/// How a call is given seed and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rng {
    /// As numbers.
    Values,
    /// As memory.
    State,
}

/// Which weights are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability.
    pub p: f32,
    /// Seed and offset.
    pub rng: [u64; 2],
    /// How they are given.
    pub given: Rng,
}

impl Dropout {
    /// The one of this number: few weights and many; seeds and offsets of 32 bits and of more.
    pub fn nth(n: usize) -> Dropout {
        let p = [0.1, 0.5, 0.25, 0.9, 0.002, 0.7][n % 6];
        let seed = [1, 0x5eed_1234_5678_9abc, u64::MAX, 0][n % 4];
        let offset = [0, 4, 1 << 34 | 12, u64::MAX][n / 2 % 4];
        Dropout {
            p,
            rng: [seed, offset],
            given: [Rng::Values, Rng::State][n % 3 / 2],
        }
    }

    /// As the oracle takes it.
    pub fn of_oracle(self) -> oracle::Dropout {
        oracle::Dropout {
            kept_bytes: 256 - (f64::from(self.p) * 256.0).round().clamp(1.0, 255.0) as u32,
            rng: self.rng,
        }
    }

    /// A call's inputs with seed and offset.
    pub fn give<'a>(&'a self, inputs: Inputs<'a>) -> Inputs<'a> {
        let [seed, offset] = self.rng;
        match self.given {
            Rng::Values => inputs.dropout_rng(seed, offset),
            Rng::State => inputs.dropout_state(&self.rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroflash::{Dtype, Problem, dropout_mask};

    use super::*;

    fn problem(p: f32, [batch, heads, seqlen_q, seqlen_k]: [usize; 4]) -> Problem {
        let builder = Problem::builder(Dtype::Bf16).batch(batch).heads(heads);
        let builder = builder.seqlen_q(seqlen_q).seqlen_k(seqlen_k);
        builder.head_dim(64).dropout(p).build().unwrap()
    }

    #[test]
    fn the_librarys_mask_is_the_oracles() {
        for n in 0..12 {
            let dropout = Dropout::nth(n);
            let [batch, heads, seqlen_q, seqlen_k] = [2, 3, 37, 70];
            let of_oracle = dropout.of_oracle();
            let [seed, offset] = dropout.rng;
            let problem = problem(dropout.p, [batch, heads, seqlen_q, seqlen_k]);
            let mask = dropout_mask(&problem, seed, offset).unwrap();
            assert_eq!(mask.len(), batch * heads * seqlen_q * seqlen_k);
            for (at, kept) in mask.into_iter().enumerate() {
                let (row, key) = (at / seqlen_k, at % seqlen_k);
                let factor = of_oracle.factor(row / seqlen_q, row % seqlen_q, key);
                assert_eq!(kept, factor > 0.0, "{n} {at}");
            }
        }
    }

    /// So many weights are kept as should be, within five standard deviations; and of pairs of neighbours, along each side and one patch further on, as many
    /// as if they knew nothing of each other.
    #[test]
    fn weights_are_dropped_often_enough_and_independently() {
        const N: usize = 512;
        for (p, seed) in [(0.1, 0), (0.5, 1), (0.25, 2), (0.75, u64::MAX)] {
            let problem = problem(p, [1, 2, N, N]);
            let keep = f64::from(problem.dropout().unwrap().keep_probability());
            let mask = dropout_mask(&problem, seed, seed / 3).unwrap();
            let n = mask.len() as f64;
            let kept = mask.iter().filter(|&&kept| kept).count() as f64;
            let deviation = (n * keep * (1.0 - keep)).sqrt();
            assert!((kept - n * keep).abs() < 5.0 * deviation, "{p}: {kept}");

            let at = |head: usize, query: usize, key: usize| mask[(head * N + query) * N + key];
            for (queries, keys) in [
                (0, 1),
                (1, 0),
                (1, 1),
                (0, 8),
                (8, 0),
                (0, 2),
                (2, 0),
                (16, 16),
            ] {
                let mut counts = [[0.0; 2]; 2];
                for (query, key) in
                    (0..N - queries).flat_map(|q| (0..N - keys).map(move |k| (q, k)))
                {
                    let pair = [at(0, query, key), at(0, query + queries, key + keys)];
                    counts[usize::from(pair[0])][usize::from(pair[1])] += 1.0;
                }
                assert!(
                    chi_square(counts) < 25.0,
                    "{p} {queries} {keys}: {counts:?}"
                );
            }
            let mut heads = [[0.0; 2]; 2];
            for (query, key) in (0..N).flat_map(|query| (0..N).map(move |key| (query, key))) {
                heads[usize::from(at(0, query, key))][usize::from(at(1, query, key))] += 1.0;
            }
            assert!(chi_square(heads) < 25.0, "{p}: {heads:?}");
        }
    }

    /// Of a table of two by two: with one degree of freedom 25 is five standard deviations.
    fn chi_square(counts: [[f64; 2]; 2]) -> f64 {
        let total: f64 = counts.iter().flatten().sum();
        let of_row = |row: usize| counts[row][0] + counts[row][1];
        let of_column = |column: usize| counts[0][column] + counts[1][column];
        let cells = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let terms = cells.map(|(row, column)| {
            let expected = of_row(row) * of_column(column) / total;
            (counts[row][column] - expected).powi(2) / expected
        });
        terms.iter().sum()
    }

    #[test]
    fn neighbours_that_know_of_each_other_are_found() {
        assert!(chi_square([[1000.0, 1200.0], [1200.0, 1000.0]]) > 25.0);
    }
}
