//! flash1 backward, for sm_80 and newer: the schedule of the first FlashAttention paper (Dao et al. 2022, Algorithm 4).
//!
//! ```text
//! dQ ← 0                                            preprocess, in global memory
//! for each tile of keys j:                          in one block of threads, for a KV head
//!     load K_j, V_j;  dK_j ← 0, dV_j ← 0
//!     for each query head of the group, for each block of queries i that sees it:
//!         load Q_i, dO_i, L_i, Δ_i, dQ_i
//!         Sᵀ ← K_j Q_iᵀ,  Pᵀ ← exp(Sᵀ − L_i)
//!         dV_j ← dV_j + Pᵀ dO_i
//!         dPᵀ ← V_j dO_iᵀ,  dSᵀ ← Pᵀ ∘ (dPᵀ − Δ_i)
//!         dQ_i ← dQ_i + dS K_j;  store dQ_i
//!         dK_j ← dK_j + dSᵀ Q_i
//!     store dK_j, dV_j
//! dQ ← dQ · scale, rounded                          postprocess
//! ```
//!
//! The paper keeps O, l and m, and takes Δ_i = rowsum(dO_i ∘ O_i) again in each step; L_i stands for l and m here, and both are made once, as in flash2.
//!
//! A tile of keys is flash2's (`key_tile.rs`), as this paper's loops are in the backward pass: flash2 shares the tiles out among blocks of threads,
//! which then have to take turns at dQ. Here all tiles of a head are one block's, so it adds to dQ by a plain load and a plain store.

use core::marker::PhantomData;

use crate::attention::schedule::{BackwardTile, Direction};
use crate::config::TileConfig;
use crate::kernels::backward::Blocks;
use crate::kernels::backward::sm80::key_tile::Layout;
use crate::kernels::backward::sm80::{Tiles, attend_key_tile, meet};
use crate::params::BackwardParams;
use crate::ptx::special;
use crate::tile::products::Products;
use crate::variants::TileShape;

/// flash2's tiles, all those of a head by one block of threads.
pub struct Alone<T>(PhantomData<T>);

impl<T: Blocks> Blocks for Alone<T> {
    const HEAD_DIM: u32 = T::HEAD_DIM;
    const CONFIG: TileConfig = T::CONFIG;
    const ACCUM_COLUMNS: u32 = T::ACCUM_COLUMNS;
}

impl<T: Tiles> Tiles for Alone<T> {
    const SHAPE: TileShape = T::SHAPE;
    const ALONE: bool = true;
    type Scores = T::Scores;
    type KeyGradient = T::KeyGradient;
    type QueryGradient = T::QueryGradient;
}

/// All tiles of a KV head, in ascending order.
///
/// # Safety
/// As [`crate::kernels::backward::sm80::backward`]; `preprocess` has cleared the accumulator of dQ.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn backward<E: Products, T: Tiles>(p: &BackwardParams) {
    const { Alone::<T>::CONSISTENT };
    let shared = Layout::new::<E, Alone<T>>();
    let (thread, head) = (special::thread_idx_x(), special::block_idx_x());
    for k_block in 0..p.schedule.tiles {
        let tile = BackwardTile {
            k_block,
            head,
            direction: Direction::Up,
        };
        // SAFETY: the caller's contract. The barrier stands behind the last tile's use of shared memory.
        unsafe {
            meet::<T>();
            attend_key_tile::<E, Alone<T>>(p, shared, tile, thread);
        }
    }
}
