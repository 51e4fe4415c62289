//! A consumer's scales, where Q, K and V have 8 bits.

use super::Tiles;
use super::consumer::Consumer;
use super::layout::{WorkTile, place};
use crate::ptx::{global, spec};
use crate::tile::ring::Ring;
use crate::tile::softmax::OnlineSoftmax;

impl Consumer<'_> {
    /// The softmax of a tile that has seen no score yet: of the tile that was announced last, before `slot`. `fresh` is that of any tile where there are no
    /// scales.
    ///
    /// # Safety
    /// The tile is not done with.
    #[inline(always)]
    pub(super) unsafe fn softmax_of_tile<T: Tiles>(
        &self,
        fresh: OnlineSoftmax,
        work: WorkTile,
        slot: Ring,
    ) -> OnlineSoftmax {
        if !T::TRANSPOSES {
            return fresh;
        }
        let descales = &self.p.descales;
        let pack = self.packing.pack(self.p, work.head);
        let batch_idx = if spec::lengths() {
            // SAFETY: the caller's contract.
            unsafe { self.sequence(work.head, place(slot, 1)) }.idx()
        } else {
            pack.batch_idx
        };
        let idx = u64::from(batch_idx * descales.batch_stride)
            + u64::from(pack.kv_head_idx * descales.head_stride);
        let [q, k, v] = [descales.q, descales.k, descales.v].map(|scales| match scales {
            0 => 1.0,
            // SAFETY: the parameters say where the scales lie.
            _ => unsafe { global::ld_global_f32(scales + idx * 4) },
        });
        let unit = q * k;
        let scale_log2 = if T::EDITS_SCORES && spec::score() {
            // Scores are what they stand for when an expression has edited them.
            self.p.scale.scale_log2
        } else {
            self.p.scale.scale_log2 * unit
        };
        OnlineSoftmax::of_e4m3(scale_log2, unit, v, T::SPECULATES)
    }
}
