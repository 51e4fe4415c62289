//! A launch of a main backward kernel, and its tiles' ways through the blocks of queries.

use ferroflash::plan::schedule::tiles_at_once;
use ferroflash::plan::{DeviceInfo, Plan};
use ferroflash_kernels::attention::block_order::{self, BlockOrder};
use ferroflash_kernels::attention::mask::{Band, Bounds};
use ferroflash_kernels::attention::schedule::{self, BackwardTile, HeadSplits, QueryHeads};
use ferroflash_kernels::params::{Schedule, Shape, Window};
use ferroflash_kernels::variants::Kind;

use crate::timeline::{NoTimeline, bounds, main_kernel, not_on_device};

/// What is launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Sizes.
    pub shape: Shape,
    /// Distances of the mask.
    pub window: Window,
    /// Which of them apply.
    pub bounds: Bounds,
    /// The order of the tiles.
    pub schedule: Schedule,
    /// Head splits of the query heads of a KV head; each is a KV head of `shape`.
    pub n_head_splits: u32,
    /// How many of them have one query head more than the others.
    pub n_larger_head_splits: u32,
    /// Queries of a step.
    pub block_q: u32,
    /// Keys of a tile.
    pub block_k: u32,
    /// Number of blocks.
    pub grid: u32,
    /// How many of them the device holds at once.
    pub resident: u32,
}

/// One step of a tile: it adds to a block of dQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which of the query heads that share the tile's keys.
    pub head: u32,
    /// Which block of its queries.
    pub block: u32,
    /// How many tiles add before it.
    pub rank: u32,
}

/// A tile and its way.
#[derive(Clone, Debug)]
pub struct Way {
    /// Which tile.
    pub tile: BackwardTile,
    /// Its steps, one after the other.
    pub steps: Vec<Step>,
}

impl Launch {
    /// The main kernel of a backward pass's plan for a device; not of flash1, whose tiles [`forward::Launch`](crate::timeline::forward::Launch) has.
    pub fn of_plan(plan: &Plan, device: &DeviceInfo) -> Result<Launch, NoTimeline> {
        let main = main_kernel(plan)?;
        not_on_device(main)?;
        let pass = main.params.backward();
        let pass = pass.filter(|_| main.variant.kind != Kind::Flash1Backward);
        let pass = pass.ok_or(NoTimeline::NoTiles(plan.algorithm))?;
        let tile_config = &main.variant.tile_config;
        Ok(Launch {
            shape: pass.shape,
            window: pass.window,
            bounds: bounds(main),
            schedule: pass.schedule,
            n_head_splits: pass.n_head_splits.max(1),
            n_larger_head_splits: pass.n_larger_head_splits,
            block_q: tile_config.block_q,
            block_k: tile_config.block_k,
            // The blocks of a cluster share a tile: they count as one.
            grid: main.grid / tile_config.cluster,
            resident: tiles_at_once(device, tile_config),
        })
    }

    /// An upper bound of the number of its steps.
    pub(super) fn most_steps(&self) -> u64 {
        let tiles = u64::from(self.schedule.tiles) * u64::from(self.schedule.heads);
        let blocks = u64::from(self.shape.seqlen_q.div_ceil(self.block_q));
        tiles
            .saturating_mul(blocks)
            .saturating_mul(u64::from(self.shape.group_size) + 1)
    }

    /// The mask.
    pub fn band(&self) -> Band {
        let Shape {
            seqlen_q, seqlen_k, ..
        } = self.shape;
        Band::new(seqlen_q, seqlen_k, self.window, self.bounds)
    }

    /// Every tile with its steps, in the order in which tiles are claimed; without those that no query sees.
    pub fn ways(&self) -> Vec<Way> {
        let Launch {
            schedule,
            block_q,
            block_k,
            ..
        } = self;
        let band = self.band();
        let way = |claimed| {
            let tile = schedule::backward_head_splits(
                schedule,
                band.bounds().work(),
                claimed,
                self.n_head_splits,
            );
            let blocks = block_order::q_blocks(&band, tile.k_block, *block_q, *block_k);
            if blocks.n() == 0 {
                return None;
            }
            let group_size = self.query_heads(tile.head).n;
            let mut order = BlockOrder::begin(band, tile, blocks, schedule, group_size);
            let n_steps = order.steps();
            let step = |_| {
                let step = Step {
                    head: order.head,
                    block: order.block,
                    rank: order.rank(*block_q, *block_k),
                };
                order.advance();
                step
            };
            let steps = (0..n_steps).map(step).collect();
            Some(Way { tile, steps })
        };
        (0..schedule.tiles * schedule.heads)
            .filter_map(way)
            .collect()
    }

    /// The query heads that tiles of a head split meet.
    pub fn query_heads(&self, head: u32) -> QueryHeads {
        let shares = HeadSplits {
            n: self.n_head_splits,
            n_larger: self.n_larger_head_splits,
            heads: self.shape.group_size,
        };
        shares.query_heads(head)
    }

    /// The same problem with this many query and KV heads and head splits, in another order.
    pub fn in_head_splits(
        &self,
        heads: (usize, usize),
        n_head_splits: u32,
        schedule: Schedule,
    ) -> Launch {
        let heads_k = heads.1 as u32 * n_head_splits;
        Launch {
            shape: Shape {
                heads_k,
                group_size: heads.0 as u32 / heads_k,
                ..self.shape
            },
            schedule,
            n_head_splits,
            n_larger_head_splits: (heads.0 / heads.1) as u32 % n_head_splits,
            grid: self.resident,
            ..*self
        }
    }

    /// The number of a block of dQ among those of all heads.
    pub(super) fn block_of_d_q(&self, way: &Way, step: Step) -> u32 {
        let blocks = self.shape.seqlen_q.div_ceil(self.block_q).max(1);
        (self.query_heads(way.tile.head).first + step.head) * blocks + step.block
    }
}
