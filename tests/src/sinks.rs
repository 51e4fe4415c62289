//! Sinks of heads: which numbers they are.

use ferroflash::Dtype;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::inputs::round;

/// Whether heads have sinks, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sinks {
    /// None.
    Absent,
    /// About as large as scores.
    Near,
    /// So far above all scores that no key has any weight.
    Above,
    /// So far below that no sink has any.
    Below,
    /// Of one head near, of the next above, of the next below, and of the next −∞.
    Mixed,
    /// −∞, as if there were none.
    Nothing,
}

/// All but [`Sinks::Absent`], those that show most more often.
pub const KINDS: [Sinks; 7] = [
    Sinks::Near,
    Sinks::Mixed,
    Sinks::Above,
    Sinks::Near,
    Sinks::Below,
    Sinks::Mixed,
    Sinks::Nothing,
];

impl Sinks {
    /// Those of so many heads, numbers of f32.
    pub fn of_heads(self, heads: usize, seed: u64) -> Option<Vec<f64>> {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(2 << 32));
        let mut of_head = |head: usize| {
            let near = rng.random_range(-3.0..3.0);
            let distance = match (self, head % 4) {
                (Sinks::Above, _) => 300.0,
                (Sinks::Below, _) => -300.0,
                (Sinks::Mixed, 1) => 25.0,
                (Sinks::Mixed, 2) => -25.0,
                (Sinks::Nothing, _) | (Sinks::Mixed, 3) => f64::NEG_INFINITY,
                _ => 0.0,
            };
            round(near + distance, Dtype::F32)
        };
        (self != Sinks::Absent).then(|| (0..heads).map(&mut of_head).collect())
    }
}
