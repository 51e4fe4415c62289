//! What is ordered before a point: of each block, what its warps, lanes and the copy engine did.
//!
//! Threads tell one another all they know, over and over, and mostly know it already. So what is known of a block is shared by all
//! who know the same of it: joining that costs a comparison of pointers.

use std::rc::Rc;

use super::clock::{ENGINE, MAX_WARPS, Stamp, Time};
use super::machine::LANES;
use super::proxy::{N_FENCED, Proxy};

/// What is ordered before a point, of any block.
#[derive(Clone, Debug, Default)]
pub(super) struct Knowledge {
    /// By block, ascending.
    blocks: Vec<(u32, Rc<OfBlock>)>,
    /// By proxy, what of all this came before a fence for it. Of what came before a fence, nothing more is told.
    published: [Option<Rc<Knowledge>>; N_FENCED],
    /// What is over, and no more than that: places that it accessed may be overwritten, but not read.
    over: Option<Rc<Knowledge>>,
}

/// What is known of a block.
#[derive(Clone, Debug, Default)]
struct OfBlock {
    /// Per warp, up to which clock all that its lanes did.
    warps: [u32; MAX_WARPS],
    /// By warp, ascending, where it is more than that: per lane, up to when what it did.
    lanes: Vec<(u8, [Time; LANES])>,
    /// By barrier: up to which clock what the copy engine did; nothing of those behind the end.
    engine: Vec<u32>,
}

impl OfBlock {
    #[inline]
    fn times(&self, warp: u8) -> Option<&[Time; LANES]> {
        let at = self.lanes.binary_search_by_key(&warp, |lanes| lanes.0);
        Some(&self.lanes[at.ok()?].1)
    }

    fn times_mut(&mut self, warp: u8) -> &mut [Time; LANES] {
        let at = self.lanes.binary_search_by_key(&warp, |lanes| lanes.0);
        let at = at.unwrap_or_else(|at| {
            self.lanes.insert(at, (warp, Default::default()));
            at
        });
        &mut self.lanes[at].1
    }

    /// Whether `other` has in it all of this.
    fn is_within(&self, other: &OfBlock) -> bool {
        let most = |engine: &[u32], at: usize| engine.get(at).copied().unwrap_or(0);
        let lanes_are = |(warp, times): &(u8, [Time; LANES])| {
            let (all, theirs) = (other.warps[usize::from(*warp)], other.times(*warp));
            times.iter().enumerate().all(|(lane, time)| {
                time.clock <= all || theirs.is_some_and(|theirs| *time <= theirs[lane])
            })
        };
        self.warps.iter().zip(&other.warps).all(|(a, b)| a <= b)
            && (self.engine.iter().enumerate()).all(|(at, clock)| *clock <= most(&other.engine, at))
            && self.lanes.iter().all(lanes_are)
    }

    fn join(&mut self, other: &OfBlock) {
        join_warps(&mut self.warps, &other.warps);
        if self.engine.len() < other.engine.len() {
            self.engine.resize(other.engine.len(), 0);
        }
        for (mine, clock) in self.engine.iter_mut().zip(&other.engine) {
            *mine = (*mine).max(*clock);
        }
        for (warp, times) in &other.lanes {
            for (mine, time) in self.times_mut(*warp).iter_mut().zip(times) {
                *mine = (*mine).max(*time);
            }
        }
        // Of most warps all lanes are known by now.
        let warps = &self.warps;
        self.lanes.retain(|(warp, times)| {
            let known = warps[usize::from(*warp)];
            times.iter().any(|time| known < time.clock)
        });
    }
}

impl Knowledge {
    pub fn is_empty(&self) -> bool {
        let no_fence = self.published.iter().all(Option::is_none);
        self.blocks.is_empty() && no_fence && self.over.is_none()
    }

    /// The same, without what was published of it, and what is over besides.
    pub fn unpublished(self) -> Knowledge {
        Knowledge {
            published: Default::default(),
            over: None,
            ..self
        }
    }

    /// That all this is over.
    pub fn into_over(mut self) -> Knowledge {
        let before = self.over.take();
        let mut over = self.unpublished();
        if let Some(before) = before {
            over.join(&before);
        }
        Knowledge {
            over: Some(Rc::new(over)),
            ..Knowledge::default()
        }
    }

    /// What is over.
    #[inline]
    pub fn over(&self) -> Option<&Rc<Knowledge>> {
        self.over.as_ref()
    }

    /// That a fence for a proxy came after all this.
    pub fn of_fence(proxy: Proxy, known: &Rc<Knowledge>) -> Knowledge {
        let mut knowledge = Knowledge::default();
        if let Some(idx) = proxy.fenced() {
            knowledge.published[idx] = Some(Rc::clone(known));
        }
        knowledge
    }

    /// What came before a fence for a proxy.
    #[inline]
    pub fn published(&self, proxy: Proxy) -> Option<&Rc<Knowledge>> {
        self.published[proxy.fenced()?].as_ref()
    }

    #[inline]
    fn of_block(&self, block: u32) -> Option<&OfBlock> {
        let at = self.blocks.binary_search_by_key(&block, |of| of.0).ok()?;
        Some(&self.blocks[at].1)
    }

    /// Whether anything that a block did is in it.
    pub fn knows_of(&self, block: u32) -> bool {
        self.of_block(block).is_some()
    }

    /// The same, without what the threads of a block did.
    pub fn without_threads(mut self, block: u32) -> Knowledge {
        if self.knows_of(block) {
            let of_block = self.of_block_mut(block);
            of_block.warps = Default::default();
            of_block.lanes.clear();
        }
        self
    }

    /// What is known of a block, to be added to.
    fn of_block_mut(&mut self, block: u32) -> &mut OfBlock {
        let at = self.blocks.binary_search_by_key(&block, |of| of.0);
        let at = at.unwrap_or_else(|at| {
            self.blocks.insert(at, (block, Rc::default()));
            at
        });
        Rc::make_mut(&mut self.blocks[at].1)
    }

    pub fn join(&mut self, other: &Knowledge) {
        let mut at = 0;
        for (block, theirs) in &other.blocks {
            while self.blocks.get(at).is_some_and(|mine| mine.0 < *block) {
                at += 1;
            }
            match self.blocks.get_mut(at) {
                Some((mine, known)) if mine == block => share_block(known, theirs),
                _ => self.blocks.insert(at, (*block, Rc::clone(theirs))),
            }
        }
        for (mine, other) in self.published.iter_mut().zip(&other.published) {
            if let Some(other) = other {
                share(mine, other);
            }
        }
        if let Some(over) = &other.over {
            share(&mut self.over, over);
        }
    }

    /// Takes up what the copy engine has done for a barrier in one of its phases.
    pub fn join_engine(&mut self, block: u32, mbarrier: u8, clock: u32) {
        let (of_block, at) = (self.of_block_mut(block), usize::from(mbarrier));
        if of_block.engine.len() <= at {
            of_block.engine.resize(at + 1, 0);
        }
        of_block.engine[at] = of_block.engine[at].max(clock);
    }

    /// Takes up what warps of a block did up to these clocks, and what the lane did that leaves this stamp.
    pub fn join_lane(&mut self, stamp: &Stamp, warps: &[u32; MAX_WARPS]) {
        let of_block = self.of_block_mut(stamp.block);
        join_warps(&mut of_block.warps, warps);
        of_block.times_mut(stamp.warp)[usize::from(stamp.lane)] = stamp.time();
    }

    /// Takes up what warps of a block did up to these clocks.
    pub fn join_warps(&mut self, block: u32, warps: &[u32; MAX_WARPS]) {
        join_warps(&mut self.of_block_mut(block).warps, warps);
    }

    /// Per warp of a block, up to which clock all that its lanes did.
    #[inline]
    pub fn warps_of(&self, block: u32) -> Option<&[u32; MAX_WARPS]> {
        Some(&self.of_block(block)?.warps)
    }

    /// Whether it has in it all that a warp did up to this clock.
    #[inline]
    pub fn covers_warp(&self, block: u32, warp: usize, clock: u32) -> bool {
        let clocks = self.warps_of(block);
        clocks.is_some_and(|clocks| clock <= clocks[warp])
    }

    /// Whether it has in it what one lane, or the copy engine, did.
    #[inline]
    pub fn covers(&self, stamp: &Stamp) -> bool {
        let Some(known) = self.of_block(stamp.block) else {
            return false;
        };
        let lane = usize::from(stamp.lane);
        if stamp.warp == ENGINE {
            return known
                .engine
                .get(lane)
                .is_some_and(|clock| stamp.clock <= *clock);
        }
        let times = known.times(stamp.warp);
        stamp.clock <= known.warps[usize::from(stamp.warp)]
            || times.is_some_and(|times| stamp.time() <= times[lane])
    }
}

/// Joins what many lanes come to know, of which most know nothing else: they share it.
#[inline]
pub(super) fn share(mine: &mut Option<Rc<Knowledge>>, other: &Rc<Knowledge>) {
    match mine {
        Some(mine) if Rc::ptr_eq(mine, other) => {}
        Some(mine) => Rc::make_mut(mine).join(other),
        None => *mine = Some(Rc::clone(other)),
    }
}

/// Joins what is known of a block; where one side knows all that the other does, they share it.
fn share_block(mine: &mut Rc<OfBlock>, other: &Rc<OfBlock>) {
    if Rc::ptr_eq(mine, other) {
        return;
    }
    if mine.is_within(other) {
        *mine = Rc::clone(other);
    } else if !other.is_within(mine) {
        Rc::make_mut(mine).join(other);
    }
}

#[inline]
pub(super) fn join_warps(mine: &mut [u32; MAX_WARPS], other: &[u32; MAX_WARPS]) {
    for (mine, other) in mine.iter_mut().zip(other) {
        *mine = (*mine).max(*other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The same with nothing shared and nothing left out.
    #[derive(Clone, Default)]
    struct Plain {
        warps: BTreeMap<(u32, usize), u32>,
        lanes: BTreeMap<(u32, u8, u8), Time>,
        engine: BTreeMap<(u32, u8), u32>,
    }

    fn join_all<K: Ord + Copy, V: Ord + Copy>(mine: &mut BTreeMap<K, V>, other: &BTreeMap<K, V>) {
        for (key, value) in other {
            let known = mine.entry(*key).or_insert(*value);
            *known = (*known).max(*value);
        }
    }

    impl Plain {
        fn join(&mut self, other: &Plain) {
            join_all(&mut self.warps, &other.warps);
            join_all(&mut self.lanes, &other.lanes);
            join_all(&mut self.engine, &other.engine);
        }

        fn covers(&self, stamp: &Stamp) -> bool {
            let Stamp {
                block, warp, lane, ..
            } = *stamp;
            if warp == ENGINE {
                let known = self.engine.get(&(block, lane));
                return known.is_some_and(|clock| stamp.clock <= *clock);
            }
            let (all, own) = (
                self.warps.get(&(block, usize::from(warp))),
                self.lanes.get(&(block, warp, lane)),
            );
            all.is_some_and(|clock| stamp.clock <= *clock)
                || own.is_some_and(|time| stamp.time() <= *time)
        }
    }

    #[test]
    fn what_is_shared_is_what_each_would_know_alone() {
        let mut state = 7u32;
        let mut below = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        let mut known = vec![(Knowledge::default(), Plain::default()); 4];
        let (mut yes, mut no) = (0, 0);
        for _ in 0..20_000 {
            let at = below(4) as usize;
            let stamp = Stamp {
                block: below(5),
                clock: 1 + below(40),
                sub: below(3) as u16,
                warp: [0, 1, 5, ENGINE][below(4) as usize],
                lane: below(3) as u8,
                ..Stamp::default()
            };
            let Stamp {
                block, warp, lane, ..
            } = stamp;
            match below(40) {
                0 => known[at] = Default::default(),
                1..10 => {
                    let (other, plain) = known[below(4) as usize].clone();
                    known[at].0.join(&other);
                    known[at].1.join(&plain);
                }
                10..14 if warp == ENGINE => {
                    known[at].0.join_engine(block, lane, stamp.clock);
                    let alone = BTreeMap::from([((block, lane), stamp.clock)]);
                    join_all(&mut known[at].1.engine, &alone);
                }
                10..14 => {
                    let mut warps = [0; MAX_WARPS];
                    warps[below(6) as usize] = below(20);
                    // A lane's own time never goes back.
                    if !known[at].1.covers(&stamp) {
                        known[at].0.join_lane(&stamp, &warps);
                        let plain = &mut known[at].1;
                        let alone = warps.iter().enumerate();
                        let alone = alone.map(|(warp, clock)| ((block, warp), *clock));
                        join_all(&mut plain.warps, &alone.collect());
                        let alone = BTreeMap::from([((block, warp, lane), stamp.time())]);
                        join_all(&mut plain.lanes, &alone);
                    }
                }
                _ => {
                    let covers = known[at].0.covers(&stamp);
                    assert_eq!(covers, known[at].1.covers(&stamp), "{stamp:?}");
                    if covers {
                        yes += 1;
                    } else {
                        no += 1;
                    }
                }
            }
        }
        assert!(yes > 1000 && no > 1000, "{yes} {no}");
    }
}
