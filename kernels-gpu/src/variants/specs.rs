//! Which constants each kernel asks for.

use core::mem::offset_of;

use super::{Dtype, Kind, Stamps, TileShape, Variant};
use crate::attention::score::ScoreRows;
use crate::config::tma_backward_by_product;
use crate::params::{
    BackwardParams, ForwardParams, MaskMapParams, StandardParams, TensorGradientParams,
    TmaBackwardParams, TmaForwardParams,
};
use crate::spec::Constant;

/// What flash2's forward kernels may ask for, but for those of few queries.
const FLASH2_FORWARD: &[Constant] = &[
    Constant::FullPrecision,
    Constant::RightBound,
    Constant::LeftBound,
    Constant::Lengths,
    Constant::Prefix,
    Constant::Pages,
    Constant::Sinks,
    Constant::PadColumns,
    Constant::Dropout,
    Constant::Score,
    Constant::EditPartial,
    Constant::BlockMask,
];

/// What flash1's forward kernels may ask for.
const FLASH1_FORWARD: &[Constant] = &[
    Constant::RightBound,
    Constant::LeftBound,
    Constant::Prefix,
    Constant::Sinks,
    Constant::PadColumns,
];

/// What flash3's forward kernels may ask for, but for those of few queries.
const FLASH3_FORWARD: &[Constant] = &[
    Constant::RightBound,
    Constant::LeftBound,
    Constant::Lengths,
    Constant::Prefix,
    Constant::Pages,
    Constant::Sinks,
    Constant::Dropout,
    Constant::Score,
    Constant::EditPartial,
    Constant::BlockMask,
];

impl Kind {
    /// The constants that its kernels may ask for; [`Constant::FullPrecision`], first, those of f32.
    const fn constants(self) -> &'static [Constant] {
        match self {
            Kind::Merge | Kind::Append | Kind::SinkGradient => &[],
            Kind::Combine | Kind::StandardDelta => &[Constant::Lengths, Constant::Sinks],
            Kind::StandardSoftmax => &[Constant::Lengths, Constant::Sinks, Constant::Dropout],
            Kind::BackwardPreprocess | Kind::TmaBackwardPreprocess | Kind::StandardDk => {
                &[Constant::Lengths]
            }
            Kind::StandardDv => &[Constant::Lengths, Constant::Dropout],
            Kind::StandardDWeights => &[
                Constant::Lengths,
                Constant::ScoreGradient,
                Constant::Dropout,
            ],
            Kind::TensorGradient => &[
                Constant::FullPrecision,
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::Dropout,
                Constant::BlockMask,
            ],
            Kind::StandardOutput | Kind::StandardDq => &[Constant::Lengths, Constant::BlockMask],
            Kind::TileList | Kind::TmaTileList | Kind::BlockList => {
                &[Constant::RightBound, Constant::LeftBound, Constant::Prefix]
            }
            Kind::MaskMap => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Prefix,
                Constant::Score,
            ],
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
                Constant::HeadSplits,
                Constant::Prefix,
                Constant::Dropout,
                Constant::Score,
                Constant::ScoreGradient,
                Constant::EditPartial,
                Constant::BlockMask,
            ],
            Kind::Forward => FLASH2_FORWARD,
            Kind::Flash1Forward => FLASH1_FORWARD,
            Kind::TmaForward => FLASH3_FORWARD,
            Kind::StandardScores => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::Score,
                Constant::BlockMask,
            ],
            // Of tiles that divide keys, see below.
            Kind::ForwardE4m3 | Kind::TmaForwardMla => &[],
            // It is compiled apart, see below.
            Kind::Flash1Backward => &[],
            Kind::Backward => &[
                Constant::FullPrecision,
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::PadColumns,
                Constant::Dropout,
                Constant::Score,
                Constant::ScoreGradient,
                Constant::EditPartial,
                Constant::BlockMask,
            ],
            Kind::StandardDScores => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::Dropout,
                Constant::BlockMask,
            ],
            Kind::BackwardPostprocess => &[
                Constant::RightBound,
                Constant::LeftBound,
                Constant::Lengths,
                Constant::Prefix,
                Constant::PadColumns,
                Constant::BlockMask,
            ],
        }
    }
}

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
    /// Whether it shares its code with variants that ask for more constants: flash1's backward kernel with flash2's, profiled variants with those that
    /// they are copies of. The builder compiles such variants in a part of their own, in which other constants are 0 from the beginning, so their text is shorter.
    pub const fn is_compiled_apart(&self) -> bool {
        matches!(self.kind, Kind::Flash1Backward) || matches!(self.stamps, Stamps::EachTile)
    }

    /// Bytes of its parameters before [`ScoreParams`](crate::params::ScoreParams), if it evaluates the mask of an edit, and nothing else of it.
    pub const fn mask_site(&self) -> Option<usize> {
        match self.kind {
            Kind::MaskMap => Some(offset_of!(MaskMapParams, score)),
            _ => None,
        }
    }

    /// Where it edits scores by an expression; `None` where it cannot.
    pub const fn score_site(&self) -> Option<ScoreSite> {
        if self.is_compiled_apart() {
            return None;
        }
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
    /// would cost them registers; nor has flash3's backward pass where its consumers share the products of a tile, whose forward pass has such
    /// tiles.
    pub const fn takes_block_masks(&self) -> bool {
        if self.is_compiled_apart() {
            return false;
        }
        let divides = self.tile_config.divides_blocks();
        match (self.kind, self.head_dim) {
            (Kind::Forward | Kind::ForwardE4m3, _) if matches!(self.tiles, TileShape::Compact) => {
                false
            }
            (Kind::TmaForwardMla | Kind::Flash1Forward, _) => false,
            (Kind::TmaForward, _) if matches!(self.tiles, TileShape::Grouped) => false,
            (Kind::TmaBackward, Some(head_dim)) => {
                let head_dim_v = match self.head_dim_v {
                    Some(head_dim_v) => head_dim_v,
                    None => head_dim,
                };
                divides && !tma_backward_by_product(head_dim, head_dim_v)
            }
            (Kind::Forward | Kind::TmaForward | Kind::Backward, _) => divides,
            _ => true,
        }
    }

    /// Whether it can drop weights: see [`crate::attention::dropout`]. The forward kernels that cannot are for few queries, or for values in the keys;
    /// and wide tiles have no registers for it.
    pub const fn drops_weights(&self) -> bool {
        if self.is_compiled_apart() {
            return false;
        }
        match (self.kind, self.tiles) {
            (Kind::TmaForward | Kind::TmaBackward, TileShape::Wide) => false,
            (Kind::Flash1Forward, _) => false,
            (Kind::Forward | Kind::ForwardE4m3 | Kind::TmaForward | Kind::TmaForwardMla, _) => {
                self.score_site().is_some()
            }
            _ => true,
        }
    }

    /// Whether it can divide keys among tiles: see [`crate::attention::split_kv`].
    pub const fn splits_kv(&self) -> bool {
        matches!(
            (self.kind, self.tiles),
            (
                Kind::Forward | Kind::ForwardE4m3 | Kind::TmaForward | Kind::TmaForwardMla,
                TileShape::Compact
            ) | (Kind::TmaForward, TileShape::Grouped)
        )
    }

    /// The constants that it asks for; others make no difference to it.
    pub const fn constants(&self) -> &'static [Constant] {
        if self.is_compiled_apart() {
            return self.constants_of_apart();
        }
        if self.splits_kv() {
            return self.constants_of_splits();
        }
        let all = match (self.kind.constants(), self.dtype) {
            (all @ [Constant::FullPrecision, ..], Some(Dtype::F32)) => all,
            ([Constant::FullPrecision, others @ ..], _) => others,
            (all, _) => all,
        };
        if matches!(
            (self.kind, self.tiles),
            (Kind::TmaBackward, TileShape::Wide)
        ) {
            // Neither dropout, nor expressions, nor block masks.
            return all.split_at(5).0;
        }
        if matches!((self.kind, self.tiles), (Kind::TmaForward, TileShape::Wide)) {
            return Self::WIDE_FORWARD;
        }
        match (self.kind, all) {
            (
                Kind::Forward | Kind::TmaForward | Kind::Backward | Kind::TmaBackward,
                [others @ .., Constant::EditPartial, Constant::BlockMask],
            ) if !self.takes_block_masks() => others,
            _ => all,
        }
    }

    /// those of variants that are compiled apart: the mask, and what kernels of their kind do with any problem. flash3 pads columns by its tensor maps.
    const fn constants_of_apart(&self) -> &'static [Constant] {
        use Constant::{HeadSplits, LeftBound, PadColumns, Prefix, RightBound};
        match self.kind {
            Kind::TmaForward => &[RightBound, LeftBound, Prefix],
            Kind::TmaBackward => &[RightBound, LeftBound, Prefix, HeadSplits],
            _ => &[RightBound, LeftBound, Prefix, PadColumns],
        }
    }

    /// Those of flash3's wide tiles: no dropout, and block masks where the tiles divide them.
    const WIDE_FORWARD: &'static [Constant] = &[
        Constant::RightBound,
        Constant::LeftBound,
        Constant::Lengths,
        Constant::Prefix,
        Constant::Pages,
        Constant::Sinks,
        Constant::Score,
    ];

    /// Those of flash2's tiles for few queries: neither dropout, nor expressions, nor block masks.
    const FEW: &'static [Constant] = &[
        Constant::RightBound,
        Constant::LeftBound,
        Constant::Lengths,
        Constant::Prefix,
        Constant::SplitKv,
        Constant::Pages,
        Constant::Sinks,
        Constant::PadColumns,
    ];

    /// Those of tiles that divide keys.
    const fn constants_of_splits(&self) -> &'static [Constant] {
        if matches!(self.kind, Kind::Forward | Kind::ForwardE4m3) {
            return Self::FEW;
        }
        const ALL: [Constant; 11] = [
            Constant::RightBound,
            Constant::LeftBound,
            Constant::Lengths,
            Constant::Prefix,
            Constant::SplitKv,
            Constant::Pages,
            Constant::Sinks,
            Constant::Dropout,
            Constant::Score,
            Constant::EditPartial,
            Constant::BlockMask,
        ];
        let n = match (self.score_site(), self.takes_block_masks()) {
            (Some(_), true) => 11,
            (Some(_), false) => 9,
            (None, _) => 7,
        };
        ALL.split_at(n).0
    }
}
