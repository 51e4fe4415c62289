//! Where a tile's sequence lies: its rows of the tensors, its lengths and its mask, be it padded, packed or used in part.

use crate::attention::lengths::ListedTile;
use crate::attention::mask::Band;
use crate::attention::split_kv;
use crate::kernels::bounds;
use crate::params::{Shape, SplitKv, TensorView, TileList, Window};
use crate::ptx::spec;
use crate::tile::global::{GlobalRows, row_of_head};
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

/// Where a statistic of a sequence's rows lies, L among them: `f32 [heads, rows]`, of which the sequence has `seqlen_q` in each head. Heads are
/// those that the schedule counts.
#[derive(Clone, Copy)]
pub(crate) struct StatisticRows {
    pub(crate) base: u64,
    pub(crate) rows: u32,
    pub(crate) seqlen_q: u32,
}

impl StatisticRows {
    /// Where all sequences have as many rows.
    #[inline(always)]
    pub(crate) fn padded(base: u64, shape: &Shape) -> StatisticRows {
        StatisticRows {
            base,
            rows: shape.seqlen_q,
            seqlen_q: shape.seqlen_q,
        }
    }

    /// Of a tile's sequence, where these have lengths of their own.
    #[inline(always)]
    pub(crate) fn listed(
        base: u64,
        shape: &Shape,
        list: &TileList,
        tile: ListedTile,
    ) -> StatisticRows {
        let head = list.batch_q(tile.sequence) * shape.heads_q;
        StatisticRows {
            base: row_of_head(base, head, u64::from(list.rows_q), tile.q_first),
            rows: list.rows_q,
            seqlen_q: tile.seqlen_q,
        }
    }

    /// The address of a row's.
    #[inline(always)]
    pub(crate) fn address(&self, head: u32, row: u32) -> u64 {
        row_of_head(self.base, head, u64::from(self.rows), row)
    }
}

/// A tile's sequence. Each question decides for itself whether sequences have different lengths, and reads the list's entry then: no register need
/// hold what is asked for once.
#[derive(Clone, Copy)]
pub(crate) struct Sequence<'a, L> {
    pub(crate) shape: &'a Shape,
    pub(crate) list: &'a TileList,
    pub(crate) window: Window,
    /// The tile's batch entry; without a meaning where sequences have different lengths.
    pub(crate) batch_idx: u32,
    /// Reads the list's entry of the tile.
    pub(crate) listed: L,
}

impl<L: Fn() -> ListedTile> Sequence<'_, L> {
    /// The list's entry of the tile, where sequences have different lengths.
    #[inline(always)]
    fn tile(&self) -> Option<ListedTile> {
        spec::lengths().then(|| (self.listed)())
    }

    /// Which one.
    #[inline(always)]
    pub(crate) fn idx(&self) -> u32 {
        self.tile().map_or(self.batch_idx, |tile| tile.sequence)
    }

    /// Which of its heads of q the one is that the schedule counts as `head`: it counts the heads of all batch entries, or those of one sequence.
    #[inline(always)]
    pub(crate) fn head_idx(&self, head: u32) -> u32 {
        match spec::lengths() {
            true => head,
            false => head - self.batch_idx * self.shape.heads_q,
        }
    }

    /// The number of such a head among those of all sequences.
    #[inline(always)]
    pub(crate) fn head(&self, head: u32) -> u32 {
        let heads_q = self.shape.heads_q;
        self.tile()
            .map_or(head, |tile| tile.sequence * heads_q + head)
    }

    /// Its rows of q, and of k.
    #[inline(always)]
    pub(crate) fn lengths(&self) -> [u32; 2] {
        let shape = self.shape;
        self.tile()
            .map_or([shape.seqlen_q, shape.seqlen_k], |tile| tile.lengths())
    }

    /// Its mask.
    #[inline(always)]
    pub(crate) fn band(&self) -> Band {
        let [seqlen_q, seqlen_k] = self.lengths();
        band_of_lengths(self.window, seqlen_q, seqlen_k)
    }

    /// Its rows of a head of q, o or their gradients.
    #[inline(always)]
    pub(crate) fn rows_q<E: Products>(&self, tensor: &TensorView, head_idx: u32) -> GlobalRows {
        match self.tile() {
            Some(tile) => rows::<E>(tensor, self.list.batch_q(tile.sequence), head_idx, 0)
                .from_row(tile.q_first, tile.seqlen_q),
            None => rows::<E>(tensor, self.batch_idx, head_idx, self.shape.seqlen_q),
        }
    }

    /// Its rows of a head of k, v or their gradients.
    #[inline(always)]
    pub(crate) fn rows_k<E: Products>(&self, tensor: &TensorView, head_idx: u32) -> GlobalRows {
        match self.tile() {
            Some(tile) => rows::<E>(tensor, self.list.batch_k(tile.sequence), head_idx, 0)
                .from_row(tile.k_first, tile.seqlen_k),
            None => rows::<E>(tensor, self.batch_idx, head_idx, self.shape.seqlen_k),
        }
    }

    /// Its rows of a statistic that the caller has, L among them, in heads as the schedule counts them.
    #[inline(always)]
    pub(crate) fn statistic(&self, base: u64) -> StatisticRows {
        match self.tile() {
            Some(tile) => StatisticRows::listed(base, self.shape, self.list, tile),
            None => StatisticRows::padded(base, self.shape),
        }
    }

    /// How many query blocks the sequences before it have, in each head.
    #[inline(always)]
    pub(crate) fn q_blocks_before(&self) -> u32 {
        self.tile().map_or(0, |tile| tile.q_blocks_before)
    }

    /// How many splits its keys have, where keys are divided: each has `split_keys`.
    #[inline(always)]
    pub(crate) fn n_splits(&self, split: &SplitKv, split_keys: u32) -> u32 {
        self.tile().map_or(split.n, |tile| {
            split_kv::n_splits(tile.seqlen_k, split_keys)
        })
    }
}
