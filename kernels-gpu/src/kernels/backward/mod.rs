//! The backward pass, by recomputation: dQ, dK, dV from q, k, v, dO and the forward pass's O and lse.
//!
//! With S = scale · Q Kᵀ and P = exp(S − L) recomputed tile by tile (FlashAttention-2, Algorithm 2):
//!
//! ```text
//! Δ ← rowsum(dO ∘ O) − dL                      preprocess, one pass over the rows
//! for each tile of keys, for each block of queries that sees it:
//!     Sᵀ ← scale · K Qᵀ,  Pᵀ ← exp(Sᵀ − L)     score warps
//!     dV ← dV + Pᵀ dO                          score warps
//!     dPᵀ ← V dOᵀ,  dSᵀ ← Pᵀ ∘ (dPᵀ − Δ)       gradient warps
//!     dK ← dK + dSᵀ Q                          gradient warps
//!     dQ ← dQ + dS K                           all warps, into an f32 accumulator in global memory
//! dK ← scale · dK, dQ ← scale · dQ, rounded    epilogue, postprocess
//! ```
//!
//! With dropout, dV takes Pᵀ without the dropped weights, divided by the probability of being kept; dPᵀ is 0 there, and divided as well; Δ is unchanged.
//!
//! Scores are held transposed, keys down, so that Pᵀ and dSᵀ are left operands of the next products as they lie in
//! registers; only dS goes through shared memory, where dQ's product finds it.
//!
//! | module | contents |
//! |---|---|
//! | `preprocess` | Δ, lse to base 2, and clearing for the main kernel |
//! | `sm80` | flash2: the main kernel by `mma`; its postprocess rounds dQ |
//! | `sm90` | flash3: the main kernel by `wgmma` and TMA, which rounds dQ itself |
//! | `clear` | dK and dV of keys that no query sees |
//! | `sink_gradient`, `tensor_gradient` | gradients of sinks, and of tensors that scores read |

pub mod preprocess;

pub mod sm80;

pub mod sm90;

pub mod clear;

pub mod sink_gradient;

pub mod tensor_gradient;

use crate::attention::schedule::BackwardTile;
use crate::config::TileConfig;
use crate::kernels::common::stamps::{Profiled, Record};
use crate::params::{BackwardParams, Schedule};

/// The common layout of a pass's kernels: how rows of q are cut into blocks, and the size of the accumulator of dQ.
pub trait Blocks {
    /// Columns that the kernels are compiled for.
    const HEAD_DIM: u32;
    /// The resources of a block of the main kernel, and the part of the problem that it covers.
    const CONFIG: TileConfig;
    /// Columns of the accumulator of dQ.
    const ACCUM_COLUMNS: u32;
    /// Whether lse and Δ of 16 rows lie in the order in which fragments want them: see `interleaved`.
    const INTERLEAVED: bool = false;
    /// Whether the main kernel records its tiles: see [`Profiled`].
    const PROFILES: bool = false;
}

impl<T: Blocks> Blocks for Profiled<T> {
    const HEAD_DIM: u32 = T::HEAD_DIM;
    const CONFIG: TileConfig = T::CONFIG;
    const ACCUM_COLUMNS: u32 = T::ACCUM_COLUMNS;
    const INTERLEAVED: bool = T::INTERLEAVED;
    const PROFILES: bool = true;
}

/// The index of the statistics of the `row`-th of 16 rows, in an order in which a lane finds those for two adjacent fragments next to each other: 0,
/// 1, 8, 9, then 2, 3, 10, 11, and so on. For other rows, within their 16.
#[inline(always)]
const fn interleaved(row: u32) -> u32 {
    (row & !14) | (row & 6) << 1 | (row & 8) >> 2
}

/// The record of a tile of keys.
#[inline(always)]
fn record(p: &BackwardParams, tile: BackwardTile, writes: bool) -> Record {
    Record::new(p.stamps, p.schedule.tiles, tile.head, tile.k_block, writes)
}

/// The order of the tiles. If sequences have different lengths, their list is read each time: no register need hold how many there are.
#[inline(always)]
fn schedule_of(p: &BackwardParams) -> Schedule {
    // SAFETY: the list has been made.
    unsafe { p.list.schedule(&p.schedule) }
}
