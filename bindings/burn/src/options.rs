//! The options of a call: mask, scale, order of sums.

use ferroflash::{Mask, Order};

/// Mask, scale and order of one call.
///
/// ```
/// use burn_ferroflash::{Mask, Options};
///
/// let causal = Options::new(Mask::Causal);
/// let full = Options::new(Mask::Full).softmax_scale(0.125);
/// // Each query sees itself and the 1023 keys before it.
/// let sliding = Options::new(Mask::Window { left: Some(1023), right: Some(0) });
/// # let _ = (causal, full, sliding);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Which keys a query sees. Masks are aligned to the bottom right: query `i` stands at key
    /// `i + seqlen_k − seqlen_q`.
    pub mask: Mask,
    /// The factor of the scores; `None`: 1/√head_dim.
    pub softmax_scale: Option<f32>,
    /// In which order the gradient of q is added up: a fixed one, unless set otherwise.
    pub order: Order,
}

impl Options {
    /// This mask, scale 1/√head_dim, deterministic.
    pub const fn new(mask: Mask) -> Options {
        Options {
            mask,
            softmax_scale: None,
            order: Order::Deterministic,
        }
    }

    /// With this factor of the scores: greater than 0 and finite.
    #[must_use]
    pub const fn softmax_scale(self, softmax_scale: f32) -> Options {
        Options {
            softmax_scale: Some(softmax_scale),
            ..self
        }
    }

    /// With this order of the sums of the gradient of q.
    #[must_use]
    pub const fn order(self, order: Order) -> Options {
        Options { order, ..self }
    }
}
