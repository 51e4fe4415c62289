//! Rings of stages in shared memory, through which roles hand tiles on: the barriers of a ring, and a role's place in it.

use crate::ptx::mbarrier;

/// Two barriers for each stage of a ring: one says that it is full, the other that it is empty.
#[derive(Clone, Copy)]
pub struct Barriers {
    base: u32,
    stages: u32,
}

impl Barriers {
    /// The barriers of this many stages from this address on.
    #[inline(always)]
    pub const fn new(base: u32, stages: u32) -> Self {
        Barriers { base, stages }
    }

    /// The barrier that says that stage `i` has been filled.
    #[inline(always)]
    pub const fn full(self, i: u32) -> u32 {
        self.base + i * 8
    }

    /// The barrier that says that stage `i` may be filled again.
    #[inline(always)]
    pub const fn empty(self, i: u32) -> u32 {
        self.base + (self.stages + i) * 8
    }

    /// The address after the ring's barriers.
    #[inline(always)]
    pub const fn end(self) -> u32 {
        self.base + self.stages * 16
    }

    /// The ring of as many stages that lies so many such rings behind.
    #[inline(always)]
    pub const fn behind(self, n: u32) -> Self {
        Barriers {
            base: self.base + n * self.stages * 16,
            ..self
        }
    }

    /// Makes the barriers: so many arrivals fill a stage, so many empty it.
    ///
    /// # Safety
    /// One thread does, before all others meet it.
    #[inline(always)]
    pub unsafe fn make(self, full_count: u32, empty_count: u32) {
        for i in 0..self.stages {
            // SAFETY: the caller's contract.
            unsafe {
                mbarrier::mbarrier_init(self.full(i), full_count);
                mbarrier::mbarrier_init(self.empty(i), empty_count);
            }
        }
    }

    /// Waits until a stage has been filled.
    ///
    /// # Safety
    /// The barriers have been made.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn await_full(self, at: Ring) {
        // SAFETY: the caller's contract.
        unsafe { mbarrier::mbarrier_wait(self.full(at.stage), at.parity) }
    }

    /// Waits until a stage may be filled; in the first round all may.
    ///
    /// # Safety
    /// The barriers have been made.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub unsafe fn await_empty(self, at: Ring) {
        // SAFETY: the caller's contract.
        unsafe { mbarrier::mbarrier_wait(self.empty(at.stage), at.parity ^ 1) }
    }
}

/// A stage, and the parity of the ring's round: of the phase in which the stage is filled.
#[derive(Clone, Copy)]
pub struct Ring {
    stages: u32,
    /// Which stage.
    pub stage: u32,
    /// 0 in the first round, 1 in the second, 0 in the third.
    pub parity: u32,
}

impl Ring {
    /// The first of this many stages in the first round.
    #[inline(always)]
    pub const fn start(stages: u32) -> Self {
        Ring {
            stages,
            stage: 0,
            parity: 0,
        }
    }

    /// The place of the `idx`-th use of a ring of this many stages.
    #[inline(always)]
    pub const fn at(stages: u32, idx: u32) -> Self {
        Ring {
            stages,
            stage: idx % stages,
            parity: idx / stages % 2,
        }
    }

    /// Goes on to the next stage.
    #[inline(always)]
    pub fn advance(&mut self) {
        let last = self.stage == self.stages - 1;
        self.stage = if last { 0 } else { self.stage + 1 };
        self.parity ^= last as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 bytes each, of all stages, one behind the other.
    #[test]
    fn barriers_do_not_overlap() {
        for stages in 1..5 {
            let barriers = Barriers::new(1024, stages);
            let full = (0..stages).map(|stage| barriers.full(stage));
            let empty = (0..stages).map(|stage| barriers.empty(stage));
            let expected = (1024..1024 + stages * 16).step_by(8);
            assert!(full.chain(empty).eq(expected));
            assert_eq!(barriers.end(), 1024 + stages * 16);
        }
    }

    #[test]
    fn a_ring_goes_round() {
        for stages in 1..5 {
            let mut ring = Ring::start(stages);
            for idx in 0..4 * stages {
                let at = Ring::at(stages, idx);
                assert_eq!((at.stage, at.parity), (idx % stages, idx / stages % 2));
                assert_eq!((ring.stage, ring.parity), (at.stage, at.parity));
                ring.advance();
            }
        }
    }
}
