//! flash3 forward for Hopper: TMA, `wgmma`, warpgroups with roles (FlashAttention-3, Shah et al. 2024, Algorithm 2).
//!
//! A block of threads is resident on its SM and claims tiles of queries until none are left. Its warps have roles:
//!
//! - the producer, one thread, claims tiles, tells the others through two slots, and keeps the rings of K, V and Q full;
//! - one to three consumer warpgroups, 64 query rows each, multiply and compute the softmax;
//! - for each of them a store warp, one thread, sends its rows of O to memory;
//! - where keys and values lie in pages, one more thread keeps the ring of V full;
//! - in 8 bits, two warps transpose V, and one thread stores the rows of all consumers; or three transpose it, and consumers store theirs.
//!
//! Both products run while threads do other things. Step `i` of a consumer, over all KV blocks of all its tiles:
//!
//! ```text
//! begin S = Q K_iᵀ                          K_i has arrived, and the ping-pong barrier lets this consumer pass
//! store O of the tile before                if the last step ended one
//! begin O += P V_{i−1}                      V_{i−1} has arrived; the next consumer may pass
//! wait for S;  mask it
//! m ← the rows' maxima                      in a tile's first step only
//! P ← exp(S − m)                            speculative: m is the last block's
//! wait for O;  release V_{i−1}
//! S, m, P again;  O ← diag(α) O             only where rowsum P says that a score has outgrown m: a misprediction
//! l ← l + rowsum P;  release K_i
//! ```
//!
//! With a soft cap at head_dim 64 there is neither ping-pong nor speculation: `tanh_binds` in `consumer.rs`.
//!
//! There is one loop over tiles and blocks: a tile's first product overlaps the last one of the previous tile, and the finished O is stored after
//! it. Blocks come from the last one down, as in [`super::sm80`].
//!
//! Q has two stages: the next tile's arrives while this one's is multiplied.
//!
//! Short sequences leave rows of a tile empty. In compact and grouped tiles heads that share K and V may share a tile, too:
//! `scheduler.rs`. There keys may be divided among tiles, too, whose results another kernel merges: `epilogue.rs`.
//!
//! Where values have more than 256 columns two consumers have the same rows: each multiplies S of them, and its half of the columns of O. Where values are the
//! first columns of the keys they share S, too: [`super::mla`].
//!
//! | file | contents |
//! |---|---|
//! | `scheduler` | which tile is next, and which query of which head each of its rows is |
//! | `producer`, `paged_producer` | Q, K and V to shared memory; out of pages |
//! | `consumer` | the loop: products, masks, scores, softmax, dropout |
//! | `two_levels` | the loop where sums over the keys have two levels: in 8 bits |
//! | `descale` | the scales of 8 bits |
//! | `elements` | 16 and 8 bits: what differs |
//! | `transposer` | V transposed, in 8 bits |
//! | `epilogue` | O and L to memory; splits of keys, and their merge |
//! | `layout` | shared memory, and its barriers |

pub(super) mod consumer;
mod descale;
pub(super) mod elements;
pub(super) mod epilogue;
pub(super) mod layout;
pub(super) mod paged_producer;
pub(super) mod producer;
pub(super) mod scheduler;
mod transposer;
mod two_levels;

use core::marker::PhantomData;

use crate::attention::score::RowTerms;
use crate::config::{self, TileConfig, TmaForward};
use crate::kernels::common::stamps::Profiled;
use crate::params::{BOX_BYTES, ForwardMap, TmaForwardParams};
use crate::ptx::{barrier, mbarrier, shuffle, special};
use crate::spec::{Constant, Spec};
use crate::tile::ring::Ring;
use crate::tile::warpgroup::{
    BoxedTile, WARPGROUP_ROWS, WarpgroupTile, release_registers, take_registers,
};
use crate::variants::{Kind, TileShape, of_elements};
use consumer::Consumer;
use descale::{OfBlocks, OfHead, are_of_blocks};
use elements::Elements;
use layout::{Layout, WorkTile};
use producer::Producer;
use scheduler::Claims;

/// The tiles of one head_dim in one shape.
pub trait Tiles: Sized {
    /// Bytes of an element of Q, K and V.
    const ELEMENT_BYTES: u32 = 2;
    /// Columns that tiles of Q and K have; tensors may have fewer.
    const HEAD_DIM: u32;
    /// The same of V and O.
    const VALUE_DIM: u32 = Self::HEAD_DIM;
    /// Their shape.
    const SHAPE: TileShape;
    /// The resources of a block, and the part of the problem that it covers.
    const CONFIG: TileConfig = config::tma_forward(
        Self::ELEMENT_BYTES,
        Self::HEAD_DIM,
        Self::VALUE_DIM,
        Self::SHAPE,
    );
    /// How they are worked on. What follows has its names; the compiler folds constants of their own earlier than those of a struct.
    const SCHEDULE: TmaForward = TmaForward::of(
        Self::ELEMENT_BYTES,
        Self::HEAD_DIM,
        Self::VALUE_DIM,
        Self::SHAPE,
    );
    /// Warpgroups that multiply.
    const CONSUMERS: u32 = Self::SCHEDULE.consumers;
    /// Whether two of them have the same rows, and half of O's columns each.
    const SHARES_ROWS: bool = Self::SCHEDULE.shares_rows;
    /// 64 query rows each.
    const ROW_GROUPS: u32 = Self::CONFIG.block_q / WARPGROUP_ROWS;
    /// Stages of Q.
    const Q_STAGES: u32 = Self::SCHEDULE.q_stages;
    /// Stages of V as it comes, where warps transpose it.
    const RAW_V_STAGES: u32 = Self::SCHEDULE.raw_v_stages;
    /// Whether they do.
    const TRANSPOSES: bool = Self::SCHEDULE.transposes();
    /// How many warps do.
    const TRANSPOSERS: u32 = Self::SCHEDULE.transposers;
    /// Stages of K, and of V.
    const KV_STAGES: u32 = Self::SCHEDULE.kv_stages;
    /// Whether store warps send O to memory.
    const STORES: bool = Self::SCHEDULE.stores;
    /// Whether consumers find their place again wherever they need it.
    const FORGETS_PLACE: bool = Self::SCHEDULE.forgets_place;
    /// Whether the softmax is speculative.
    const SPECULATES: bool = Self::SCHEDULE.speculates;
    /// Whether ping-pong barriers order the consumers' products.
    const PING_PONG: bool = Self::SCHEDULE.ping_pong;
    /// Whether P V of a block is summed apart from O: see `two_levels.rs`.
    const TWO_LEVELS: bool = Self::SCHEDULE.value_pieces > 0;
    /// In how many pieces P V of a block is multiplied.
    const VALUE_PIECES: usize = pieces(Self::SCHEDULE);
    /// Whether they are of the shape [`TileShape::Grouped`].
    const IS_GROUPED: bool = matches!(Self::SHAPE, TileShape::Grouped);
    /// In how many pieces a block of keys comes, each with stages of its own.
    const KEY_PIECES: u32 = 1;
    /// Bytes of a row of Q and K.
    const HEAD_BYTES: u32 = Self::HEAD_DIM * Self::ELEMENT_BYTES;
    /// Bytes of a row of V as it comes.
    const VALUE_BYTES: u32 = Self::VALUE_DIM * Self::ELEMENT_BYTES;
    /// Columns of a box of Q, K or V.
    const BOX_COLUMNS: u32 = BOX_BYTES / Self::ELEMENT_BYTES;
    /// Bytes of the stages of V, as consumers take it.
    const V_BYTES: u32 = Self::KV_STAGES
        * if Self::TRANSPOSES {
            BoxedTile::n_bytes(Self::VALUE_DIM, Self::CONFIG.block_k * Self::ELEMENT_BYTES)
        } else {
            BoxedTile::n_bytes(Self::CONFIG.block_k, Self::VALUE_BYTES)
        };
    /// Bytes of O on its way out.
    const O_BYTES: u32 = if Self::STORES {
        BoxedTile::n_bytes(Self::CONFIG.block_q, 2 * Self::VALUE_DIM)
    } else {
        0
    };
    /// The tensor map by which values are read.
    const VALUES: ForwardMap = ForwardMap::V;
    /// The capabilities of the kernel.
    const CAN: Spec = of_elements(
        Kind::TmaForward.capabilities(Self::SHAPE, Self::CONFIG.divides_blocks()),
        Self::ELEMENT_BYTES,
        Self::SHAPE,
        Self::CONFIG.block_k,
    );
    /// Whether there may be a block mask.
    const BLOCK_MASKS: bool = Self::CAN.has(Constant::BlockMask);
    /// Whether scales may be of blocks.
    const SCALE_BLOCKS: bool = Self::CAN.has(Constant::ScaleBlocks);
    /// Whether an expression may edit scores.
    const EDITS_SCORES: bool = Self::CAN.has(Constant::Score);
    /// The destination of the common term of a row's scores. Tiles for few queries wait for memory, and have no register for it.
    const ROW_TERMS: RowTerms = match Self::SHAPE {
        TileShape::Compact => RowTerms::InScores,
        _ => RowTerms::Apart,
    };
    /// Whether weights may be dropped: wide tiles have no registers for it.
    const DROPS: bool = Self::CAN.has(Constant::Dropout);
    /// Whether query heads may share a tile.
    const PACKS_GQA: bool = matches!(Self::SHAPE, TileShape::Compact) || Self::IS_GROUPED;
    /// Whether keys may be divided among tiles.
    const SPLITS_KV: bool = Self::CAN.has(Constant::SplitKv);
    /// Whether a tanh and an exponential for each score take the special-function unit longer than the products take. Then consumers that
    /// wait for each other leave it idle: there is no ping-pong, and the maxima are looked for, which costs nothing the unit would need.
    const TANH_BINDS: bool = Self::EDITS_SCORES && Self::HEAD_DIM <= 64 && Self::VALUE_DIM <= 64;
    /// Whether the kernel records its tiles: see [`Profiled`].
    const PROFILES: bool = false;
    /// A warpgroup's rows of S.
    type Scores: WarpgroupTile;
    /// A warpgroup's rows of O; half of their columns, where two have the same rows.
    type Output: WarpgroupTile;
    /// A piece of its columns.
    type Piece: WarpgroupTile;

    /// The producer's loads of a tile, and its claim of the next one: see `producer.rs`.
    ///
    /// # Safety
    /// As the producer.
    #[inline(always)]
    unsafe fn load_tile(p: &mut Producer, work: WorkTile, sees_none: bool, claims: Claims) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { p.load_tile::<Self>(work, sees_none, claims) }
    }

    /// The second loading thread's loads of a tile: see `paged_producer.rs`.
    ///
    /// # Safety
    /// As the producer.
    #[inline(always)]
    unsafe fn load_values(p: &mut Producer, work: WorkTile, sees_none: bool, kv_head_idx: u32) {
        // SAFETY: the caller's contract.
        unsafe { p.load_values::<Self>(work, sees_none, kv_head_idx) }
    }

    /// A consumer's work from its first tile on: see `consumer.rs`, and `two_levels.rs`.
    ///
    /// # Safety
    /// As the consumers.
    #[inline(always)]
    unsafe fn attend<E: Elements>(c: &Consumer, work: WorkTile, slot: Ring) {
        // SAFETY: the caller's contract.
        unsafe {
            if !Self::TWO_LEVELS {
                consumer::attend_if_any::<E, Self>(c, work, slot);
            } else if are_of_blocks::<Self>() {
                two_levels::attend::<E, Self, OfBlocks>(c, work, slot);
            } else {
                two_levels::attend::<E, Self, OfHead>(c, work, slot);
            }
        }
    }
}

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// The tiles of a variant in the [`TileShape`] of this number, and its register tiles: a warpgroup's rows of S and of O. `tiles!` names the type.
pub struct VariantTiles<
    const BYTES: u32,
    const HEAD_DIM: u32,
    const VALUE_DIM: u32,
    const SHAPE: u32,
    R,
>(PhantomData<R>);

impl<const BYTES: u32, const HEAD_DIM: u32, const VALUE_DIM: u32, const SHAPE: u32, S, O, P> Tiles
    for VariantTiles<BYTES, HEAD_DIM, VALUE_DIM, SHAPE, (S, O, P)>
where
    S: WarpgroupTile,
    O: WarpgroupTile,
    P: WarpgroupTile,
{
    const ELEMENT_BYTES: u32 = BYTES;
    const HEAD_DIM: u32 = HEAD_DIM;
    const VALUE_DIM: u32 = VALUE_DIM;
    const SHAPE: TileShape = TileShape::numbered(SHAPE);
    type Scores = S;
    type Output = O;
    type Piece = P;
}

/// Pieces of a block's P V.
const fn pieces(schedule: TmaForward) -> usize {
    match schedule.value_pieces {
        0 => 1,
        pieces => pieces as usize,
    }
}

/// Fragments of S, of O and of a piece of it across a warpgroup's registers.
pub(crate) const fn fragments(
    bytes: u32,
    head_dim: u32,
    value_dim: u32,
    shape: TileShape,
) -> [usize; 3] {
    let schedule = TmaForward::of(bytes, head_dim, value_dim, shape);
    let columns = if schedule.shares_rows {
        value_dim / 2
    } else {
        value_dim
    };
    let columns = n8(columns);
    [n8(schedule.block_k), columns, columns / pieces(schedule)]
}

/// The type of the tiles of this many columns of keys and of values, of elements of so many bytes, in a shape.
macro_rules! tiles {
    ($head_dim:literal, $value_dim:literal, $shape:ident) => {
        $crate::kernels::forward::sm90::tiles!(2, $head_dim, $value_dim, $shape)
    };
    ($bytes:literal, $head_dim:literal, $value_dim:literal, $shape:ident) => {
        $crate::kernels::forward::sm90::VariantTiles<
            $bytes,
            $head_dim,
            $value_dim,
            { $crate::variants::TileShape::$shape as u32 },
            (
                $crate::tile::register::RegisterTile<1, { $crate::kernels::forward::sm90::fragments($bytes, $head_dim, $value_dim, $crate::variants::TileShape::$shape)[0] }>,
                $crate::tile::register::RegisterTile<1, { $crate::kernels::forward::sm90::fragments($bytes, $head_dim, $value_dim, $crate::variants::TileShape::$shape)[1] }>,
                $crate::tile::register::RegisterTile<1, { $crate::kernels::forward::sm90::fragments($bytes, $head_dim, $value_dim, $crate::variants::TileShape::$shape)[2] }>,
            ),
        >
    };
}
pub(crate) use tiles;

impl<T: Tiles> Tiles for Profiled<T> {
    const HEAD_DIM: u32 = T::HEAD_DIM;
    const VALUE_DIM: u32 = T::VALUE_DIM;
    const SHAPE: TileShape = T::SHAPE;
    const ELEMENT_BYTES: u32 = T::ELEMENT_BYTES;
    const PROFILES: bool = true;
    type Scores = T::Scores;
    type Output = T::Output;
    type Piece = T::Piece;
}

/// Claims tiles until none are left.
///
/// # Safety
/// The launch is as [`config::tma_forward`] says, with not more blocks than there may be tiles; tensors are as [`TmaForwardParams`]
/// says, of at most `T::HEAD_DIM` and `T::VALUE_DIM` columns; `maps` is the address of the first tensor map.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn forward<E: Elements, T: Tiles>(p: &TmaForwardParams, maps: u64) {
    let layout = Layout::new::<T>();
    let thread = special::thread_idx_x();
    // SAFETY: all threads of the block come here; barriers are made before anyone uses them.
    unsafe {
        if thread == 0 {
            layout.make_barriers::<T>();
            mbarrier::fence_mbarrier_init();
        }
        barrier::barrier_sync_all();
        // Broadcast lane 0's value so that ptxas treats the branches as warp-uniform.
        let warpgroup = shuffle::shuffle_idx_u32(thread / 128, 0);
        if warpgroup == 0 {
            release_registers(const { T::SCHEDULE.registers[0] });
            let warp = shuffle::shuffle_idx_u32(thread / 32, 0);
            if warp > 0 && warp <= T::TRANSPOSERS {
                transposer::transpose::<T>(layout, warp - 1);
            } else if special::lane_idx() == 0 {
                if warp == 0 {
                    producer::produce::<T>(p, maps, layout);
                } else if T::TRANSPOSES {
                    if T::STORES && E::has_16_bit_output() {
                        epilogue::store::<T>(p, maps, layout, 0);
                    }
                } else if T::STORES && warp <= T::CONSUMERS {
                    epilogue::store::<T>(p, maps, layout, warp - 1);
                } else if paged_producer::two_load::<T>() && warp == 3 {
                    paged_producer::load_values::<T>(p, maps, layout);
                }
            }
        } else {
            take_registers(const { T::SCHEDULE.registers[1] });
            consumer::consume::<E, T>(p, layout, warpgroup - 1);
        }
    }
}
