//! The backward pass, by recomputation: dQ, dK, dV from q, k, v, dO and the forward pass's O and lse.
//!
//! With S = Q Kᵀ · scale and P = exp(S − L) recomputed tile by tile (FlashAttention-2, Algorithm 2):
//!
//! ```text
//! Δ ← rowsum(dO ∘ O) − dL                      delta.rs, one pass over the rows
//! for each tile of keys, for each block of queries that sees it:
//!     Sᵀ ← K Qᵀ,  Pᵀ ← exp(Sᵀ − L)             score warps
//!     dV ← dV + Pᵀ dO                          score warps
//!     dPᵀ ← V dOᵀ,  dSᵀ ← Pᵀ ∘ (dPᵀ − Δ)       gradient warps
//!     dK ← dK + dSᵀ Q                          gradient warps
//!     dQ ← dQ + dS K                           all warps, into an f32 accumulator in global memory
//! dQ ← dQ · scale, rounded                     d_q.rs
//! ```
//!
//! Where weights are dropped, dV takes Pᵀ without them, divided by the share that is kept, and dPᵀ is 0 there, and divided as well; Δ is what it was.
//!
//! Scores are held transposed, keys down, so that Pᵀ and dSᵀ are left operands of the next products as they lie in
//! registers; only dS goes through shared memory, where dQ's product finds it.

pub mod delta;

pub mod flash1;

pub mod sm80;

pub mod sm90;

mod key_tile;

mod dropout;
mod expression;
mod probabilities;

mod query_gradient;

pub mod d_q;

use core::marker::PhantomData;

use crate::attention::schedule::BackwardTile;
use crate::config::{self, F32_BYTES, HALF_BYTES, TileConfig};
use crate::kernels::lengths;
use crate::kernels::stamps::{Record, Stamped};
use crate::params::{BackwardParams, Schedule};
use crate::ptx::{global, shared, spec, special};
use crate::tile::element::{Element, F32};
use crate::tile::products::Products;
use crate::tile::register::{Accumulator, RegisterTile};
use crate::variants::TileShape;

/// What the kernels of a pass agree on: how rows of q are cut into blocks, and the size of the accumulator of dQ.
pub trait Blocks {
    /// Columns that the kernels are compiled for.
    const HEAD_DIM: u32;
    /// What a block of the main kernel takes, and which part of the problem it covers.
    const CONFIG: TileConfig;
    /// Columns of the accumulator of dQ.
    const ACCUM_COLUMNS: u32;
    /// Whether lse and Δ of 16 rows lie in the order in which fragments want them: see `interleaved`.
    const INTERLEAVED: bool = false;
    /// Whether the main kernel records its tiles: see [`Stamped`].
    const STAMPS: bool = false;
}

impl<T: Blocks> Blocks for Stamped<T> {
    const HEAD_DIM: u32 = T::HEAD_DIM;
    const CONFIG: TileConfig = T::CONFIG;
    const ACCUM_COLUMNS: u32 = T::ACCUM_COLUMNS;
    const INTERLEAVED: bool = T::INTERLEAVED;
    const STAMPS: bool = true;
}

/// Where, of 16 rows, the statistics of the `row`-th lie such that a lane finds what two neighbouring fragments want of them
/// side by side: 0, 1, 8, 9, then 2, 3, 10, 11, and so on. Of other rows, in their 16.
#[inline(always)]
const fn interleaved(row: u32) -> u32 {
    (row & !14) | (row & 6) << 1 | (row & 8) >> 2
}

/// flash2's tiles of one head_dim in one shape. All three kernels of a pass are made from the same: they share the padded
/// length and the layout of the accumulator of dQ.
pub trait Tiles: Blocks {
    /// Their shape.
    const SHAPE: TileShape;
    /// Whether a block of threads works on all tiles of a head, one after the other, so that nobody else adds to its dQ: see `flash1.rs`.
    const ALONE: bool = false;
    /// Warps of each of the two roles.
    const ROLE_WARPS: u32 = Self::CONFIG.threads / 64;
    /// Keys of a warp: a role's warps share those of the tile.
    const WARP_KEYS: u32 = Self::CONFIG.block_k / Self::ROLE_WARPS;
    /// A warp's keys of Sᵀ and dPᵀ.
    type Scores: Accumulator;
    /// A warp's keys of dK or dV.
    type KeyGradient: Accumulator;
    /// A warp's part of a block of dQ; all warps together hold it.
    type QueryGradient: Accumulator;
    /// Fails to compile where the register tiles are not those of the tile config.
    const CONSISTENT: () = {
        let (block_q, head_dim) = (Self::CONFIG.block_q, Self::HEAD_DIM);
        let warps = 2 * Self::ROLE_WARPS;
        let (rows, cols) = extent::<Self::Scores>();
        assert!(rows == Self::WARP_KEYS && cols == block_q);
        let (rows, cols) = extent::<Self::KeyGradient>();
        assert!(rows == Self::WARP_KEYS && cols == head_dim);
        let (rows, cols) = extent::<Self::QueryGradient>();
        assert!(rows * cols * warps == block_q * head_dim && head_dim % cols == 0);
    };
}

impl<T: Tiles> Tiles for Stamped<T> {
    const SHAPE: TileShape = T::SHAPE;
    type Scores = T::Scores;
    type KeyGradient = T::KeyGradient;
    type QueryGradient = T::QueryGradient;
}

/// The record of a tile of keys.
#[inline(always)]
fn record(p: &BackwardParams, tile: BackwardTile, writes: bool) -> Record {
    Record::new(p.stamps, p.schedule.tiles, tile.head, tile.k_block, writes)
}

/// Rows and columns of a tile in registers.
const fn extent<A: Accumulator>() -> (u32, u32) {
    (A::M as u32 * 16, A::N as u32 * 8)
}

/// The tiles of head_dim `D` and elements `E` in the default shape.
pub struct DefaultTiles<E, const D: u32>(PhantomData<E>);

/// The same in the shape [`TileShape::Compact`].
pub struct CompactTiles<E, const D: u32>(PhantomData<E>);

/// Register tiles by their fragments: down of a warp's keys, then down and across of its part of a block of dQ.
macro_rules! tiles {
    ($tiles:ident $shape:ident, $($head_dim:literal: $m:literal, $q_m:literal $q_n:literal;)* of $bytes:ident, $elements:tt) => {$(
        tiles!(@ $tiles $shape, $head_dim, $m, $q_m $q_n, $bytes, $elements);
    )*};
    (@ $tiles:ident $shape:ident, $head_dim:literal, $m:literal, $q_m:literal $q_n:literal, $bytes:ident,
        [$element:ty $(, $e:ident: $bound:ident)?]
    ) => {
        impl$(<$e: $bound>)? Tiles for $tiles<$element, $head_dim> {
            const SHAPE: TileShape = TileShape::$shape;
            type Scores =
                RegisterTile<$m, { n8(config::backward($bytes, $head_dim, TileShape::$shape).block_q) }>;
            type KeyGradient = RegisterTile<$m, { n8($head_dim) }>;
            type QueryGradient = RegisterTile<$q_m, $q_n>;
        }
    };
    ($($tiles:ident $shape:ident;)*) => {$(
        impl<E: Products, const D: u32> Blocks for $tiles<E, D> {
            const HEAD_DIM: u32 = D;
            const CONFIG: TileConfig = config::backward(E::BYTES, D, TileShape::$shape);
            const ACCUM_COLUMNS: u32 = D;
        }
    )*};
}

tiles! { DefaultTiles Default; CompactTiles Compact; }
tiles! { DefaultTiles Default, 32: 2, 1 2; 64: 2, 2 2; 128: 2, 2 4; 256: 1, 2 4; of HALF_BYTES, [E, E: Element] }
tiles! { CompactTiles Compact, 128: 2, 1 2; 256: 1, 1 8; of HALF_BYTES, [E, E: Element] }
tiles! { DefaultTiles Default, 32: 2, 1 2; 64: 2, 2 2; 128: 1, 2 2; of F32_BYTES, [F32] }
tiles! { CompactTiles Compact, 128: 1, 1 4; of F32_BYTES, [F32] }

/// Calls `f` with the index of every fragment across, and the two values of a block's `statistics` in shared memory that
/// this lane's columns of it want.
///
/// # Safety
/// The statistics have arrived.
#[inline(always)]
unsafe fn with_columns<S: Accumulator>(statistics: u32, mut f: impl FnMut(usize, [f32; 2])) {
    let first = statistics + special::lane_idx() % 4 * 8;
    for n in 0..S::N {
        // SAFETY: the caller's contract.
        let pair = unsafe { shared::ld_shared_x2(first + n as u32 * 32) };
        f(n, pair.map(f32::from_bits));
    }
}

/// Fragments across `columns` columns.
const fn n8(columns: u32) -> usize {
    columns as usize / 8
}

/// The order of the tiles. Where sequences have lengths of their own, the list says how many there are. It is read each time: no
/// register need hold the number.
#[inline(always)]
fn schedule_of(p: &BackwardParams) -> Schedule {
    if spec::lengths() {
        Schedule {
            // SAFETY: a list lies there.
            tiles: unsafe { lengths::n_listed(p.list.tiles) },
            ..p.schedule
        }
    } else {
        p.schedule
    }
}

/// Where a warp's part of a block of dQ lies.
#[derive(Clone, Copy)]
struct QueryGradientPlace {
    /// First row of the block.
    row: u32,
    /// First column.
    col: u32,
}

/// The part of warp `warp`: parts lie side by side first, then below each other.
#[inline(always)]
fn query_gradient_place<T: Tiles>(warp: u32) -> QueryGradientPlace {
    let (rows, cols) = (
        T::QueryGradient::M as u32 * 16,
        T::QueryGradient::N as u32 * 8,
    );
    let across = T::HEAD_DIM / cols;
    QueryGradientPlace {
        row: warp / across * rows,
        col: warp % across * cols,
    }
}

/// The address of this lane's first element of a block of the dQ accumulator. A warp's elements lie register by
/// register, 32 lanes side by side, so that every access is one line of 128 bytes.
#[inline(always)]
fn query_gradient_address<T: Tiles>(accum: u64, block: u64, warp: u32, lane: u32) -> u64 {
    let block_elems = u64::from(const { T::CONFIG.block_q } * T::HEAD_DIM);
    let registers = (T::QueryGradient::M * T::QueryGradient::N * 4) as u32;
    accum + (block * block_elems + u64::from(warp * registers * 32 + lane)) * 4
}

/// Bytes from one register of a lane to the next in the dQ accumulator.
const REGISTER_STRIDE: u64 = 32 * 4;

/// What the dQ accumulator holds from this address on: a warp's part of a block.
///
/// # Safety
/// It has been written, and is visible to this thread.
#[inline(always)]
unsafe fn load_query_gradient<T: Tiles>(mut address: u64) -> T::QueryGradient {
    let mut d_q = T::QueryGradient::zero();
    for m in 0..T::QueryGradient::M {
        for n in 0..T::QueryGradient::N {
            for x in d_q.fragment_mut(m, n) {
                // SAFETY: the caller's contract.
                *x = unsafe { global::ld_global_f32(address) };
                address += REGISTER_STRIDE;
            }
        }
    }
    d_q
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::element::Bf16;

    /// A lane's first element, worked out in 128 bits, of a block that only a large problem has.
    fn check<T: Tiles>(block: u64) {
        let registers = (T::QueryGradient::M * T::QueryGradient::N * 4) as u128;
        let block_elems = u128::from(T::CONFIG.block_q * T::HEAD_DIM);
        let (accum, warp, lane) = (1 << 40, 3, 17);
        let elements = u128::from(block) * block_elems + 3 * registers * 32 + 17;
        let address = query_gradient_address::<T>(accum, block, warp, lane);
        assert_eq!(u128::from(address), (1 << 40) + 4 * elements);
    }

    #[test]
    fn addresses_in_the_accumulator_have_64_bits() {
        for block in [0, (1 << 18) + 3, (1 << 31) + 5, (1 << 33) + 7] {
            check::<DefaultTiles<Bf16, 32>>(block);
            check::<DefaultTiles<Bf16, 64>>(block);
            check::<DefaultTiles<Bf16, 128>>(block);
            check::<DefaultTiles<Bf16, 256>>(block);
            check::<CompactTiles<Bf16, 128>>(block);
            check::<CompactTiles<Bf16, 256>>(block);
            check::<DefaultTiles<F32, 128>>(block);
        }
    }
}
