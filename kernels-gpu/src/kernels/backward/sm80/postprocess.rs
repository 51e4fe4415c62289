//! After the backward pass proper: dQ = accumulator · scale, rounded to the element type.

use super::{DqPart, Tiles, dq_address, dq_part, load_dq};
use crate::attention::mask::Rows;
use crate::attention::{batch_and_head, divide};
use crate::kernels::common::sequence::band_of_lengths;
use crate::kernels::varlen;
use crate::params::BackwardParams;
use crate::ptx::{barrier, spec, special};
use crate::tile::copy::{self, Team};
use crate::tile::global::GlobalRows;
use crate::tile::products::{Products, rows};
use crate::tile::register::Accumulator;
use crate::tile::shared::SharedTile;

/// One query block: registers as the main kernel's warps had them, through shared memory, to rows of dQ.
///
/// # Safety
/// The launch is as the variant's tile config says; tensors are as [`BackwardParams`] says, of at most `T::HEAD_DIM` columns.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn postprocess<E: Products, T: Tiles>(p: &BackwardParams) {
    let config = const { T::CONFIG };
    let (thread, lane) = (special::thread_idx_x(), special::lane_idx());
    let block_idx = special::block_idx_x();
    // SAFETY: the caller's contract.
    let Some(place) = (unsafe { place::<E, T>(p, block_idx) }) else {
        return;
    };
    let DqRows { first, d_q, .. } = place;
    let tile = SharedTile {
        base: special::shared_base(),
        row_bytes: T::HEAD_DIM * E::BYTES,
    };

    let mut acc = T::QueryGradient::zero();
    // SAFETY: the accumulator holds what the main kernel added for this block, if any tile of keys did.
    unsafe {
        if contributions(p, &place, block_idx, config.block_q, config.block_k) > 0 {
            let address = dq_address::<T>(p.d_q_accum, u64::from(block_idx), thread / 32, lane);
            acc = load_dq::<T>(address);
            acc.for_each(|_, _, x| *x *= p.scale.scale);
        }
        let DqPart { row, col } = dq_part::<T>(thread / 32);
        copy::store_shared::<E, _>(tile, row, col, &acc);
        barrier::barrier_sync_all();
        copy::store(
            d_q.with_chunks(p.shape.head_dim / E::PER_CHUNK),
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

/// Which rows a block of threads takes.
struct DqRows {
    /// The rows of dQ of the sequence, in the block's head.
    d_q: GlobalRows,
    /// The block's first one.
    first: u32,
    /// Rows of k of the sequence.
    seqlen_k: u32,
}

/// The block's rows; `None` where sequences have fewer than there may be.
#[inline(always)]
unsafe fn place<E: Products, T: Tiles>(p: &BackwardParams, block_idx: u32) -> Option<DqRows> {
    let block_q = const { T::CONFIG.block_q };
    let q_blocks = p.padded_q as u32 / block_q;
    let head = divide(block_idx, q_blocks);
    let block = block_idx - head * q_blocks;
    if !spec::lengths() {
        let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
        return Some(DqRows {
            d_q: rows::<E>(&p.d_q, batch_idx, head_idx, p.shape.seqlen_q),
            first: block * block_q,
            seqlen_k: p.shape.seqlen_k,
        });
    }
    // SAFETY: the list has been made, and has the entry.
    let listed = unsafe {
        if block >= varlen::n_listed(p.list.q_blocks) {
            return None;
        }
        varlen::listed(p.list.q_blocks, block)
    };
    Some(DqRows {
        d_q: rows::<E>(&p.d_q, p.list.batch_q(listed.sequence), head, 0)
            .from_row(listed.q_first, listed.seqlen_q),
        first: listed.block * block_q,
        seqlen_k: listed.seqlen_k,
    })
}

/// How many tiles of keys the block's queries meet.
#[inline(always)]
unsafe fn contributions(
    p: &BackwardParams,
    place: &DqRows,
    block_idx: u32,
    block_q: u32,
    block_k: u32,
) -> u32 {
    if spec::block_mask() {
        let q_blocks = divide(p.padded_q as u32, block_q);
        let head = divide(block_idx, q_blocks);
        let (batch_idx, head_idx) = batch_and_head(head, p.shape.heads_q);
        // SAFETY: the ranks have been made.
        return unsafe {
            p.blocks
                .n_tiles(batch_idx, head_idx, block_idx - head * q_blocks)
        };
    }
    let (seqlen_q, seqlen_k) = (place.d_q.len, place.seqlen_k);
    let queries = Rows::of_sequence(place.first, block_q, seqlen_q);
    band_of_lengths(p.window, seqlen_q, seqlen_k)
        .kv_blocks(queries, block_k)
        .n()
}
