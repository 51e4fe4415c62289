//! flash3 backward for Hopper: TMA, `wgmma`, warpgroups with roles.
//!
//! A block of threads is resident on its SM and claims tiles of keys until none are left. K and V of a tile stay in shared memory,
//! blocks of queries are streamed. Its warps have roles:
//!
//! - the producer, one thread, claims tiles, tells the others through two slots, and keeps the rings of Q and dO full;
//! - two consumer warpgroups recompute S and P, and keep dV and dK: where registers hold both, each for half of the keys
//!   (`by_keys.rs`), else one keeps dV and the other dK (`by_product.rs`), or each half of their columns (`by_columns.rs`); they share dQ
//!   (`dq_accumulate.rs`), in a cluster with those of the other block (`by_cluster.rs`);
//! - two semaphore warps, a thread each for even and odd steps, poll the dQ semaphore until the tile may add to a block of dQ, and
//!   then send the consumers' part of dQ, or let them add (`dq_accumulate.rs`);
//! - in a cluster, where two blocks share a tile, one warp sends dS to the other block (`by_cluster.rs`).
//!
//! When a block has no tiles left, it converts finished rows of dQ to the output type (`postprocess.rs`).
//!
//! Scores are held transposed, keys down, so that Pᵀ and dSᵀ are left operands of the next products as they lie in registers (but in
//! `by_columns.rs`); dSᵀ goes through shared memory too, for dQ, which is added to an accumulator in global memory. Which tiles wait for which there:
//! [`crate::attention::block_order`].
//!
//! Where tiles are few and query heads share keys, several tiles may have the same keys, and add up dV and dK (`epilogue.rs`).
//!
//! | file | contents |
//! |---|---|
//! | `scheduler` | the next work of a block; the steps of a tile of keys |
//! | `producer` | K, V, Q and dO to shared memory |
//! | `consumer` | the common part of both kinds of consumers: masks, scores, dropout, dS |
//! | `by_keys`, `by_product`, `by_columns` | their loops: consumers that share the keys, the products, or the columns |
//! | `by_cluster` | a step of two blocks that share a tile, whose consumers share the columns |
//! | `dq_accumulate` | dQ to its accumulator in global memory, in the order of the semaphore |
//! | `epilogue` | dK and dV to memory; their sums over head splits |
//! | `postprocess` | dQ from its accumulator to the output type |
//! | `layout` | shared memory, and its barriers |

mod by_cluster;
mod by_columns;
mod by_keys;
mod by_product;
mod consumer;
mod dq_accumulate;
mod epilogue;
mod layout;
mod postprocess;
mod producer;
mod scheduler;

use core::marker::PhantomData;

use super::Blocks;
use crate::config::{self, Division, TileConfig, TmaBackward};
use crate::kernels::band;
use crate::kernels::common::stamps::Profiled;
use crate::kernels::varlen::band_to_end;
use crate::params::TmaBackwardParams;
use crate::ptx::{barrier, mbarrier, shuffle, spec, special};
use crate::spec::{Constant, Spec};
use crate::tile::element::Element;
use crate::tile::register::{Accumulator, RegisterTile};
use crate::tile::warpgroup::{WarpgroupTile, release_registers, take_registers};
use crate::variants::{Kind, TileShape};
use consumer::Consumer;
use layout::Layout;

/// The tiles of one head_dim.
pub trait Tiles: Blocks {
    /// Columns that tiles of V and dO have; tensors may have fewer.
    const VALUE_DIM: u32 = Self::HEAD_DIM;
    /// Their shape.
    const SHAPE: TileShape;
    /// The capabilities of the kernel.
    const CAN: Spec = Kind::TmaBackward.capabilities(Self::SHAPE, Self::SCHEDULE.divides_blocks());
    /// Whether there may be a block mask.
    const BLOCK_MASKS: bool = Self::CAN.has(Constant::BlockMask);
    /// Whether an expression may edit scores.
    const EDITS_SCORES: bool = Self::CAN.has(Constant::Score);
    /// Whether weights may be dropped.
    const DROPS: bool = Self::CAN.has(Constant::Dropout);
    /// How they are worked on.
    const SCHEDULE: TmaBackward = TmaBackward::of(Self::HEAD_DIM, Self::VALUE_DIM, Self::SHAPE);
    /// A warpgroup's keys of Sᵀ and dPᵀ; where it has the queries down, of S and dP.
    type Scores: WarpgroupTile;
    /// A warpgroup's keys of dK; where consumers divide the columns, 64 columns of dKᵀ.
    type KeyGradient: WarpgroupTile;
    /// The same of dV.
    type ValueGradient: WarpgroupTile;
    /// Whether the mask is skipped for keys in the prefix. Wide tiles of which consumers divide the keys mask each of them: they are for sequences
    /// without a mask, and have no registers to tell these keys from others.
    const SKIPS_PREFIX: bool =
        !(matches!(Self::SHAPE, TileShape::Wide) && Self::SCHEDULE.divides_keys());
    /// A consumer's piece of a block of dQ: 64 rows of 64 columns; transposed, 64 columns of all rows.
    type QueryGradient: WarpgroupTile;
    /// A consumer's half of that part.
    type QueryGradientOfHalf: WarpgroupTile;
    /// Fragments of a consumer's piece of a block of dQ.
    const PIECE_FRAGMENTS: u32 = Self::QueryGradient::N as u32
        + if Self::SCHEDULE.halves_a_part {
            Self::QueryGradientOfHalf::N as u32
        } else {
            0
        };
    /// Columns of dQ that a warp converts at once, where they are not transposed.
    type Rounded: Accumulator;
}

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// The tiles of a variant in the [`TileShape`] of this number, and its register tiles: of Sᵀ, of a warpgroup's piece of a block of dQ, of the columns of dQ that
/// it rounds at once, of dK and of dV. `tiles!` names the type.
pub struct VariantTiles<const HEAD_DIM: u32, const VALUE_DIM: u32, const SHAPE: u32, R>(
    PhantomData<R>,
);

impl<const HEAD_DIM: u32, const VALUE_DIM: u32, const SHAPE: u32, R> Blocks
    for VariantTiles<HEAD_DIM, VALUE_DIM, SHAPE, R>
{
    const HEAD_DIM: u32 = HEAD_DIM;
    const CONFIG: TileConfig =
        config::tma_backward(HEAD_DIM, VALUE_DIM, TileShape::numbered(SHAPE));
    const ACCUM_COLUMNS: u32 = config::padded_columns(HEAD_DIM);
    // Where scores have queries down, a lane wants those of two rows, and not of columns.
    const INTERLEAVED: bool = !matches!(
        TmaBackward::of(HEAD_DIM, VALUE_DIM, TileShape::numbered(SHAPE)).division,
        Division::Columns
    );
}

impl<const HEAD_DIM: u32, const VALUE_DIM: u32, const SHAPE: u32, S, DQ, Rounded, DK, DV> Tiles
    for VariantTiles<HEAD_DIM, VALUE_DIM, SHAPE, (S, DQ, Rounded, DK, DV)>
where
    S: WarpgroupTile,
    DQ: WarpgroupTile,
    Rounded: Accumulator,
    DK: WarpgroupTile,
    DV: WarpgroupTile,
{
    const VALUE_DIM: u32 = VALUE_DIM;
    const SHAPE: TileShape = TileShape::numbered(SHAPE);
    type Scores = S;
    type KeyGradient = DK;
    type ValueGradient = DV;
    type QueryGradient = DQ;
    type QueryGradientOfHalf = RegisterTile<1, { n8(32) }>;
    type Rounded = Rounded;
}

/// Fragments of Sᵀ, of a piece of a block of dQ, of the columns of dQ that are rounded at once, of dK, and of dV: what a consumer has of each.
pub(crate) const fn fragments(head_dim: u32, value_dim: u32, shape: TileShape) -> [usize; 5] {
    let schedule = TmaBackward::of(head_dim, value_dim, shape);
    let queries = if schedule.queries_down {
        schedule.block_q
    } else {
        64
    };
    let (across, of_keys, of_values) = match schedule.division {
        Division::Keys | Division::Products => (schedule.block_q, head_dim, value_dim),
        Division::Columns => {
            let keys = schedule.keys_of_block();
            (keys / 2, keys, keys)
        }
    };
    [
        n8(across),
        n8(queries),
        n8(schedule.rounded(head_dim)),
        n8(of_keys),
        n8(of_values),
    ]
}

/// The type of the tiles of this many columns of keys and of values in a shape.
macro_rules! tiles {
    ($head_dim:literal, $value_dim:literal, $shape:ident) => {
        $crate::kernels::backward::sm90::VariantTiles<
            $head_dim,
            $value_dim,
            { $crate::variants::TileShape::$shape as u32 },
            (
                $crate::tile::register::RegisterTile<1, { $crate::kernels::backward::sm90::fragments($head_dim, $value_dim, $crate::variants::TileShape::$shape)[0] }>,
                $crate::tile::register::RegisterTile<1, { $crate::kernels::backward::sm90::fragments($head_dim, $value_dim, $crate::variants::TileShape::$shape)[1] }>,
                $crate::tile::register::RegisterTile<1, { $crate::kernels::backward::sm90::fragments($head_dim, $value_dim, $crate::variants::TileShape::$shape)[2] }>,
                $crate::tile::register::RegisterTile<1, { $crate::kernels::backward::sm90::fragments($head_dim, $value_dim, $crate::variants::TileShape::$shape)[3] }>,
                $crate::tile::register::RegisterTile<1, { $crate::kernels::backward::sm90::fragments($head_dim, $value_dim, $crate::variants::TileShape::$shape)[4] }>,
            ),
        >
    };
}
pub(crate) use tiles;

impl<T: Tiles> Tiles for Profiled<T> {
    const VALUE_DIM: u32 = T::VALUE_DIM;
    const SHAPE: TileShape = T::SHAPE;
    type Scores = T::Scores;
    type KeyGradient = T::KeyGradient;
    type ValueGradient = T::ValueGradient;
    type QueryGradient = T::QueryGradient;
    type QueryGradientOfHalf = T::QueryGradientOfHalf;
    type Rounded = T::Rounded;
}

/// Claims tiles until none are left.
///
/// # Safety
/// The launch is as [`config::tma_backward`] says, with not more blocks than tiles; tensors are as [`TmaBackwardParams`]
/// says, of at most `T::HEAD_DIM` columns; `maps` is the address of the first tensor map; the `delta` kernel ran before on
/// the stream.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn backward<E: Element, T: Tiles>(p: &TmaBackwardParams, maps: u64) {
    let layout = Layout::new::<T>();
    let thread = special::thread_idx_x();
    // SAFETY: all threads of the block come here; barriers are made before anyone uses them.
    unsafe {
        if thread == 0 {
            layout.make_barriers::<T>();
            mbarrier::fence_mbarrier_init();
        }
        if T::SCHEDULE.cluster == 1 {
            barrier::barrier_sync_all();
        } else {
            by_cluster::meet();
        }
        // Broadcast lane 0's value so that ptxas treats the branches as warp-uniform.
        let warpgroup = shuffle::shuffle_idx_u32(thread / 128, 0);
        if warpgroup == 0 {
            release_registers(const { T::SCHEDULE.registers[0] });
            let warp = shuffle::shuffle_idx_u32(thread / 32, 0);
            if special::lane_idx() == 0 {
                if warp == 0 {
                    producer::produce::<T>(&p.pass, maps, layout);
                } else if warp <= config::TMA_BACKWARD_STAGES {
                    dq_accumulate::serve::<T>(&p.pass, layout, warp - 1);
                } else if T::SCHEDULE.cluster > 1 {
                    by_cluster::send_d_s::<T>(layout);
                }
            }
        } else {
            take_registers(const { T::SCHEDULE.registers[1] });
            let c = Consumer {
                p: &p.pass,
                maps,
                layout,
                band: if spec::lengths() {
                    band_to_end(p.pass.window)
                } else {
                    band(&p.pass.shape, p.pass.window)
                },
                idx: warpgroup - 1,
                leads: (special::lane_idx() == 0) as u32,
            };
            match T::SCHEDULE.division {
                Division::Keys => by_keys::consume::<E, T>(&c),
                Division::Columns => by_columns::consume::<E, T>(&c),
                Division::Products if c.idx == 0 => by_product::consume_values::<E, T>(&c),
                Division::Products => by_product::consume_keys::<E, T>(&c),
            }
        }
        if T::SCHEDULE.cluster > 1 {
            // The shared memory of a block stays until the other neither sends to it nor arrives there any more.
            by_cluster::meet();
        }
    }
}
