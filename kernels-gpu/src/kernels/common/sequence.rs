//! Where a tile's sequence lies: its rows of the tensors, its lengths and its mask, be it padded, packed or used in part.

use crate::attention::lengths::ListedTile;
use crate::attention::mask::Band;
use crate::kernels::bounds;
use crate::params::{Shape, TensorView, TileList, Window};
use crate::ptx::spec;
use crate::tile::global::GlobalRows;
use crate::tile::products::{Products, rows};

/// The mask of a sequence of these lengths. `window` is that of all sequences or, where they have lengths of their own, of one without rows.
#[inline(always)]
pub(crate) fn band_of_lengths(window: Window, seqlen_q: u32, seqlen_k: u32) -> Band {
    let window = if spec::lengths() {
        window.of_sequence(seqlen_q, seqlen_k)
    } else {
        window
    };
    // The bounds are asked for here: behind two ways ptxas would not know them.
    Band::new(seqlen_q, seqlen_k, window, bounds())
}

/// A tile's sequence. It decides at each question anew whether sequences have lengths of their own, and reads the list's entry then: no register need
/// hold what is asked for once.
#[derive(Clone, Copy)]
pub(crate) struct Sequence<'a, L> {
    pub(crate) shape: &'a Shape,
    pub(crate) list: &'a TileList,
    pub(crate) window: Window,
    /// The tile's batch entry; without a meaning where sequences have lengths of their own.
    pub(crate) batch_idx: u32,
    /// Reads the list's entry of the tile.
    pub(crate) listed: L,
}

impl<L: Fn() -> ListedTile> Sequence<'_, L> {
    /// Which one.
    #[inline(always)]
    pub(crate) fn idx(&self) -> u32 {
        if spec::lengths() {
            (self.listed)().sequence
        } else {
            self.batch_idx
        }
    }

    /// Its rows of q, and of k.
    #[inline(always)]
    pub(crate) fn lengths(&self) -> [u32; 2] {
        if spec::lengths() {
            let tile = (self.listed)();
            [tile.seqlen_q, tile.seqlen_k]
        } else {
            [self.shape.seqlen_q, self.shape.seqlen_k]
        }
    }

    /// Its mask.
    #[inline(always)]
    pub(crate) fn band(&self) -> Band {
        let (seqlen_q, seqlen_k, window) = if spec::lengths() {
            let tile = (self.listed)();
            let window = self.window.of_sequence(tile.seqlen_q, tile.seqlen_k);
            (tile.seqlen_q, tile.seqlen_k, window)
        } else {
            (self.shape.seqlen_q, self.shape.seqlen_k, self.window)
        };
        // The bounds are asked for here: see `band_of_lengths`.
        Band::new(seqlen_q, seqlen_k, window, bounds())
    }

    /// Its rows of a head of q, o or their gradients.
    #[inline(always)]
    pub(crate) fn rows_q<E: Products>(&self, tensor: &TensorView, head_idx: u32) -> GlobalRows {
        if spec::lengths() {
            let tile = (self.listed)();
            rows::<E>(tensor, self.list.batch_q(tile.sequence), head_idx, 0)
                .from_row(tile.q_first, tile.seqlen_q)
        } else {
            rows::<E>(tensor, self.batch_idx, head_idx, self.shape.seqlen_q)
        }
    }

    /// Its rows of a head of k, v or their gradients.
    #[inline(always)]
    pub(crate) fn rows_k<E: Products>(&self, tensor: &TensorView, head_idx: u32) -> GlobalRows {
        if spec::lengths() {
            let tile = (self.listed)();
            rows::<E>(tensor, self.list.batch_k(tile.sequence), head_idx, 0)
                .from_row(tile.k_first, tile.seqlen_k)
        } else {
            rows::<E>(tensor, self.batch_idx, head_idx, self.shape.seqlen_k)
        }
    }

    /// How many query blocks the sequences before it have, in each head.
    #[inline(always)]
    pub(crate) fn q_blocks_before(&self) -> u32 {
        if spec::lengths() {
            (self.listed)().q_blocks_before
        } else {
            0
        }
    }
}
