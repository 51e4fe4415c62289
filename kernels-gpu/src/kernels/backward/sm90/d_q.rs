//! After the backward pass proper: dQ = accumulator · scale, rounded to the element type.

use super::Tiles;
use super::consumer::PIECE_BYTES;
use crate::attention::mask::{Causal, Full, Mask, Rows};
use crate::attention::{batch_and_head, divide};
use crate::params::BackwardParams;
use crate::ptx::{global, special};
use crate::tile::element::Element;
use crate::tile::global::{GlobalMatrix, GlobalRows};
use crate::tile::register::Accumulator;
use crate::tile::warpgroup::{self, WARPGROUP_ROWS};

/// 64 rows of dQ: registers as the main kernel's consumers had them, to rows.
///
/// # Safety
/// The launch is as the row's footprint says; tensors are as [`BackwardParams`] says, of at most `T::HEAD_DIM` columns.
#[inline(always)]
pub unsafe fn d_q<E: Element, T: Tiles>(p: &BackwardParams) {
    let config = T::FOOTPRINT;
    let thread = special::thread_idx_x();
    let block_idx = special::block_idx_x();
    let warpgroups = p.padded_q as u32 / WARPGROUP_ROWS;
    let head = divide(block_idx, warpgroups);
    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
    let first = (block_idx - head * warpgroups) * WARPGROUP_ROWS;
    if first >= p.shape.seqlen_q {
        return;
    }
    let mut d_q = T::KeyGradient::zero();
    // SAFETY: the accumulator holds what the main kernel added for this block, if any tile of keys did.
    unsafe {
        let in_block = first / config.block_q * config.block_q;
        if meets_keys(p, in_block, config.block_q, config.block_k) {
            // Blocks of more than 64 rows hold the pieces of the first 64 first.
            let parts = const { T::ACCUM_COLUMNS / 64 };
            let rows = u64::from(block_idx) * u64::from(parts);
            let base = p.d_q_accum + rows * u64::from(PIECE_BYTES) + u64::from(thread * 16);
            for n in 0..T::KeyGradient::N {
                let x = global::ld_global_f32x4(base + n as u64 * FRAGMENT_BYTES);
                *d_q.fragment_mut(0, n) = x.map(|x| x * p.scale.scale);
            }
        }
        let target = GlobalMatrix {
            rows: GlobalRows::new(&p.d_q, batch_idx, head_idx, p.shape.seqlen_q),
            chunks: p.shape.head_dim / 8,
        };
        warpgroup::store_rows::<E, _>(target, first + thread / 32 * 16, &d_q);
    }
}

/// Bytes of a fragment of all 128 threads; a piece has 8 of them.
const FRAGMENT_BYTES: u64 = 128 * 16;

/// Whether a tile of keys has added to the block.
#[inline(always)]
fn meets_keys(p: &BackwardParams, first: u32, block_q: u32, block_k: u32) -> bool {
    let queries = Rows::of_sequence(first, block_q, p.shape.seqlen_q);
    let blocks = if p.shape.causal == 1 {
        Causal::new(&p.shape).kv_blocks(queries, block_k)
    } else {
        Full::new(&p.shape).kv_blocks(queries, block_k)
    };
    blocks.end > 0
}
