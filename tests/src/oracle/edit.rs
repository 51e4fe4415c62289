//! Scores and masks of the user's own: what takes a score's place, and how far an implementation in f32 may be from it.

/// Where a score lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// Batch entry.
    pub batch: usize,
    /// Query head.
    pub head: usize,
    /// Query.
    pub query: usize,
    /// Key.
    pub key: usize,
}

/// What takes a score's place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edited {
    /// The new score.
    pub score: f64,
    /// Its derivative by the old one.
    pub slope: f64,
    /// What the rounding errors of a gradient scale with in place of `|slope|`: that, and more where the derivative has errors of its own.
    pub slope_size: f64,
    /// What the new score may be off.
    pub error: ScoreError,
}

/// What a score may be off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreError {
    /// Roundings of f32, in units of 2⁻²⁴.
    pub rounding: f64,
    /// Approximate functions.
    pub approximation: f64,
}

impl ScoreError {
    /// Of a product q · k that is no larger than this. Tensor cores add some products at a time, 16 or so, and cut each sum off: more products than 128
    /// lie off by more than the table of tolerances allows for.
    pub fn of_product(score: f64, head_dim: usize) -> ScoreError {
        let sums = (head_dim as f64 / 128.0).max(1.0);
        ScoreError {
            rounding: (1.0 + score) * sums,
            approximation: 0.0,
        }
    }

    /// The larger of both, in each respect.
    #[must_use]
    pub fn max(self, other: ScoreError) -> ScoreError {
        ScoreError {
            rounding: self.rounding.max(other.rounding),
            approximation: self.approximation.max(other.approximation),
        }
    }
}
