//! flash3 backward for Hopper: TMA, `wgmma`, warpgroups with roles.
//!
//! A block stays on its SM and draws tiles of keys until none are left. K and V of a tile stay, blocks of queries pass by.
//! Its warps have roles:
//!
//! - the loader, one thread, draws tiles, says so to everybody through two slots, and keeps the rings of Q and dO full;
//! - two warpgroups of consumers, 64 keys of the tile each, recompute S and P, keep dV and dK, and share dQ;
//! - two turn keepers, a thread each for even and odd steps, say when it is the tile's turn to add to a block of dQ.
//!
//! Scores are held transposed, keys down, so that Pᵀ and dSᵀ are left operands of the next products as they lie in registers;
//! dSᵀ goes through shared memory too, for dQ. Step `i` of a consumer:
//!
//! ```text
//! begin dQ = dS_{i−2} K                    its share; the other one's keys have had a whole step to arrive
//! begin dK += dSᵀ_{i−1} Q_{i−1}
//! begin Sᵀ = K Q_iᵀ                        Q_i has arrived
//! wait for dQ;  add it to memory           when it is the tile's turn
//! wait for Sᵀ and dK;  release Q_{i−1};  mask it
//! Pᵀ ← exp(Sᵀ − L)
//! begin dPᵀ = V dO_iᵀ,  dV += Pᵀ dO_i      dO_i has arrived
//! wait for dPᵀ
//! dSᵀ_i ← Pᵀ ∘ (dPᵀ − Δ) → shared memory   beside dV's product
//! wait for dV;  release dO_i
//! ```
//!
//! Between the steps nothing is in flight, and the two consumers never meet: one's products run beside the other's
//! exponentials. Who waits for whom at dQ: [`crate::attention::walk`].

mod consumer;
pub mod d_q;
mod layout;
mod loader;
mod turns;

use super::Blocks;
use crate::attention::mask::Mask;
use crate::config::{self, Footprint};
use crate::params::TmaBackwardParams;
use crate::ptx::{barrier, mbarrier, shuffle, special, warpgroup};
use crate::tile::element::Element;
use crate::tile::register::RegisterTile;
use crate::tile::warpgroup::WarpgroupTile;
use layout::Layout;

/// The tiles of one head_dim.
pub trait Tiles: Blocks {
    /// A warpgroup's keys of Sᵀ and dPᵀ.
    type Scores: WarpgroupTile;
    /// A warpgroup's keys of dK or dV.
    type KeyGradient: WarpgroupTile;
    /// A warpgroup's share of a block of dQ: 64 rows, or 64 columns.
    type QueryGradient: WarpgroupTile;
}

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// The tiles of head_dim `D`.
pub struct HeadDim<const D: u32>;

impl<const D: u32> Blocks for HeadDim<D> {
    const HEAD_DIM: u32 = D;
    const FOOTPRINT: Footprint = config::tma_backward(D);
    const ACCUM_COLUMNS: u32 = config::padded_columns(D);
}

macro_rules! tiles {
    ($($head_dim:literal)*) => {$(
        impl Tiles for HeadDim<$head_dim> {
            type Scores = RegisterTile<1, { n8(Self::FOOTPRINT.block_q) }>;
            type KeyGradient = RegisterTile<1, { n8($head_dim) }>;
            type QueryGradient = RegisterTile<1, { n8(64) }>;
        }
    )*};
}
tiles!(64 96 128);

/// Registers of the threads that only move data; consumers need what these give back.
const MOVER_REGISTERS: u32 = 24;
/// Registers of consumers. With the movers', not more than the launch gives all of them: the 64 Ki of an SM, in shares of 8.
const CONSUMER_REGISTERS: u32 = 240;

/// Draws tiles until none are left.
///
/// # Safety
/// The launch is as [`config::tma_backward`] says, with not more blocks than tiles; tensors are as [`TmaBackwardParams`]
/// says, of at most `T::HEAD_DIM` columns; `maps` is the address of the first tensor map; the `delta` kernel ran before on
/// the stream.
#[inline(always)]
pub unsafe fn backward<E: Element, T: Tiles, M: Mask>(p: &TmaBackwardParams, maps: u64) {
    let layout = Layout::new::<T>();
    let thread = special::thread_idx_x();
    // SAFETY: all threads of the block come here; barriers are made before anyone uses them.
    unsafe {
        if thread == 0 {
            layout.make_barriers();
            mbarrier::fence_mbarrier_init();
        }
        barrier::barrier_sync_all();
        // Lane 0's number in all lanes: ptxas then knows that the warp is of one mind.
        let warpgroup = shuffle::shuffle_idx_u32(thread / 128, 0);
        if warpgroup == 0 {
            warpgroup::setmaxnreg_dec::<MOVER_REGISTERS>();
            let warp = shuffle::shuffle_idx_u32(thread / 32, 0);
            if special::lane_idx() == 0 {
                if warp == 0 {
                    loader::load::<T, M>(&p.pass, maps, layout);
                } else if warp <= config::TMA_BACKWARD_STAGES {
                    turns::keep::<T, M>(&p.pass, layout, warp - 1);
                }
            }
        } else {
            warpgroup::setmaxnreg_inc::<CONSUMER_REGISTERS>();
            consumer::consume::<E, T, M>(&p.pass, maps, layout, warpgroup - 1);
        }
    }
}
