//! Dynamic loss scaling, for f16: its smallest number is 6e-8, and gradients are often smaller.
//!
//! The loss is multiplied by the scale before the backward pass, the gradients are divided by it after. Where a gradient
//! overflows the step is skipped and the scale halved; after enough good steps it is doubled.

/// What a step does to the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Kept,
    Doubled,
    Halved,
}

/// The scale of the loss.
pub struct LossScale {
    scale: f64,
    /// Good steps in a row that double the scale.
    patience: usize,
    good_steps: usize,
}

impl LossScale {
    /// Starts at 2¹⁶, as PyTorch does.
    pub fn new(patience: usize) -> LossScale {
        LossScale {
            scale: 65_536.0,
            patience,
            good_steps: 0,
        }
    }

    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// A gradient was inf or NaN: the scale is halved.
    pub fn overflowed(&mut self) -> Change {
        self.scale /= 2.0;
        self.good_steps = 0;
        Change::Halved
    }

    /// All gradients were finite: the scale is doubled when enough such steps have come in a row.
    pub fn succeeded(&mut self) -> Change {
        self.good_steps += 1;
        if self.good_steps < self.patience {
            return Change::Kept;
        }
        self.scale *= 2.0;
        self.good_steps = 0;
        Change::Doubled
    }
}
