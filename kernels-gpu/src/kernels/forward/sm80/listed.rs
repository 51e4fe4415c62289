//! The loop over KV blocks under a block mask.

use super::stages::{Staged, load_first, scores};
use super::{Block, Blocks, add_values};
use crate::attention::block_mask::ListedBlock;
use crate::kernels::block_list::List;
use crate::params::ForwardParams;
use crate::ptx::{barrier, cp_async, spec};
use crate::tile::copy::BoundsChecked;
use crate::tile::products::Products;
use crate::tile::register::Accumulator;
use crate::tile::softmax::{OnlineSoftmax, RowValues};

/// The loop over the blocks of keys that a block mask leaves the tile, from the last one down.
///
/// # Safety
/// As [`super::forward`]; the list has been made.
#[inline(always)]
pub(super) unsafe fn attend_listed<E: Products, T: Blocks>(
    block: &Block,
    p: &ForwardParams,
    list: List,
) -> (T::Output, RowValues) {
    let block_k = const { T::FOOTPRINT.block_k };
    let mut o = T::Output::zero();
    let mut softmax = OnlineSoftmax::new(p.scale.scale_log2);
    // SAFETY: as `attend`; the list has the blocks.
    unsafe {
        let mut n = list.len();
        // As the list holds it: bytes that a structure does not use would be copied through local memory.
        let mut words = ListedBlock::default().words();
        if n > 0 {
            let listed = list.block(n - 1);
            words = listed.words();
            let first = Staged {
                step: n - 1,
                block: listed.block,
            };
            load_first::<T, BoundsChecked, false>(block, first);
        }
        cp_async::cp_async_commit_group();
        if n == 0 {
            // No step waits for the copies of Q, over which O is about to be written.
            cp_async::cp_async_wait_group::<0>();
            barrier::barrier_sync_all();
        }
        while n > 0 {
            n -= 1;
            let listed = ListedBlock::from_words(words);
            if n > 0 {
                words = list.block(n - 1).words();
            }
            let next = ListedBlock::from_words(words).block;
            let next = (n > 0).then(|| Staged {
                step: n - 1,
                block: next,
            });
            let this = Staged {
                step: n,
                block: listed.block,
            };
            let mut s = scores::<E, T, BoundsChecked, BoundsChecked, false>(block, this, next);
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
            add_values::<E, T>(block, p, n, k_first, &s, &mut o);
        }
        let lse = softmax.finish(&mut o);
        (o, lse)
    }
}
