//! Caches in 8 bits: the scales of rows.

use ferroflash::Fp8Kv;
use rand::Rng;

use super::AppendCase;

/// Scales of k and of v, or of one of them.
#[derive(Clone, Debug)]
pub struct Scales {
    of: Fp8Kv,
    /// `[entries, heads_k]`; NaN where no new row wants one.
    pub numbers: Vec<f32>,
}

impl AppendCase {
    /// Scales, if the cache is in 8 bits: some so small that numbers are too large, and some so large that numbers become subnormal.
    pub fn scales(&self, of_tensor: u64) -> Option<Scales> {
        let of = self.fp8_kv?;
        let entries = match (of, self.page_size) {
            (Fp8Kv::PerPage, Some(page_size)) => self.n_pages(page_size),
            _ => self.batch,
        };
        let mut scales = Scales {
            of,
            numbers: vec![f32::NAN; entries * self.heads_k],
        };
        let mut rng = self.rng(of_tensor);
        for (sequence, own) in self.sequences().iter().enumerate() {
            for row in own.before..own.before + own.len {
                let first = self.entry(of, sequence, row) * self.heads_k;
                for number in &mut scales.numbers[first..first + self.heads_k] {
                    *number = [0.004, 0.01, 0.25, 90.0][rng.random_range(0..4)]
                        * rng.random_range(0.5..1.5f32);
                }
            }
        }
        Some(scales)
    }

    /// The scale of a row of a sequence and a head.
    pub fn scale_of(&self, scales: &Scales, sequence: usize, row: usize, head: usize) -> f32 {
        scales.numbers[self.entry(scales.of, sequence, row) * self.heads_k + head]
    }

    fn entry(&self, of: Fp8Kv, sequence: usize, row: usize) -> usize {
        match (of, self.page_size) {
            (Fp8Kv::PerPage, Some(page_size)) => self.page_of(page_size, sequence, row),
            _ => sequence,
        }
    }
}
