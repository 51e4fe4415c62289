//! After the backward pass proper: dQ = accumulator · scale, rounded to the element type.

use super::{
    QueryGradientPlace, REGISTER_STRIDE, Tiles, query_gradient_address, query_gradient_place,
};
use crate::attention::mask::Rows;
use crate::attention::{batch_and_head, divide};
use crate::kernels::band;
use crate::params::BackwardParams;
use crate::ptx::{barrier, global, special};
use crate::tile::copy::{self, Team};
use crate::tile::element::Element;
use crate::tile::global::GlobalRows;
use crate::tile::register::Accumulator;
use crate::tile::shared::SharedTile;

/// One query block: registers as the main kernel's warps had them, through shared memory, to rows of dQ.
///
/// # Safety
/// The launch is as the row's footprint says; tensors are as [`BackwardParams`] says, of `T::HEAD_DIM` columns.
#[inline(always)]
pub unsafe fn d_q<E: Element, T: Tiles>(p: &BackwardParams) {
    let config = const { T::FOOTPRINT };
    let (thread, lane) = (special::thread_idx_x(), special::lane_idx());
    let block_idx = special::block_idx_x();
    let q_blocks = p.shape.seqlen_q.div_ceil(config.block_q);
    let head = divide(block_idx, q_blocks);
    let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
    let first = (block_idx - head * q_blocks) * config.block_q;
    let d_q = GlobalRows::new(&p.d_q, batch_idx, head_idx, p.shape.seqlen_q);
    let tile = SharedTile {
        base: special::shared_base(),
        row_bytes: T::HEAD_DIM * 2,
    };

    let mut acc = T::QueryGradient::zero();
    // SAFETY: the accumulator holds what the main kernel added for this block, if any tile of keys did.
    unsafe {
        if contributions(p, first, config.block_q, config.block_k) > 0 {
            let mut address =
                query_gradient_address::<T>(p.d_q_accum, u64::from(block_idx), thread / 32, lane);
            for m in 0..T::QueryGradient::M {
                for n in 0..T::QueryGradient::N {
                    for x in acc.fragment_mut(m, n) {
                        *x = global::ld_global_f32(address) * p.scale.scale;
                        address += REGISTER_STRIDE;
                    }
                }
            }
        }
        let QueryGradientPlace { row, col } = query_gradient_place::<T>(thread / 32);
        copy::store_shared::<E, _>(tile, row, col, &acc);
        barrier::barrier_sync_all();
        copy::store(
            d_q,
            first,
            tile,
            0,
            config.block_q,
            Team {
                thread,
                threads: config.threads,
            },
        );
    }
}

/// How many tiles of keys the block's queries meet.
#[inline(always)]
fn contributions(p: &BackwardParams, first: u32, block_q: u32, block_k: u32) -> u32 {
    let queries = Rows::of_sequence(first, block_q, p.shape.seqlen_q);
    band(&p.shape, p.window).kv_blocks(queries, block_k).n()
}
