//! With which constants each kernel is held to its budgets, and how many spills these allow.

use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::{Dtype, Kind, Stamps, TileShape, Variant};

// Specs that budgets hold.
pub(super) const CAUSAL: Spec = Spec::PLAIN.with(Constant::RightBound);
pub(super) const WINDOW: Spec = CAUSAL.with(Constant::LeftBound);
pub(super) const PREFIX: Spec = CAUSAL.with(Constant::Prefix);
pub(super) const PACKED: Spec = Spec::PLAIN.with(Constant::Lengths);
pub(super) const PACKED_CAUSAL: Spec = CAUSAL.with(Constant::Lengths);
pub(super) const SHARES: Spec = Spec::PLAIN.with(Constant::HeadSplits);
pub(super) const CAUSAL_SHARES: Spec = CAUSAL.with(Constant::HeadSplits);
pub(super) const WINDOW_SHARES: Spec = WINDOW.with(Constant::HeadSplits);
pub(super) const BLOCKS: Spec = Spec::PLAIN.with(Constant::BlockMask);
pub(super) const CAUSAL_BLOCKS: Spec = CAUSAL.with(Constant::BlockMask);
pub(super) const SPLIT: Spec = Spec::PLAIN.with(Constant::SplitKv);
pub(super) const CAUSAL_SPLIT: Spec = CAUSAL.with(Constant::SplitKv);
pub(super) const WINDOW_SPLIT: Spec = WINDOW.with(Constant::SplitKv);
pub(super) const PACKED_CAUSAL_SPLIT: Spec = PACKED_CAUSAL.with(Constant::SplitKv);
pub(super) const PAGES: Spec = PACKED.with(Constant::Pages);
pub(super) const CAUSAL_PAGES: Spec = PACKED_CAUSAL.with(Constant::Pages);
pub(super) const CAUSAL_PAGES_SPLIT: Spec = CAUSAL_PAGES.with(Constant::SplitKv);
pub(super) const SINKS: Spec = Spec::PLAIN.with(Constant::Sinks);
pub(super) const PACKED_SINKS: Spec = PACKED.with(Constant::Sinks);
pub(super) const CAUSAL_SINKS: Spec = CAUSAL.with(Constant::Sinks);
pub(super) const WINDOW_SINKS: Spec = WINDOW.with(Constant::Sinks);
pub(super) const PACKED_CAUSAL_SINKS: Spec = PACKED_CAUSAL.with(Constant::Sinks);
pub(super) const DROPOUT: Spec = Spec::PLAIN.with(Constant::Dropout);
pub(super) const PACKED_DROPOUT: Spec = PACKED.with(Constant::Dropout);
pub(super) const CAUSAL_DROPOUT: Spec = CAUSAL.with(Constant::Dropout);
pub(super) const PACKED_CAUSAL_DROPOUT: Spec = PACKED_CAUSAL.with(Constant::Dropout);
pub(super) const PADDED: Spec = Spec::PLAIN.with(Constant::PadColumns);
pub(super) const CAUSAL_PADDED: Spec = CAUSAL.with(Constant::PadColumns);
pub(super) const PACKED_CAUSAL_PADDED: Spec = PACKED_CAUSAL.with(Constant::PadColumns);
pub(super) const PACKED_CAUSAL_SPLIT_PADDED: Spec = PACKED_CAUSAL_SPLIT.with(Constant::PadColumns);
pub(super) const CAUSAL_PAGES_PADDED: Spec = CAUSAL_PAGES.with(Constant::PadColumns);
pub(super) const CAUSAL_PAGES_SPLIT_PADDED: Spec = CAUSAL_PAGES_SPLIT.with(Constant::PadColumns);
pub(super) const PACKED_CAUSAL_SPLIT_SINKS: Spec = PACKED_CAUSAL_SPLIT.with(Constant::Sinks);
pub(super) const SCALE_BLOCKS: Spec = Spec::PLAIN.with(Constant::ScaleBlocks);
pub(super) const CAUSAL_SCALE_BLOCKS: Spec = CAUSAL.with(Constant::ScaleBlocks);
pub(super) const PACKED_CAUSAL_SCALE_BLOCKS: Spec = PACKED_CAUSAL.with(Constant::ScaleBlocks);
pub(super) const Q_E4M3: Spec = Spec::PLAIN.with(Constant::QE4m3);
pub(super) const Q_E4M3_CAUSAL_PAGES_SPLIT_PADDED: Spec =
    CAUSAL_PAGES_SPLIT_PADDED.with(Constant::QE4m3);
pub(super) const Q_E4M3_PACKED_CAUSAL_SPLIT_SINKS: Spec =
    PACKED_CAUSAL_SPLIT_SINKS.with(Constant::QE4m3);
pub(super) const Q_E4M3_CAUSAL_PAGES_SPLIT_SCALE_BLOCKS: Spec = CAUSAL_PAGES_SPLIT
    .with(Constant::QE4m3)
    .with(Constant::ScaleBlocks);
pub(super) const FULL_PRECISION: Spec = Spec::PLAIN.with(Constant::FullPrecision);
pub(super) const CAUSAL_FULL_PRECISION: Spec = CAUSAL.with(Constant::FullPrecision);
pub(super) const PACKED_CAUSAL_PADDED_FULL_PRECISION: Spec =
    PACKED_CAUSAL_PADDED.with(Constant::FullPrecision);

/// Of tiles that divide keys.
const OF_SPLITS: &[Spec] = &[
    BLOCKS,
    CAUSAL_BLOCKS,
    CAUSAL_DROPOUT,
    PACKED_CAUSAL_DROPOUT,
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
];

/// Of flash2's tiles for few queries.
const OF_FEW: &[Spec] = &[
    Q_E4M3,
    Q_E4M3_CAUSAL_PAGES_SPLIT_PADDED,
    Q_E4M3_PACKED_CAUSAL_SPLIT_SINKS,
    Q_E4M3_CAUSAL_PAGES_SPLIT_SCALE_BLOCKS,
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
    CAUSAL_PADDED,
    PACKED_CAUSAL_SPLIT_PADDED,
    CAUSAL_PAGES_SPLIT_PADDED,
];

/// Of flash2's other tiles of the forward pass.
const OF_FLASH2: &[Spec] = &[
    FULL_PRECISION,
    CAUSAL_FULL_PRECISION,
    PACKED_CAUSAL_PADDED_FULL_PRECISION,
    BLOCKS,
    CAUSAL_BLOCKS,
    DROPOUT,
    CAUSAL_DROPOUT,
    PACKED_CAUSAL_DROPOUT,
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
    PADDED,
    CAUSAL_PADDED,
    PACKED_CAUSAL_PADDED,
    CAUSAL_PAGES_PADDED,
];

/// Of flash2's backward pass.
const OF_FLASH2_BACKWARD: &[Spec] = &[
    FULL_PRECISION,
    CAUSAL_FULL_PRECISION,
    PACKED_CAUSAL_PADDED_FULL_PRECISION,
    BLOCKS,
    CAUSAL_BLOCKS,
    DROPOUT,
    CAUSAL_DROPOUT,
    PACKED_CAUSAL_DROPOUT,
    Spec::PLAIN,
    CAUSAL,
    WINDOW,
    PREFIX,
    PACKED,
    PACKED_CAUSAL,
    PADDED,
    CAUSAL_PADDED,
    PACKED_CAUSAL_PADDED,
];

/// Of flash1.
const OF_FLASH1: &[Spec] = &[
    CAUSAL_SINKS,
    Spec::PLAIN,
    CAUSAL,
    WINDOW,
    PREFIX,
    CAUSAL_PADDED,
];

/// Of wide tiles of flash3's forward pass, and of those with sums of one level.
const OF_WIDE: &[Spec] = &[
    SCALE_BLOCKS,
    CAUSAL_SCALE_BLOCKS,
    PACKED_CAUSAL_SCALE_BLOCKS,
    Spec::PLAIN,
    CAUSAL,
    PREFIX,
    PACKED,
    PACKED_CAUSAL,
    PAGES,
    CAUSAL_PAGES,
    CAUSAL_SINKS,
    PACKED_CAUSAL_SINKS,
];

/// Of other tiles of the forward pass.
const OF_FORWARD: &[Spec] = &[
    SCALE_BLOCKS,
    CAUSAL_SCALE_BLOCKS,
    PACKED_CAUSAL_SCALE_BLOCKS,
    BLOCKS,
    CAUSAL_BLOCKS,
    DROPOUT,
    CAUSAL_DROPOUT,
    PACKED_CAUSAL_DROPOUT,
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
];

/// Of flash3's backward pass, but for its wide tiles.
const OF_FLASH3_BACKWARD: &[Spec] = &[
    BLOCKS,
    CAUSAL_BLOCKS,
    DROPOUT,
    CAUSAL_DROPOUT,
    PACKED_CAUSAL_DROPOUT,
    Spec::PLAIN,
    CAUSAL,
    WINDOW,
    PREFIX,
    PACKED,
    PACKED_CAUSAL,
    SHARES,
    CAUSAL_SHARES,
    WINDOW_SHARES,
];

/// Of the gradients of scores in memory.
const OF_D_SCORES: &[Spec] = &[
    BLOCKS,
    CAUSAL_BLOCKS,
    DROPOUT,
    CAUSAL_DROPOUT,
    PACKED_CAUSAL_DROPOUT,
    Spec::PLAIN,
    CAUSAL,
    WINDOW,
    PREFIX,
    PACKED,
    PACKED_CAUSAL,
];

/// Of scores in memory, and gradients of tensors.
const OF_SCORES: &[Spec] = &[
    FULL_PRECISION,
    CAUSAL_FULL_PRECISION,
    BLOCKS,
    CAUSAL_BLOCKS,
    Spec::PLAIN,
    CAUSAL,
    WINDOW,
    PREFIX,
    PACKED,
    PACKED_CAUSAL,
];

/// The specs with which a kernel is held to its budgets when it is built; others are checked when they are loaded. Wide tiles have no
/// registers for the first block of a window: ptxas spills two words, so plans take default tiles there. In the backward pass
/// those up to 128 columns are for sequences without a mask.
pub fn specs(variant: &Variant) -> &'static [Spec] {
    match (variant.kind, variant.tiles) {
        _ if matches!(variant.stamps, Stamps::EachTile) => specs_of_profiled(variant),
        (Kind::TileList | Kind::TmaTileList | Kind::BlockList | Kind::MaskMap, _) => {
            &[Spec::PLAIN, CAUSAL, WINDOW]
        }
        (Kind::Clear, _) => &[Spec::PLAIN, CAUSAL, WINDOW, BLOCKS],
        (
            Kind::Merge
            | Kind::Append
            | Kind::AppendE4m3
            | Kind::Amax
            | Kind::Quantize
            | Kind::Dequantize
            | Kind::SinkGradient,
            _,
        ) => &[Spec::PLAIN],
        (Kind::Combine | Kind::StandardDelta, _) => &[Spec::PLAIN, PACKED, SINKS, PACKED_SINKS],
        (Kind::StandardSoftmax, _) => &[
            Spec::PLAIN,
            PACKED,
            SINKS,
            PACKED_SINKS,
            DROPOUT,
            PACKED_DROPOUT,
        ],
        (Kind::StandardDv | Kind::StandardDWeights, _) => {
            &[Spec::PLAIN, PACKED, DROPOUT, PACKED_DROPOUT]
        }
        (Kind::TmaForward, TileShape::Wide | TileShape::OneLevel) => {
            those_it_takes(variant, OF_WIDE)
        }
        (Kind::Forward | Kind::ForwardE4m3, TileShape::Compact) => those_it_takes(variant, OF_FEW),
        (Kind::Forward, _) => those_it_takes(variant, OF_FLASH2),
        (Kind::TmaForward | Kind::TmaForwardMla, TileShape::Compact | TileShape::Grouped) => {
            those_it_takes(variant, OF_SPLITS)
        }
        (Kind::TmaBackward, TileShape::Wide) if variant.head_dim <= Some(128) => {
            &[Spec::PLAIN, PACKED, SHARES]
        }
        (Kind::TmaBackward, _) => those_it_takes(variant, OF_FLASH3_BACKWARD),
        (Kind::Flash1Forward, _) => OF_FLASH1,
        // No backward pass asks for sinks.
        (Kind::Flash1Backward, _) => OF_FLASH1.split_at(1).1,
        (Kind::TmaForward, _) => those_it_takes(variant, OF_FORWARD),
        (Kind::Backward, _) => those_it_takes(variant, OF_FLASH2_BACKWARD),
        (Kind::StandardDScores, _) => those_it_takes(variant, OF_D_SCORES),
        (Kind::BackwardPostprocess, _) => &[
            BLOCKS,
            CAUSAL_BLOCKS,
            Spec::PLAIN,
            CAUSAL,
            WINDOW,
            PREFIX,
            PACKED,
            PACKED_CAUSAL,
            PADDED,
        ],
        (Kind::StandardScores | Kind::TensorGradient, _) => those_it_takes(variant, OF_SCORES),
        (Kind::StandardOutput | Kind::StandardDq, _) => &[Spec::PLAIN, PACKED, BLOCKS],
        _ => &[Spec::PLAIN, PACKED],
    }
}

/// Those of profiled rows: the masks, where the rows that they are copies of are planned with them.
fn specs_of_profiled(variant: &Variant) -> &'static [Spec] {
    match (variant.kind, variant.tiles) {
        (Kind::TmaBackward, TileShape::Wide) => &[Spec::PLAIN, SHARES],
        (Kind::TmaBackward, _) => &[Spec::PLAIN, CAUSAL, WINDOW, PREFIX, SHARES],
        (Kind::TmaForward, TileShape::Wide) => &[Spec::PLAIN, CAUSAL, PREFIX],
        _ => &[Spec::PLAIN, CAUSAL, WINDOW, PREFIX],
    }
}

/// The specs but for those at the front that ask for full precision, where the kernel is not of f32, for queries in 8 bits, which it may not take, or for scales of blocks, where it has none, those behind them that have a block mask, where it takes
/// none, and those behind them that have dropout, where it drops nothing. A kernel of f32 takes block masks, and one that does drops weights.
fn those_it_takes(variant: &Variant, specs: &'static [Spec]) -> &'static [Spec] {
    match specs {
        [first, others @ ..]
            if first.has(Constant::FullPrecision) && !matches!(variant.dtype, Some(Dtype::F32))
                || first.has(Constant::QE4m3) && !variant.takes(Constant::QE4m3)
                || first.has(Constant::ScaleBlocks) && !variant.takes(Constant::ScaleBlocks)
                || first.has(Constant::BlockMask) && !variant.takes(Constant::BlockMask)
                || first.has(Constant::Dropout) && !variant.takes(Constant::Dropout) =>
        {
            those_it_takes(variant, others)
        }
        _ => specs,
    }
}

/// Bytes of spills and stack that ptxas may report with these constants.
///
/// In flash3's backward pass at head_dim 128 consumers keep up to four words of what only conversions want there under a block mask,
/// written once; with shares, and with lengths in wide tiles, the end of a tile does. Kernels without these constants have none of
/// it. Where keys lie in pages, some forward kernels keep a few words of where in local memory, read once a tile: flash2's at head_dim 128,
/// of flash3's the producer in wide tiles at head_dim 128, and in default ones at 256. With scales of blocks wide tiles at head_dim 128 keep a few words of a
/// tile's place, read once a tile. With sinks wide tiles at head_dim 64 keep two
/// words, read where a tile ends, and default ones at 256 one word, read once a block. Where weights are dropped, flash2's forward
/// pass up to 128 keeps some words more that are read once a block, and so does flash3's backward pass at 256, and one word its forward pass. At head_dim 64
/// flash3's backward pass keeps words of a packed sequence's place in local memory, read once a tile. Under a block mask flash2's backward pass looks each step up in the lists, with words for that in local memory at head_dim 128. The kernel of tensors' gradients holds
/// three parts of 64 numbers in each thread; where the sequence and its head lie waits in local memory, read once a head, and of f32 some fragments of the sum do, too.
/// At head_dim 64 flash2's forward pass keeps more of a tile's places under a left bound, 504 bytes for sm_90, and some with lengths and pages. In full
/// precision kernels of f32 hold fragments in two parts: addresses and the mask of a tile lie in local memory, and in the backward pass at head_dim 128 a few
/// fragments of a step, most of them for sm_80.
///
/// With keys of 192 columns and values of 128 consumers of flash3's backward pass hold dV, dK and a product under way in all registers but 32: what a
/// mask, the list of a packed sequence, a share or a block mask want lies in local memory, and the draws of dropout.
///
/// For a tile's record profiled kernels keep some words more: two in wide tiles of flash3's forward pass, and in flash2's.
///
/// flash1's backward pass holds a part of dQ beside flash2's tile of keys, with some words more of the block order in local memory from head_dim 128 on.
pub fn spill_bytes(variant: &Variant, spec: Spec) -> u32 {
    let wide = matches!(variant.tiles, TileShape::Wide);
    let is_default = matches!(variant.tiles, TileShape::Default);
    let most = match (variant.kind, variant.head_dim) {
        (kind, head_dim) if spec.has(Constant::FullPrecision) => match (kind, head_dim) {
            (Kind::Backward, Some(128)) if is_default => 900,
            (Kind::Backward, Some(64 | 128)) => 200,
            (Kind::Forward, Some(128)) => 600,
            (Kind::Forward, Some(64)) => 112,
            (Kind::TensorGradient, _) => 1440,
            _ => 32,
        },
        (Kind::TensorGradient, _) if matches!(variant.dtype, Some(Dtype::F32)) => 720,
        _ if matches!(variant.dtype, Some(Dtype::F32)) => 0,
        (Kind::TmaBackward, _) if variant.head_dim_v.is_some() => {
            if spec.has(Constant::Dropout) {
                668
            } else if spec.has(Constant::HeadSplits) {
                128
            } else if spec.has(Constant::LeftBound) {
                96
            } else if spec.has(Constant::BlockMask) {
                80
            } else if spec.has(Constant::Lengths) {
                64
            } else {
                8
            }
        }
        (Kind::TmaForward, _) if wide && matches!(variant.stamps, Stamps::EachTile) => 72,
        (Kind::Forward, _) if matches!(variant.stamps, Stamps::EachTile) => 240,
        (Kind::Forward, Some(64)) if spec.has(Constant::LeftBound) => 504,
        (Kind::Forward, Some(..=128)) if spec.has(Constant::Dropout) => 336,
        (Kind::TmaBackward, Some(256)) if spec.has(Constant::Dropout) => 224,
        (Kind::TmaForward, Some(256)) if spec.has(Constant::Dropout) => 8,
        (Kind::TmaBackward, Some(64)) if spec.has(Constant::Lengths) => 88,
        (Kind::TensorGradient, _) => 320,
        (Kind::Forward, Some(128)) if spec.has(Constant::Pages) => 168,
        (Kind::Forward, Some(64)) => 204,
        (Kind::TmaForward, Some(128)) if wide && spec.has(Constant::ScaleBlocks) => 72,
        (Kind::TmaForward, Some(128)) if wide && spec.has(Constant::Pages) => 32,
        (Kind::TmaForward, Some(64)) if wide && spec.has(Constant::Sinks) => 32,
        (Kind::TmaForward, Some(256)) if spec.has(Constant::Pages) || spec.has(Constant::Sinks) => {
            8
        }
        (Kind::Backward, Some(128)) if spec.has(Constant::BlockMask) => 260,
        (Kind::Flash1Backward, Some(128)) if is_default => 184,
        (Kind::Flash1Backward, Some(256)) => 24,
        (Kind::TmaBackward, Some(128)) if spec.has(Constant::BlockMask) => 16,
        (Kind::TmaBackward, Some(128)) if spec.has(Constant::HeadSplits) => {
            if wide {
                36
            } else {
                8
            }
        }
        (Kind::TmaBackward, Some(128)) if wide && spec.has(Constant::Lengths) => 24,
        _ => 0,
    };
    let least = variant.tile_config.spill_bytes;
    if most > least { most } else { least }
}
