//! Who knows of what: the order of accesses, by vector clocks.
//!
//! A warp's clock advances where all its lanes meet in memory: `bar.warp.sync`, the barriers of a block, the wait for
//! products. An access is profiled with it. Of its own block a warp knows, per warp, up to which clock everything is
//! ordered before it. A single lane that releases or acquires, at a barrier in shared memory or through global memory,
//! does so for itself: the warp's `sub` clock, which advances with every lane's release, tells its accesses before the
//! release from those after it. So what was acquired is known per lane, too; it becomes the warp's where the lanes next
//! meet. `shfl`, `vote`, `mma` and `ldmatrix` exchange registers and order nothing.

use std::rc::Rc;

use super::fault::{Access, Thread};
use super::knowledge::{self, Knowledge};
use super::proxy::Proxy;
use super::site::{self, Site};

/// Most warps of a block.
pub(super) const MAX_WARPS: usize = 32;
/// [`Stamp::lane`] of reads that the lanes made together, in one instruction: whatever one of them does next comes
/// after it. Other warps must have heard of it from every lane.
pub(super) const TOGETHER: u8 = 254;

/// [`Stamp::warp`] of the copy engine. What it writes for a barrier bears the barrier's number as its lane and, as its
/// clock, the number of the phase, counted from 1: known to those who have waited for that phase and to nobody else.
pub(super) const ENGINE: u8 = 255;
/// [`Stamp::sub`] of what `st.async` wrote, beside the warp [`ENGINE`]: by the generic proxy. 0 for what the copy engine wrote.
pub(super) const BY_STORE: u16 = 1;
/// Most barriers of a block that copies count on.
pub(super) const MOST_MBARRIERS: usize = 240;
/// [`Stamp::lane`] of what the copy engine writes to global memory for the first thread of a block that stores through it;
/// the next one's is one higher. The clock is the number of the store, counted from 1: known to the thread when it has waited
/// for the store to be complete, and to whom it tells then.
pub(super) const FIRST_STORER: usize = MOST_MBARRIERS;
/// Most threads of a block that store through the copy engine.
pub(super) const MOST_STORERS: usize = 12;

/// A moment of a warp: its clock, and how many releases and fences of its lanes there have been since that advanced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time {
    pub clock: u32,
    pub sub: u16,
}

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
    #[inline]
    pub fn time(&self) -> Time {
        Time {
            clock: self.clock,
            sub: self.sub,
        }
    }

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
    #[inline]
    pub fn same_lane(&self, other: &Stamp) -> bool {
        (self.block, self.warp, self.lane) == (other.block, other.warp, other.lane)
            && self.lane < TOGETHER
    }
}

/// What a warp, or a barrier, knows.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Of its own block: per warp, the clock up to which all is ordered before.
    pub own: [u32; MAX_WARPS],
    /// Of everything else: other blocks, single lanes, the copy engine.
    foreign: Rc<Knowledge>,
}

impl Default for Clock {
    #[inline]
    fn default() -> Clock {
        Clock {
            own: [0; MAX_WARPS],
            foreign: Rc::default(),
        }
    }
}

impl Clock {
    #[inline]
    pub fn join(&mut self, other: &Clock) {
        knowledge::join_warps(&mut self.own, &other.own);
        if !Rc::ptr_eq(&self.foreign, &other.foreign) && !other.foreign.is_empty() {
            Rc::make_mut(&mut self.foreign).join(&other.foreign);
        }
    }

    /// Takes over what one of the warp's lanes acquired.
    #[inline]
    pub fn learn(&mut self, block: u32, knowledge: &Knowledge) {
        if let Some(clocks) = knowledge.warps_of(block) {
            knowledge::join_warps(&mut self.own, clocks);
        }
        Rc::make_mut(&mut self.foreign).join(knowledge);
    }

    /// Whether what one lane, or the copy engine, did is among what was acquired.
    #[inline]
    pub fn covers(&self, stamp: &Stamp) -> bool {
        self.foreign.covers(stamp)
    }

    /// What came before a fence for a proxy.
    #[inline]
    pub fn published(&self, proxy: Proxy) -> Option<&Rc<Knowledge>> {
        self.foreign.published(proxy)
    }

    /// Whether all that a warp of another block did up to this clock is among what was acquired.
    #[inline]
    pub fn covers_warp(&self, block: u32, warp: usize, clock: u32) -> bool {
        self.foreign.covers_warp(block, warp, clock)
    }

    /// Whether anything that another block did is among what was acquired.
    pub fn knows_of(&self, block: u32) -> bool {
        self.foreign.knows_of(block)
    }

    /// What is over.
    #[inline]
    pub fn over(&self) -> Option<&Rc<Knowledge>> {
        self.foreign.over()
    }

    /// What all lanes of a warp of a block give away together, who have met at this clock.
    pub fn release_warp(&self, block: u32, warp: usize, clock: u32) -> Knowledge {
        let mut given = (*self.foreign).clone();
        let mut own = self.own;
        own[warp] = clock;
        given.join_warps(block, &own);
        given
    }

    /// What a lane of warp `stamp.warp` gives away when it releases at `stamp`: all that its warp knows, the warp's
    /// own accesses up to where the lanes last met, and of the lane's own also those since then.
    pub fn release(&self, stamp: &Stamp) -> Knowledge {
        let mut given = (*self.foreign).clone();
        let mut own = self.own;
        own[stamp.warp as usize] = stamp.clock - 1;
        given.join_lane(stamp, &own);
        given
    }
}
