//! What each kernel can: the one place that says it. Kernels, planning, refusals, the matrix of the book and the tests read it here.
//!
//! A capability is a [`Constant`] that a kernel may be compiled with; a kernel that lacks one has no code for it.

use core::mem::offset_of;

use super::{Dtype, Kind, Stamps, TileShape, Variant};
use crate::attention::score::ScoreRows;
use crate::config::{BYTE_BYTES, TmaBackward};
use crate::params::{
    BackwardParams, ForwardParams, MaskMapParams, SCALE_ROWS, StandardParams, TensorGradientParams,
    TmaBackwardParams, TmaForwardParams,
};
use crate::spec::Constant::{
    BlockMask, Dropout, EditPartial, FullPrecision, HeadScale, HeadSplits, Lengths, OF16, OF32,
    PadColumns, Pages, QE4m3, ScaleBlocks, Score, ScoreGradient, Sinks, SplitKv,
};
use crate::spec::{Constant, Spec};

/// Masks that are a band: full, causal, windows, prefix-LM.
const BAND: Spec = Spec::of(&[Constant::RightBound, Constant::LeftBound, Constant::Prefix]);

/// Block masks, of the caller's or of a mask expression.
const BLOCKS: Spec = Spec::of(&[BlockMask, EditPartial]);

/// What flash2's kernels for few queries can.
const FEW_QUERIES: Spec = BAND.and(Spec::of(&[Lengths, SplitKv, Pages, Sinks, PadColumns]));

impl Kind {
    /// What its kernels can in tiles of this shape: the band, block masks, then the others in the order of [`Constant`]. Block masks want tiles that divide the
    /// mask's blocks: kernels with other tiles have no code for them, which would cost registers.
    pub const fn capabilities(self, tiles: TileShape, divides_blocks: bool) -> Spec {
        let blocks = if divides_blocks { BLOCKS } else { Spec::PLAIN };
        match self {
            // Few queries wait for memory: tiles have no registers for what edits scores.
            Kind::Forward if matches!(tiles, TileShape::Compact) => FEW_QUERIES,
            Kind::ForwardE4m3 => FEW_QUERIES.and(Spec::of(&[QE4m3, ScaleBlocks])),
            Kind::Forward => BAND.and(blocks).and(Spec::of(&[
                Lengths,
                Pages,
                Score,
                Sinks,
                HeadScale,
                Dropout,
                PadColumns,
                FullPrecision,
            ])),
            Kind::Flash1Forward => BAND.and(Spec::of(&[Sinks, PadColumns])),
            // flash3 pads columns by its tensor maps.
            Kind::TmaForward => {
                let all = BAND.and(Spec::of(&[Lengths, Pages, Sinks]));
                match tiles {
                    TileShape::Default => all.and(blocks).and(Spec::of(&[Score, Dropout])),
                    TileShape::Compact => all.and(blocks).and(Spec::of(&[SplitKv, Score, Dropout])),
                    TileShape::Wide | TileShape::OneLevel => all.with(Score),
                    TileShape::Grouped => all.with(SplitKv),
                    TileShape::Paired => panic!("the forward pass has no such tiles"),
                }
            }
            Kind::TmaForwardMla => BAND.and(Spec::of(&[Lengths, SplitKv, Pages, Sinks])),
            Kind::Backward => BAND.and(blocks).and(Spec::of(&[
                Lengths,
                Score,
                ScoreGradient,
                Dropout,
                PadColumns,
                FullPrecision,
            ])),
            Kind::Flash1Backward => BAND.with(PadColumns),
            Kind::TmaBackward => {
                let all = BAND.and(Spec::of(&[Lengths, HeadSplits]));
                match tiles {
                    TileShape::Wide | TileShape::Paired => all,
                    _ => all
                        .and(blocks)
                        .and(Spec::of(&[Score, ScoreGradient, Dropout])),
                }
            }
            Kind::BackwardPreprocess | Kind::TmaBackwardPreprocess => Spec::of(&[Lengths]),
            Kind::BackwardPostprocess => BAND.and(Spec::of(&[BlockMask, Lengths, PadColumns])),
            Kind::TensorGradient => {
                BAND.and(Spec::of(&[BlockMask, Lengths, Dropout, FullPrecision]))
            }
            Kind::Combine => Spec::of(&[Lengths, Sinks]),
            Kind::Merge
            | Kind::Append
            | Kind::AppendE4m3
            | Kind::Amax
            | Kind::Quantize
            | Kind::Dequantize
            | Kind::SinkGradient => Spec::PLAIN,
            Kind::TileList | Kind::TmaTileList | Kind::BlockList => BAND,
            Kind::MaskMap => BAND.with(Score),
            Kind::Clear => BAND.with(BlockMask),
            Kind::StandardScores => BAND.and(Spec::of(&[BlockMask, Lengths, Score])),
            Kind::StandardSoftmax => Spec::of(&[Lengths, Sinks, Dropout]),
            Kind::StandardOutput | Kind::StandardDq => Spec::of(&[BlockMask, Lengths]),
            Kind::StandardDelta => Spec::of(&[Lengths, Sinks]),
            Kind::StandardDv => Spec::of(&[Lengths, Dropout]),
            Kind::StandardDWeights => Spec::of(&[Lengths, ScoreGradient, Dropout]),
            Kind::StandardDScores => BAND.and(Spec::of(&[BlockMask, Lengths, Dropout])),
            Kind::StandardDk => Spec::of(&[Lengths]),
        }
    }

    /// Whether it computes scores and what becomes of them, so that whatever is asked of scores and weights is asked of it.
    pub const fn is_fused(self) -> bool {
        matches!(
            self,
            Kind::Forward
                | Kind::ForwardE4m3
                | Kind::Flash1Forward
                | Kind::TmaForward
                | Kind::TmaForwardMla
                | Kind::Backward
                | Kind::Flash1Backward
                | Kind::TmaBackward
        )
    }
}

/// What kernels of flash3's forward pass can whose q, k and v have elements of so many bytes: in 8 bits no weights are dropped, and o has another type. Scales of
/// blocks want tiles that lie within one, and sums of two levels: a block of values has its scale where its sum is added to O.
pub const fn of_elements(all: Spec, bytes: u32, tiles: TileShape, block_k: u32) -> Spec {
    match bytes {
        BYTE_BYTES => {
            let all = all.without(Dropout).and(Spec::of(&[OF16, OF32]));
            let has_two_levels = !matches!(tiles, TileShape::OneLevel);
            let all = match has_two_levels && SCALE_ROWS.is_multiple_of(block_k) {
                true => all.with(ScaleBlocks),
                false => all,
            };
            match tiles {
                // More keys than an expression edits at a time, or no registers for it.
                TileShape::Wide | TileShape::OneLevel => all.without(Score),
                _ => all,
            }
        }
        _ => all,
    }
}

/// What remains of the capabilities of a variant that is compiled apart: the mask, and what kernels of its kind do with any problem.
const APART: Spec = BAND.and(Spec::of(&[HeadSplits, PadColumns]));

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
    const fn of(rows: ScoreRows, scale: usize, score: usize) -> Option<ScoreSite> {
        Some(ScoreSite { rows, scale, score })
    }
}

impl Variant {
    /// What it can: the constants that it may be compiled with. Others make no difference to it.
    pub const fn capabilities(&self) -> Spec {
        let own = self.kind.capabilities(self.tiles, self.divides_blocks());
        let own = match self.dtype {
            Some(Dtype::F32) => own,
            Some(Dtype::E4m3) => of_elements(
                own,
                Dtype::E4m3.bytes(),
                self.tiles,
                self.tile_config.block_k,
            ),
            _ => own.without(FullPrecision),
        };
        match self.is_compiled_apart() {
            true => own.among(APART),
            false => own,
        }
    }

    /// Whether nothing stands in the way of this constant: it can be compiled with it, or scores are no concern of it.
    pub const fn takes(&self, constant: Constant) -> bool {
        !self.kind.is_fused() || self.capabilities().has(constant)
    }

    /// Whether its tiles divide the blocks of block masks.
    const fn divides_blocks(&self) -> bool {
        match (self.kind, self.head_dim, self.head_dim_v) {
            (Kind::TmaBackward, Some(head_dim), Some(head_dim_v)) => {
                TmaBackward::of(head_dim, head_dim_v, self.tiles).divides_blocks()
            }
            (Kind::TmaBackward, Some(head_dim), None) => {
                TmaBackward::of(head_dim, head_dim, self.tiles).divides_blocks()
            }
            _ => self.tile_config.divides_blocks(),
        }
    }

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
        use ScoreRows::{Keys, Queries};
        if !self.takes(Score) {
            return None;
        }
        let pass = offset_of!(TmaBackwardParams, pass);
        let of_tensor = offset_of!(TensorGradientParams, pass);
        match self.kind {
            Kind::Forward => ScoreSite::of(
                Queries,
                offset_of!(ForwardParams, scale),
                offset_of!(ForwardParams, score),
            ),
            Kind::TmaForward => ScoreSite::of(
                Queries,
                offset_of!(TmaForwardParams, scale),
                offset_of!(TmaForwardParams, score),
            ),
            Kind::Backward => ScoreSite::of(
                Keys,
                offset_of!(BackwardParams, scale),
                offset_of!(BackwardParams, score),
            ),
            Kind::TmaBackward => ScoreSite::of(
                Keys,
                pass + offset_of!(BackwardParams, scale),
                pass + offset_of!(BackwardParams, score),
            ),
            Kind::TensorGradient => ScoreSite::of(
                Queries,
                of_tensor + offset_of!(StandardParams, scale),
                of_tensor + offset_of!(StandardParams, score),
            ),
            Kind::StandardScores | Kind::StandardDWeights => ScoreSite::of(
                Queries,
                offset_of!(StandardParams, scale),
                offset_of!(StandardParams, score),
            ),
            _ => None,
        }
    }
}
