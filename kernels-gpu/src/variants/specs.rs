//! Which constants each kernel asks for, and with which it is held to its budgets.

#[cfg(not(target_arch = "nvptx64"))]
mod edits;

use super::{Kind, TileShape, Variant};
use core::mem::offset_of;

use crate::attention::score::ScoreRows;
use crate::config::tma_backward_splits;
use crate::params::{
    BackwardParams, ForwardParams, StandardParams, TensorGradientParams, TmaBackwardParams,
    TmaForwardParams,
};
use crate::spec::{Constant, Spec};

// Specs that budgets hold.
const CAUSAL: Spec = Spec::PLAIN.with(Constant::RightBound);
const WINDOW: Spec = CAUSAL.with(Constant::LeftBound);
const PREFIX: Spec = CAUSAL.with(Constant::Prefix);
const PACKED: Spec = Spec::PLAIN.with(Constant::Lengths);
const PACKED_CAUSAL: Spec = CAUSAL.with(Constant::Lengths);
const SHARES: Spec = Spec::PLAIN.with(Constant::Shares);
const CAUSAL_SHARES: Spec = CAUSAL.with(Constant::Shares);
const WINDOW_SHARES: Spec = WINDOW.with(Constant::Shares);
const BLOCKS: Spec = Spec::PLAIN.with(Constant::BlockMask);
const CAUSAL_BLOCKS: Spec = CAUSAL.with(Constant::BlockMask);
const SPLIT: Spec = Spec::PLAIN.with(Constant::SplitKv);
const CAUSAL_SPLIT: Spec = CAUSAL.with(Constant::SplitKv);
const WINDOW_SPLIT: Spec = WINDOW.with(Constant::SplitKv);
const PACKED_CAUSAL_SPLIT: Spec = PACKED_CAUSAL.with(Constant::SplitKv);
const PAGES: Spec = PACKED.with(Constant::Pages);
const CAUSAL_PAGES: Spec = PACKED_CAUSAL.with(Constant::Pages);
const CAUSAL_PAGES_SPLIT: Spec = CAUSAL_PAGES.with(Constant::SplitKv);
const SINKS: Spec = Spec::PLAIN.with(Constant::Sinks);
const PACKED_SINKS: Spec = PACKED.with(Constant::Sinks);
const CAUSAL_SINKS: Spec = CAUSAL.with(Constant::Sinks);
const WINDOW_SINKS: Spec = WINDOW.with(Constant::Sinks);
const PACKED_CAUSAL_SINKS: Spec = PACKED_CAUSAL.with(Constant::Sinks);
const PACKED_CAUSAL_SPLIT_SINKS: Spec = PACKED_CAUSAL_SPLIT.with(Constant::Sinks);

impl Kind {
    /// The constants that its kernels may ask for.
    pub(crate) const fn constants(self) -> &'static [Constant] {
        match self {
            Kind::Merge | Kind::Append | Kind::SinkGradient => &[],
            Kind::Combine | Kind::StandardSoftmax | Kind::StandardDelta => {
                &[Constant::Lengths, Constant::Sinks]
            }
            Kind::BackwardDelta | Kind::TmaBackwardDelta | Kind::StandardDv | Kind::StandardDk => {
                &[Constant::Lengths]
            }
            Kind::StandardDWeights => &[Constant::Lengths, Constant::ScoreGradient],
            Kind::TensorGradient => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::BlockMask,
            ],
            Kind::StandardOutput | Kind::StandardDq => &[Constant::Lengths, Constant::BlockMask],
            Kind::TileList | Kind::TmaTileList | Kind::BlockList | Kind::MaskMap => {
                &[Constant::RightBound, Constant::LeftBound, Constant::Prefix]
            }
            Kind::Clear => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Prefix,
                Constant::BlockMask,
            ],
            Kind::TmaBackward => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Shares,
                Constant::Prefix,
                Constant::Score,
                Constant::ScoreGradient,
                Constant::EditPartial,
                Constant::BlockMask,
            ],
            Kind::Forward | Kind::TmaForward => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::Pages,
                Constant::Sinks,
                Constant::Score,
                Constant::EditPartial,
                Constant::BlockMask,
            ],
            Kind::StandardScores => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::Score,
                Constant::BlockMask,
            ],
            // Of tiles that divide keys, see below.
            Kind::ForwardE4m3 | Kind::TmaForwardLatent => &[],
            Kind::Backward => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::Score,
                Constant::ScoreGradient,
                Constant::EditPartial,
                Constant::BlockMask,
            ],
            Kind::BackwardDq | Kind::StandardDScores => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::BlockMask,
            ],
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use edits::StandardEdit;

/// Where a kernel edits scores by an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreSite {
    /// Which way its tiles of scores lie.
    pub rows: ScoreRows,
    /// Bytes of its parameters before [`crate::params::Scale`].
    pub scale: usize,
    /// Bytes of its parameters before [`crate::params::ScoreParams`].
    pub score: usize,
}

impl ScoreSite {
    const fn of_queries(scale: usize, score: usize) -> ScoreSite {
        ScoreSite {
            rows: ScoreRows::Queries,
            scale,
            score,
        }
    }
}

impl Variant {
    /// Where it edits scores by an expression; `None` where it cannot.
    pub const fn score_site(&self) -> Option<ScoreSite> {
        match (self.kind, self.tiles) {
            (Kind::Forward, TileShape::Default) => Some(ScoreSite::of_queries(
                offset_of!(ForwardParams, scale),
                offset_of!(ForwardParams, score),
            )),
            (Kind::TmaForward, TileShape::Default | TileShape::Compact | TileShape::Wide) => {
                Some(ScoreSite::of_queries(
                    offset_of!(TmaForwardParams, scale),
                    offset_of!(TmaForwardParams, score),
                ))
            }
            (Kind::Backward, _) => Some(ScoreSite {
                rows: ScoreRows::Keys,
                scale: offset_of!(BackwardParams, scale),
                score: offset_of!(BackwardParams, score),
            }),
            (Kind::TmaBackward, TileShape::Default) => Some(ScoreSite {
                rows: ScoreRows::Keys,
                scale: offset_of!(TmaBackwardParams, pass) + offset_of!(BackwardParams, scale),
                score: offset_of!(TmaBackwardParams, pass) + offset_of!(BackwardParams, score),
            }),
            (Kind::TensorGradient, _) => Some(ScoreSite::of_queries(
                offset_of!(TensorGradientParams, pass) + offset_of!(StandardParams, scale),
                offset_of!(TensorGradientParams, pass) + offset_of!(StandardParams, score),
            )),
            (Kind::StandardScores | Kind::StandardDWeights, _) => Some(ScoreSite::of_queries(
                offset_of!(StandardParams, scale),
                offset_of!(StandardParams, score),
            )),
            _ => None,
        }
    }

    /// Whether it can work under a block mask: with tiles that divide the mask's blocks. Kernels with other tiles have no code for it, which
    /// would cost them registers; nor has flash3's backward pass above head_dim 128, whose forward pass has such tiles.
    pub const fn takes_block_masks(&self) -> bool {
        let divides = self.footprint.divides_blocks();
        match (self.kind, self.head_dim) {
            (Kind::Forward | Kind::ForwardE4m3, _) if matches!(self.tiles, TileShape::Compact) => {
                false
            }
            (Kind::TmaForwardLatent, _) => false,
            (Kind::TmaForward, _) if matches!(self.tiles, TileShape::Grouped) => false,
            (Kind::TmaBackward, Some(head_dim)) => divides && !tma_backward_splits(head_dim),
            (Kind::Forward | Kind::TmaForward | Kind::Backward, _) => divides,
            _ => true,
        }
    }

    /// Whether it can divide keys among tiles: see [`crate::attention::split_kv`].
    pub const fn splits_kv(&self) -> bool {
        matches!(
            (self.kind, self.tiles),
            (
                Kind::Forward | Kind::ForwardE4m3 | Kind::TmaForward | Kind::TmaForwardLatent,
                TileShape::Compact
            ) | (Kind::TmaForward, TileShape::Grouped)
        )
    }

    /// The constants that it asks for; others make no difference to it.
    pub const fn constants(&self) -> &'static [Constant] {
        if self.splits_kv() {
            return self.constants_of_splits();
        }
        let all = self.kind.constants();
        if matches!(
            (self.kind, self.tiles),
            (Kind::TmaBackward, TileShape::Wide)
        ) {
            // Neither expressions nor block masks.
            return all.split_at(5).0;
        }
        match (self.kind, all) {
            (
                Kind::Forward | Kind::TmaForward | Kind::Backward | Kind::TmaBackward,
                [others @ .., Constant::EditPartial, Constant::BlockMask],
            ) if !self.takes_block_masks() => others,
            _ => all,
        }
    }

    /// The same of tiles that divide keys.
    const fn constants_of_splits(&self) -> &'static [Constant] {
        const ALL: [Constant; 10] = [
            Constant::RightBound,
            Constant::LeftBound,
            Constant::Lengths,
            Constant::Prefix,
            Constant::SplitKv,
            Constant::Pages,
            Constant::Sinks,
            Constant::Score,
            Constant::EditPartial,
            Constant::BlockMask,
        ];
        let n = match (self.score_site(), self.takes_block_masks()) {
            (Some(_), true) => 10,
            (Some(_), false) => 8,
            (None, _) => 7,
        };
        ALL.split_at(n).0
    }

    /// The specs with which it is held to its budgets when it is built; others are checked when they are loaded. Wide tiles have no
    /// registers for the first block of a window: ptxas spills two words, so plans take default tiles there. In the backward pass
    /// they are for sequences without a mask.
    pub const fn specs(&self) -> &'static [Spec] {
        match (self.kind, self.tiles) {
            (Kind::TileList | Kind::TmaTileList | Kind::BlockList | Kind::MaskMap, _) => {
                &[Spec::PLAIN, CAUSAL, WINDOW]
            }
            (Kind::Clear, _) => &[Spec::PLAIN, CAUSAL, WINDOW, BLOCKS],
            (Kind::Merge | Kind::Append | Kind::SinkGradient, _) => &[Spec::PLAIN],
            (Kind::Combine | Kind::StandardSoftmax | Kind::StandardDelta, _) => {
                &[Spec::PLAIN, PACKED, SINKS, PACKED_SINKS]
            }
            (Kind::TmaForward, TileShape::Wide) => &[
                Spec::PLAIN,
                CAUSAL,
                PREFIX,
                PACKED,
                PACKED_CAUSAL,
                PAGES,
                CAUSAL_PAGES,
                CAUSAL_SINKS,
                PACKED_CAUSAL_SINKS,
            ],
            (
                Kind::Forward | Kind::ForwardE4m3 | Kind::TmaForward | Kind::TmaForwardLatent,
                TileShape::Compact | TileShape::Grouped,
            ) => self.without_block_masks(&[
                BLOCKS,
                CAUSAL_BLOCKS,
                Spec::PLAIN,
                CAUSAL,
                WINDOW,
                PREFIX,
                PACKED,
                PACKED_CAUSAL,
                SPLIT,
                CAUSAL_SPLIT,
                WINDOW_SPLIT,
                PACKED_CAUSAL_SPLIT,
                PAGES,
                CAUSAL_PAGES,
                CAUSAL_PAGES_SPLIT,
                CAUSAL_SINKS,
                WINDOW_SINKS,
                PACKED_CAUSAL_SPLIT_SINKS,
            ]),
            (Kind::TmaBackward, TileShape::Wide) => &[Spec::PLAIN, PACKED, SHARES],
            (Kind::TmaBackward, _) => self.without_block_masks(&[
                BLOCKS,
                CAUSAL_BLOCKS,
                Spec::PLAIN,
                CAUSAL,
                WINDOW,
                PREFIX,
                PACKED,
                PACKED_CAUSAL,
                SHARES,
                CAUSAL_SHARES,
                WINDOW_SHARES,
            ]),
            (Kind::Forward | Kind::TmaForward, _) => self.without_block_masks(&[
                BLOCKS,
                CAUSAL_BLOCKS,
                Spec::PLAIN,
                CAUSAL,
                WINDOW,
                PREFIX,
                PACKED,
                PACKED_CAUSAL,
                PAGES,
                CAUSAL_PAGES,
                CAUSAL_SINKS,
                WINDOW_SINKS,
                PACKED_CAUSAL_SINKS,
            ]),
            (
                Kind::Backward
                | Kind::BackwardDq
                | Kind::StandardScores
                | Kind::StandardDScores
                | Kind::TensorGradient,
                _,
            ) => self.without_block_masks(&[
                BLOCKS,
                CAUSAL_BLOCKS,
                Spec::PLAIN,
                CAUSAL,
                WINDOW,
                PREFIX,
                PACKED,
                PACKED_CAUSAL,
            ]),
            (Kind::StandardOutput | Kind::StandardDq, _) => &[Spec::PLAIN, PACKED, BLOCKS],
            _ => &[Spec::PLAIN, PACKED],
        }
    }

    /// The specs but for those at the front that have a block mask, where it takes none.
    const fn without_block_masks(&self, specs: &'static [Spec]) -> &'static [Spec] {
        match specs {
            [first, others @ ..] if first.has(Constant::BlockMask) && !self.takes_block_masks() => {
                self.without_block_masks(others)
            }
            _ => specs,
        }
    }

    /// Bytes of spills and stack that ptxas may report with these constants.
    ///
    /// In flash3's backward pass at head_dim 128 consumers keep up to four words of what only conversions want there under a block mask,
    /// written once; with shares, and with lengths in wide tiles, the end of a tile does. Kernels without these constants have none of
    /// it. Where keys lie in pages, some forward kernels keep a few words of where in local memory, read once a tile: flash2's at head_dim 128,
    /// of flash3's the producer in wide tiles at head_dim 128, and in default ones at 256. With sinks wide tiles at head_dim 64 keep two
    /// words, read where a tile ends, and default ones at 256 one word, read once a block. Under a block mask flash2's backward pass looks each step up in the lists, with words for that in local memory at head_dim 128. The kernel of tensors' gradients holds
    /// three parts of 64 numbers in each thread; where the sequence and its head lie waits in local memory, read once a head.
    pub const fn spill_bytes(&self, spec: Spec) -> u32 {
        let wide = matches!(self.tiles, TileShape::Wide);
        let most = match (self.kind, self.head_dim) {
            (Kind::Forward, Some(128)) if spec.has(Constant::Pages) => 168,
            (Kind::TmaForward, Some(128)) if wide && spec.has(Constant::Pages) => 32,
            (Kind::TmaForward, Some(64)) if wide && spec.has(Constant::Sinks) => 32,
            (Kind::TmaForward, Some(256))
                if spec.has(Constant::Pages) || spec.has(Constant::Sinks) =>
            {
                8
            }
            (Kind::TensorGradient, _) => 316,
            (Kind::Backward, Some(128)) if spec.has(Constant::BlockMask) => 260,
            (Kind::TmaBackward, Some(128)) if spec.has(Constant::BlockMask) => 16,
            (Kind::TmaBackward, Some(128)) if spec.has(Constant::Shares) => {
                if wide {
                    36
                } else {
                    8
                }
            }
            (Kind::TmaBackward, Some(128)) if wide && spec.has(Constant::Lengths) => 24,
            _ => 0,
        };
        let least = self.footprint.spill_bytes;
        if most > least { most } else { least }
    }
}
