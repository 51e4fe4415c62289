//! flash3 forward for Hopper: TMA, `wgmma`, warpgroups with roles (FlashAttention-3, Shah et al. 2024, Algorithm 2).
//!
//! A block stays on its SM and draws tiles of queries until none are left. Its warps have roles:
//!
//! - the loader, one thread, draws tiles, says so to everybody through two slots, and keeps the rings of K, V and Q full;
//! - one to three warpgroups of consumers, 64 query rows each, multiply and do the softmax;
//! - for each of them a storer, one thread, sends its rows of O off.
//!
//! Both products run while threads do other things. Step `i` of a consumer, over all KV blocks of all its tiles:
//!
//! ```text
//! begin S = Q K_iᵀ                          K_i has arrived, and it is this consumer's turn
//! store O of the tile before                if the last step ended one
//! begin O += P V_{i−1}                      V_{i−1} has arrived; the next one's turn
//! wait for S;  mask it
//! m ← the rows' maxima                      in a tile's first step only
//! P ← exp(S − m)
//! wait for O;  release V_{i−1}
//! S, m, P again;  O ← diag(α) O             only where rowsum P says that a score has outgrown m
//! l ← l + rowsum P;  release K_i
//! ```
//!
//! There is one loop over tiles and blocks: a tile's first product runs beside the last one of the tile before, and the
//! finished O is stored behind it. Blocks come from the last one down, as in [`super::sm80`].
//!
//! Q has two stages: the next tile's arrives while this one's is multiplied.
//!
//! Short sequences leave rows of a tile empty. In the compact shape heads that share K and V may share a tile, too:
//! `pack_gqa.rs`.

mod consumer;
mod layout;
mod pack_gqa;
mod producer;
mod store_warp;

use crate::attention::mask::Mask;
use crate::config::{self, Footprint};
use crate::params::TmaForwardParams;
use crate::ptx::{barrier, mbarrier, shuffle, special, warpgroup};
use crate::tile::element::Element;
use crate::tile::register::RegisterTile;
use crate::tile::warpgroup::{WARPGROUP_ROWS, WarpgroupTile};
use crate::variants::TileShape;
use layout::Layout;

/// The tiles of one head_dim in one shape.
pub trait Tiles {
    /// Columns that the tiles have; tensors may have fewer.
    const HEAD_DIM: u32;
    /// Their shape.
    const SHAPE: TileShape;
    /// What a block takes, and which part of the problem it covers.
    const FOOTPRINT: Footprint = config::tma_forward(Self::HEAD_DIM, Self::SHAPE);
    /// Warpgroups that multiply, 64 query rows each.
    const CONSUMERS: u32 = Self::FOOTPRINT.block_q / WARPGROUP_ROWS;
    /// Stages of Q.
    const Q_STAGES: u32 = config::tma_q_stages(Self::HEAD_DIM);
    /// Stages of K, and of V.
    const KV_STAGES: u32 = config::tma_kv_stages(Self::HEAD_DIM, Self::SHAPE);
    /// Whether storers send O off.
    const STORES: bool = config::tma_stores(Self::HEAD_DIM, Self::SHAPE);
    /// Whether the consumers need registers of the movers. A thread of an SM's only 256 begins with as many as it can have.
    const SHARES_REGISTERS: bool = 256 < Self::FOOTPRINT.threads * Self::FOOTPRINT.blocks_per_sm;
    /// Whether heads may be packed.
    const PACKS_GQA: bool = matches!(Self::SHAPE, TileShape::Compact);
    /// Whether exponentials are tried before the maxima are known. Above head_dim 128 the softmax hides behind the products
    /// anyway, and K is kept longer for it: with short causal sequences that costs 3 % (H200).
    const SPECULATES: bool = Self::HEAD_DIM <= 128;
    /// Whether consumers begin their products in turns. Above head_dim 128 products take so much longer than the softmax
    /// that it makes no difference.
    const PING_PONG: bool = Self::HEAD_DIM <= 128 && Self::CONSUMERS > 1;
    /// A warpgroup's rows of S.
    type Scores: WarpgroupTile;
    /// A warpgroup's rows of O.
    type Output: WarpgroupTile;
}

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// The tiles of head_dim `D` in the default shape.
pub struct DefaultTiles<const D: u32>;

/// The tiles of head_dim `D` in the shape [`TileShape::Compact`].
pub struct CompactTiles<const D: u32>;

/// The tiles of head_dim `D` in the shape [`TileShape::Wide`].
pub struct WideTiles<const D: u32>;

macro_rules! tiles {
    ($tiles:ident, $shape:ident: $($head_dim:literal)*) => {$(
        impl Tiles for $tiles<$head_dim> {
            const HEAD_DIM: u32 = $head_dim;
            const SHAPE: TileShape = TileShape::$shape;
            type Scores = RegisterTile<1, { n8(Self::FOOTPRINT.block_k) }>;
            type Output = RegisterTile<1, { n8($head_dim) }>;
        }
    )*};
}
tiles!(DefaultTiles, Default: 64 96 128 192 256);
tiles!(CompactTiles, Compact: 64 96 128 192 256);
tiles!(WideTiles, Wide: 64 128);

/// Registers of the threads that only move data, where the others need what these give back.
const PRODUCER_REGISTERS: u32 = 24;

/// Draws tiles until none are left.
///
/// # Safety
/// The launch is as [`config::tma_forward`] says, with not more blocks than tiles; tensors are as [`TmaForwardParams`]
/// says, of at most `T::HEAD_DIM` columns; `maps` is the address of the first tensor map.
#[inline(always)]
pub unsafe fn forward<E: Element, T: Tiles, M: Mask>(p: &TmaForwardParams, maps: u64) {
    let layout = Layout::new::<T>();
    let thread = special::thread_idx_x();
    // SAFETY: all threads of the block come here; barriers are made before anyone uses them.
    unsafe {
        if thread == 0 {
            layout.make_barriers::<T>();
            mbarrier::fence_mbarrier_init();
        }
        barrier::barrier_sync_all();
        // Lane 0's number in all lanes: ptxas then knows that the warp is of one mind.
        let warpgroup = shuffle::shuffle_idx_u32(thread / 128, 0);
        if warpgroup == 0 {
            if T::SHARES_REGISTERS {
                warpgroup::setmaxnreg_dec::<PRODUCER_REGISTERS>();
            }
            let warp = shuffle::shuffle_idx_u32(thread / 32, 0);
            if special::lane_idx() == 0 {
                if warp == 0 {
                    producer::produce::<T, M>(p, maps, layout);
                } else if T::STORES && warp <= T::CONSUMERS {
                    store_warp::store::<T>(p, maps, layout, warp - 1);
                }
            }
        } else {
            // With the movers', not more than the launch gives all of them: the 64 Ki of an SM, in shares of 8.
            if T::CONSUMERS == 3 {
                warpgroup::setmaxnreg_inc::<160>();
            } else if T::CONSUMERS == 2 {
                warpgroup::setmaxnreg_inc::<240>();
            } else if T::SHARES_REGISTERS {
                warpgroup::setmaxnreg_inc::<232>();
            }
            consumer::consume::<E, T, M>(p, layout, warpgroup - 1);
        }
    }
}
