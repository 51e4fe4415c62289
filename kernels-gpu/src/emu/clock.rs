//! Who knows of what: the order of accesses, by vector clocks.
//!
//! A warp's clock advances where all its lanes meet in memory: `bar.warp.sync` and the barriers of a block. An
//! access is stamped with it. Of its own block a warp knows, per warp, up to which clock everything is ordered
//! before it; of other blocks it knows what it acquired. A single lane that releases or acquires through global
//! memory does so for itself: its `sub` clock tells its accesses before the release from those after it, and what
//! it acquired becomes the warp's only where the lanes next meet. `shfl`, `vote`, `mma` and `ldmatrix` exchange
//! registers and order nothing.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::fault::{Access, Thread};
use super::site::{self, Site};

/// Most warps of a block.
pub(super) const MAX_WARPS: usize = 32;
/// [`Stamp::lane`] of reads by several lanes, each for itself.
pub(super) const MANY: u8 = 255;
/// [`Stamp::lane`] of reads that the lanes made together, in one instruction: whatever one of them does next comes
/// after it.
pub(super) const TOGETHER: u8 = 254;

/// [`Stamp::warp`] of the copy engine. What it writes for a barrier bears the barrier's number as its lane and, as its
/// clock, the number of the phase, counted from 1: known to those who have waited for that phase and to nobody else.
pub(super) const ENGINE: u8 = 255;
/// [`Stamp::lane`] of what the copy engine stores: nobody comes to know of it within a launch.
pub(super) const STORED: u8 = 253;
/// Most barriers of a block that copies count on.
pub(super) const MOST_MBARRIERS: usize = 250;

/// When and by whom a place was accessed. Clock 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    pub block: u32,
    pub clock: u32,
    pub site: Site,
    pub sub: u16,
    pub warp: u8,
    pub lane: u8,
}

impl Stamp {
    pub fn access(&self) -> Access {
        let lane = (self.lane < TOGETHER).then_some(u32::from(self.lane));
        let thread = Thread {
            block: self.block,
            warp: match self.warp {
                ENGINE => Thread::ENGINE,
                warp => u32::from(warp),
            },
            lane: lane.filter(|_| self.warp != ENGINE),
        };
        let (instruction, at) = site::resolve(self.site);
        Access {
            thread,
            instruction,
            at,
        }
    }

    /// Whether the same lanes made both.
    pub fn same_lane(&self, other: &Stamp) -> bool {
        (self.block, self.warp, self.lane) == (other.block, other.warp, other.lane)
            && self.lane < TOGETHER
    }
}

/// What is ordered before a point, of any block.
#[derive(Clone, Debug, Default)]
pub(super) struct Knowledge {
    warps: BTreeMap<u32, [u32; MAX_WARPS]>,
    lanes: BTreeMap<(u32, u8, u8), (u32, u16)>,
}

impl Knowledge {
    fn is_empty(&self) -> bool {
        self.warps.is_empty() && self.lanes.is_empty()
    }

    pub fn join(&mut self, other: &Knowledge) {
        for (block, clocks) in &other.warps {
            join(self.warps.entry(*block).or_default(), clocks);
        }
        for (lane, time) in &other.lanes {
            let mine = self.lanes.entry(*lane).or_default();
            *mine = (*mine).max(*time);
        }
    }

    /// Takes up what the copy engine has done for a barrier in one of its phases.
    pub fn join_engine(&mut self, block: u32, mbarrier: u8, clock: u32) {
        let time = self.lanes.entry((block, ENGINE, mbarrier)).or_default();
        *time = (*time).max((clock, u16::MAX));
    }

    pub fn covers(&self, stamp: &Stamp) -> bool {
        let by_warp = stamp.warp != ENGINE
            && self
                .warps
                .get(&stamp.block)
                .is_some_and(|clocks| stamp.clock <= clocks[stamp.warp as usize]);
        let lane = (stamp.block, stamp.warp, stamp.lane);
        by_warp
            || self
                .lanes
                .get(&lane)
                .is_some_and(|time| (stamp.clock, stamp.sub) <= *time)
    }
}

fn join(mine: &mut [u32; MAX_WARPS], other: &[u32; MAX_WARPS]) {
    for (mine, other) in mine.iter_mut().zip(other) {
        *mine = (*mine).max(*other);
    }
}

/// What a warp, or a barrier, knows.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Of its own block: per warp, the clock up to which all is ordered before.
    pub own: [u32; MAX_WARPS],
    /// Of everything else.
    foreign: Rc<Knowledge>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock {
            own: [0; MAX_WARPS],
            foreign: Rc::default(),
        }
    }
}

impl Clock {
    pub fn join(&mut self, other: &Clock) {
        join(&mut self.own, &other.own);
        if !Rc::ptr_eq(&self.foreign, &other.foreign) && !other.foreign.is_empty() {
            Rc::make_mut(&mut self.foreign).join(&other.foreign);
        }
    }

    /// Takes over what one of the warp's lanes acquired.
    pub fn learn(&mut self, block: u32, knowledge: &Knowledge) {
        if let Some(clocks) = knowledge.warps.get(&block) {
            join(&mut self.own, clocks);
        }
        Rc::make_mut(&mut self.foreign).join(knowledge);
    }

    pub fn covers_foreign(&self, stamp: &Stamp) -> bool {
        self.foreign.covers(stamp)
    }

    /// What a lane of warp `stamp.warp` gives away when it releases at `stamp`: all that its warp knows, the warp's
    /// own accesses up to where the lanes last met, and of its own also those since then.
    pub fn release(&self, stamp: &Stamp) -> Knowledge {
        let mut given = (*self.foreign).clone();
        let mut own = self.own;
        own[stamp.warp as usize] = stamp.clock - 1;
        join(given.warps.entry(stamp.block).or_default(), &own);
        given.lanes.insert(
            (stamp.block, stamp.warp, stamp.lane),
            (stamp.clock, stamp.sub),
        );
        given
    }
}
