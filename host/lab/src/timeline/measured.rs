//! The records of a profiled kernel, as a timeline.

use std::collections::{BTreeMap, HashMap};

use ferroflash::plan::schedule::resident_blocks;
use ferroflash::plan::{DeviceInfo, Plan, PlannedLaunch};
use ferroflash_kernels::attention::mask::{Band, Rows};
use ferroflash_kernels::params::{Params, Stamp};

use super::{Doing, NoTimeline, Stretch, bounds, main_kernel};

/// Which block of threads worked on which tile, and when, by the time stamps of a profiled plan ([`Plan::profiled`]).
///
/// A *place* is the slot of one block of threads on a multiprocessor (SM), as in the simulation. Time is in nanoseconds from the first tile's
/// beginning on. Only the beginning and the end of a place's tiles are known: waits at semaphores and the edges of pipelines are part of the tiles.
/// So of the simulation's idle fractions, [`without_tile`](super::Idle::without_tile) is the one to compare with.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The kernel that wrote the stamps.
    pub kernel: &'static str,
    /// The places that had tiles, by SM and by their first tile.
    pub lanes: Vec<MeasuredLane>,
    /// How many places the device has.
    pub n_places: u32,
    /// The resolution of the times in nanoseconds: ticks of `%globaltimer`.
    pub tick_ns: u64,
    /// Cycles of the SMs' clocks in a nanosecond: GHz.
    pub clock_ghz: f64,
}

/// A place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredLane {
    /// Its SM.
    pub sm: u32,
    /// Its tiles, in the order of time, in nanoseconds.
    pub stretches: Vec<Stretch>,
}

/// An error in records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadStamps {
    /// The plan's main kernel writes none.
    #[error("{kernel} writes no time stamps")]
    NotStamped {
        /// The kernel.
        kernel: &'static str,
    },
    /// The plan has no tiles.
    #[error(transparent)]
    NoTimeline(#[from] NoTimeline),
    /// Another number of records than the plan has tiles.
    #[error("there are {given} records; the plan has {tiles} tiles")]
    Count {
        /// Records.
        given: usize,
        /// Tiles.
        tiles: usize,
    },
    /// A tile was not recorded.
    #[error("tile {tile} of head {head} is not recorded")]
    Missing {
        /// Its head.
        head: u32,
        /// Which tile.
        tile: u32,
    },
    /// A tile is recorded that the kernel should skip: a tile of keys that no query sees.
    #[error("tile {tile} of head {head} is recorded, and no query sees it")]
    Skipped {
        /// Its head.
        head: u32,
        /// Which tile.
        tile: u32,
    },
    /// A record is in the place of another tile's.
    #[error(
        "the record of tile {tile} of head {head} says tile {found_tile} of head {found_head}, block {block}"
    )]
    Misplaced {
        /// The head.
        head: u32,
        /// The tile.
        tile: u32,
        /// The recorded head.
        found_head: u32,
        /// The recorded tile.
        found_tile: u32,
        /// The recorded block of threads.
        block: u32,
    },
    /// A tile ends before it begins.
    #[error("tile {tile} of head {head} ends before it begins")]
    Backwards {
        /// Its head.
        head: u32,
        /// Which tile.
        tile: u32,
    },
    /// Two tiles of a block of threads overlap, or are on two SMs.
    #[error(
        "block {block} works on two tiles at once, or on two SMs: tile {tile} of head {head} is one of them"
    )]
    Overlap {
        /// The block of threads.
        block: u32,
        /// The later tile's head.
        head: u32,
        /// The later tile.
        tile: u32,
    },
}

impl Measured {
    /// Checks the records of a profiled plan that ran on a device: one for each tile that its kernel works on, and no two of one block at a time.
    pub fn new(plan: &Plan, device: &DeviceInfo, stamps: &[Stamp]) -> Result<Measured, BadStamps> {
        let main = main_kernel(plan)?;
        let kernel = main.variant.name;
        if plan.stamps().is_none() {
            return Err(BadStamps::NotStamped { kernel });
        }
        let there = checked(plan, main, stamps)?;
        let lanes = lanes(&there);
        let mut per_sm = BTreeMap::<u32, u32>::new();
        for lane in &lanes {
            *per_sm.entry(lane.sm).or_default() += 1;
        }
        // The tile config says how many blocks an SM holds at least.
        let seen = per_sm.values().max().copied().unwrap_or(0) * device.n_sms;
        let origin = there.iter().map(|stamp| stamp.start.ns).min().unwrap_or(0);
        let times = there
            .iter()
            .flat_map(|stamp| [stamp.start.ns, stamp.end.ns]);
        let sum = |of: fn(&Stamp) -> u64| there.iter().map(|stamp| of(stamp) as f64).sum::<f64>();
        let cycles = sum(|stamp| stamp.end.cycles.saturating_sub(stamp.start.cycles));
        Ok(Measured {
            kernel,
            lanes,
            n_places: resident_blocks(device, &main.variant.tile_config).max(seen),
            tick_ns: times.fold(0, |tick, ns| greatest_common_divisor(tick, ns - origin)),
            clock_ghz: cycles / sum(|stamp| stamp.end.ns - stamp.start.ns).max(1.0),
        })
    }

    /// When the last tile ends.
    pub fn end(&self) -> u64 {
        let last = self.lanes.iter().filter_map(|lane| lane.stretches.last());
        last.map(|stretch| stretch.until).max().unwrap_or(0)
    }

    /// The fraction of the time of all places in which they have no tile.
    pub fn without_tile(&self) -> f64 {
        let all = self.end() as f64 * f64::from(self.n_places);
        let stretches = self.lanes.iter().flat_map(|lane| &lane.stretches);
        let busy: u64 = stretches.map(|stretch| stretch.until - stretch.from).sum();
        match all {
            0.0 => 0.0,
            all => 1.0 - busy as f64 / all,
        }
    }

    /// SMs that had tiles.
    pub fn n_sms(&self) -> usize {
        let mut sms: Vec<u32> = self.lanes.iter().map(|lane| lane.sm).collect();
        sms.dedup();
        sms.len()
    }
}

/// The existing records, by SM and time.
fn checked(plan: &Plan, main: &PlannedLaunch, stamps: &[Stamp]) -> Result<Vec<Stamp>, BadStamps> {
    let schedule = main.schedule().ok_or(NoTimeline::NoTiles(plan.algorithm))?;
    let tiles = schedule.heads as usize * schedule.tiles as usize;
    if stamps.len() != tiles {
        let given = stamps.len();
        return Err(BadStamps::Count { given, tiles });
    }
    let mut there = Vec::new();
    for (place, stamp) in stamps.iter().enumerate() {
        let (head, tile) = (place as u32 / schedule.tiles, place as u32 % schedule.tiles);
        match (stamp.is_there(), skips(main, tile)) {
            (true, true) => return Err(BadStamps::Skipped { head, tile }),
            (false, false) => return Err(BadStamps::Missing { head, tile }),
            (false, true) => continue,
            (true, false) => {}
        }
        if (stamp.head, stamp.tile) != (head, tile) || stamp.block >= main.grid {
            return Err(BadStamps::Misplaced {
                head,
                tile,
                found_head: stamp.head,
                found_tile: stamp.tile,
                block: stamp.block,
            });
        }
        if stamp.end.ns < stamp.start.ns {
            return Err(BadStamps::Backwards { head, tile });
        }
        there.push(*stamp);
    }
    there.sort_by_key(|stamp| (stamp.block, stamp.start.ns, stamp.start.cycles));
    for (one, next) in there.iter().zip(there.iter().skip(1)) {
        if one.block == next.block && (one.sm != next.sm || next.start.ns < one.end.ns) {
            return Err(BadStamps::Overlap {
                block: next.block,
                head: next.head,
                tile: next.tile,
            });
        }
    }
    there.sort_by_key(|stamp| (stamp.sm, stamp.start.ns, stamp.block));
    Ok(there)
}

/// Assigns records, by SM and time, to places: a block of threads stays in its place, and a new one takes the first that is free.
fn lanes(there: &[Stamp]) -> Vec<MeasuredLane> {
    let origin = there.iter().map(|stamp| stamp.start.ns).min().unwrap_or(0);
    // When each block has ended its last tile.
    let mut ends = HashMap::<u32, u64>::new();
    for stamp in there {
        let end = ends.entry(stamp.block).or_default();
        *end = (*end).max(stamp.end.ns);
    }
    // Each with the block that it has now; the last SM's are those from `first` on.
    let (mut lanes, mut first) = (Vec::<(MeasuredLane, u32)>::new(), 0);
    for stamp in there {
        if lanes.last().is_some_and(|(lane, _)| lane.sm != stamp.sm) {
            first = lanes.len();
        }
        let stretch = Stretch {
            from: stamp.start.ns - origin,
            until: stamp.end.ns - origin,
            doing: Doing::Tile {
                head: stamp.head,
                tile: stamp.tile,
            },
        };
        let own = &mut lanes[first..];
        let place = own.iter().position(|(_, block)| *block == stamp.block);
        let free = |(_, block): &(MeasuredLane, u32)| ends[block] <= stamp.start.ns;
        match place.or_else(|| own.iter().position(free)) {
            Some(place) => {
                let (lane, block) = &mut own[place];
                *block = stamp.block;
                lane.stretches.push(stretch);
            }
            None => lanes.push((
                MeasuredLane {
                    sm: stamp.sm,
                    stretches: vec![stretch],
                },
                stamp.block,
            )),
        }
    }
    lanes.into_iter().map(|(lane, _)| lane).collect()
}

/// Whether a kernel has no work on a tile: flash3's backward kernel skips keys that no query sees.
fn skips(main: &PlannedLaunch, tile: u32) -> bool {
    let Params::TmaBackward(params) = main.params else {
        return false;
    };
    let (shape, tile_config) = (params.pass.shape, &main.variant.tile_config);
    let bounds = bounds(main);
    let band = Band::new(shape.seqlen_q, shape.seqlen_k, params.pass.window, bounds);
    let keys = Rows {
        first: tile * tile_config.block_k,
        len: tile_config.block_k,
    };
    bounds.left && band.q_blocks(keys, tile_config.block_q).n() == 0
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
