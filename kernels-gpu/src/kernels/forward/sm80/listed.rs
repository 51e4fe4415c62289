//! The loop over KV blocks under a block mask.

use super::{Block, Tiles, load_kv, stage};
use crate::attention::block_mask::ListedBlock;
use crate::config;
use crate::kernels::block_list::List;
use crate::params::ForwardParams;
use crate::ptx::{barrier, cp_async, spec};
use crate::tile::copy::BoundsChecked;
use crate::tile::element::Element;
use crate::tile::matmul::{Registers, left, multiply_add, right, right_transposed};
use crate::tile::register::Accumulator;
use crate::tile::softmax::{OnlineSoftmax, RowValues};

/// The loop over the blocks of keys that a block mask leaves the tile, from the last one down.
///
/// # Safety
/// As [`super::forward`]; the list has been made.
#[inline(always)]
pub(super) unsafe fn attend_listed<E: Element, T: Tiles>(
    block: &Block,
    p: &ForwardParams,
    list: List,
) -> (T::Output, RowValues) {
    let block_k = const { config::forward(T::HEAD_DIM).block_k };
    let mut o = T::Output::zero();
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    // SAFETY: as `attend`; the list has the blocks.
    unsafe {
        let mut n = list.len();
        let mut listed = ListedBlock::default();
        if n > 0 {
            listed = list.block(n - 1);
            load_kv::<T, BoundsChecked, false>(block, n - 1, listed.block);
        }
        cp_async::cp_async_commit_group();
        if n == 0 {
            // No step waits for the copies of Q, over which O is about to be written.
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
        }
        while n > 0 {
            n -= 1;
            let next = if n > 0 { list.block(n - 1) } else { listed };
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
            if n > 0 {
                load_kv::<T, BoundsChecked, false>(block, n - 1, next.block);
            }
            cp_async::cp_async_commit_group();

            let mut s = T::Scores::zero();
            let (q, k) = (
                left(block.q_tile, block.warp_row),
                right_transposed(stage::<T>(block.k_tile, n), 0),
            );
            multiply_add::<E, _>(&mut s, q, k, T::HEAD_DIM as usize / 16);
            if spec::score() && !(spec::edit_partial() && listed.is_full) {
                block.edit_scores(p, listed.block * block_k, &mut s);
            }
            let (k_first, seqlen_k) = (listed.block * block_k, block.band.seqlen_k());
            if !listed.is_full || k_first + block_k > seqlen_k {
                let q_first = block.queries.first + block.warp_row;
                s.for_each(|row, col, s| {
                    if !listed.keep(&block.band, q_first + row, k_first + col) {
                        *s = f32::NEG_INFINITY;
                    }
                });
            }
            softmax.update(&mut s, &mut o);
            let mut weights = s.pack::<E>();
            if spec::dropout() {
                block.drop_weights::<T::Scores>(p, k_first, &mut weights);
            }
            let v = right(stage::<T>(block.v_tile, n), 0);
            multiply_add::<E, _>(&mut o, Registers(weights), v, block_k as usize / 16);
            listed = next;
        }
        let lse = softmax.finish(&mut o);
        (o, lse)
    }
}
