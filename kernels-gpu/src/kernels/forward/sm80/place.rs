//! Which tile a block of threads works on, and where its sequence lies.

use crate::attention::batch_and_head;
use crate::attention::mask::Work;
use crate::attention::schedule::{self, ForwardTile};
use crate::kernels::forward::StatisticRows;
use crate::kernels::{lengths, query_tile_work};
use crate::params::{ForwardParams, Schedule, Window};
use crate::ptx::{spec, special};

/// Which tile a block works on, and where its sequence lies.
pub(super) struct Place {
    pub(super) seqlen_q: u32,
    pub(super) seqlen_k: u32,
    pub(super) window: Window,
    pub(super) tile: ForwardTile,
    pub(super) batch_q: u32,
    pub(super) batch_k: u32,
    /// Where sequences have lengths of their own: which one.
    pub(super) sequence: u32,
    pub(super) q_first: u32,
    pub(super) k_first: u32,
    pub(super) lse: StatisticRows,
}

/// The block's tile; `None` where sequences have fewer than there may be.
#[inline(always)]
pub(super) unsafe fn place(p: &ForwardParams) -> Option<Place> {
    let idx = special::block_idx_x();
    if !spec::lengths() {
        let tile = schedule::forward(&p.schedule, query_tile_work(&p.blocks), idx);
        let (batch_idx, _) = batch_and_head(tile.head, p.shape.heads_q);
        return Some(Place {
            seqlen_q: p.shape.seqlen_q,
            seqlen_k: p.shape.seqlen_k,
            window: p.window,
            tile,
            batch_q: batch_idx,
            batch_k: batch_idx,
            sequence: 0,
            q_first: 0,
            k_first: 0,
            lse: StatisticRows::padded(p.lse, &p.shape),
        });
    }
    // SAFETY: the list has been made, and has the entry.
    let (place, listed) = unsafe {
        let tiles = lengths::n_listed(p.list.tiles);
        if idx >= tiles * p.schedule.heads {
            return None;
        }
        let schedule = Schedule {
            tiles,
            ..p.schedule
        };
        // The list has the longest tiles first.
        let place = schedule::forward(&schedule, Work::Even, idx);
        (place, lengths::listed(p.list.tiles, place.q_block))
    };
    Some(Place {
        seqlen_q: listed.seqlen_q,
        seqlen_k: listed.seqlen_k,
        window: p.window.of_sequence(listed.seqlen_q, listed.seqlen_k),
        tile: ForwardTile {
            q_block: listed.block,
            ..place
        },
        batch_q: p.list.batch_q(listed.sequence),
        // A pool of pages begins at its entry 0, whatever the sequence.
        batch_k: if spec::pages() {
            0
        } else {
            p.list.batch_k(listed.sequence)
        },
        sequence: listed.sequence,
        q_first: listed.q_first,
        k_first: listed.k_first,
        lse: StatisticRows::listed(p.lse, &p.shape, &p.list, listed),
    })
}
