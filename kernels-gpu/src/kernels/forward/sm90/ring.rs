//! The place of a role in a ring of stages.

/// A stage, and the parity of the ring's round: of the phase in which the stage is filled.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    stages: u32,
    /// Which stage.
    pub(super) stage: u32,
    /// 0 in the first round, 1 in the second, 0 in the third.
    pub(super) parity: u32,
}

impl Ring {
    /// The first of so many stages in the first round.
    #[inline(always)]
    pub(super) const fn start(stages: u32) -> Self {
        Ring {
            stages,
            stage: 0,
            parity: 0,
        }
    }

    /// Goes on to the next stage.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        let last = self.stage == self.stages - 1;
        self.stage = if last { 0 } else { self.stage + 1 };
        self.parity ^= last as u32;
    }
}
