//! Edits of scores with which kernels are held to budgets when they are built, and what they may take with them.

use std::fmt;

use ferroflash_expression::ExpressionError;
use ferroflash_expression::named::{NamedMask, NamedScore};
use ferroflash_expression::ptx::Edit;
use ferroflash_kernels::spec::{Constant, Spec};
use ferroflash_kernels::variants::{Dtype, Kind, TileShape, Variant};

use super::budgets::{CAUSAL, CAUSAL_BLOCKS, PACKED_CAUSAL_SPLIT, spill_bytes};

const ALIBI: StandardEdit = StandardEdit::Score(NamedScore::Alibi);
const SOFT_CAP: StandardEdit = StandardEdit::Score(NamedScore::SoftCap);
const SOFT_CAP_ALIBI: StandardEdit = StandardEdit::Score(NamedScore::SoftCapAlibi);
const BIAS: StandardEdit = StandardEdit::Score(NamedScore::Bias);
const DOCUMENT: StandardEdit = StandardEdit::Mask(NamedMask::Document);

/// A score or a mask with which kernels are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardEdit {
    /// A score.
    Score(NamedScore),
    /// A mask.
    Mask(NamedMask),
}

impl StandardEdit {
    /// All of them: nothing but the places, what a head and a distance fix, a function, both, an element of a tensor for each score, elements of a
    /// tensor that are compared.
    pub const ALL: [StandardEdit; 6] = [
        StandardEdit::Score(NamedScore::Identity),
        ALIBI,
        SOFT_CAP,
        SOFT_CAP_ALIBI,
        BIAS,
        DOCUMENT,
    ];

    /// What kernels are given.
    pub fn edit(self) -> Result<Edit, ExpressionError> {
        Ok(match self {
            StandardEdit::Score(named) => {
                let score = named.expression()?;
                Edit {
                    derivative: Some(score.derivative_by_score()?),
                    score: Some(score),
                    mask: None,
                }
            }
            StandardEdit::Mask(named) => Edit {
                mask: Some(named.expression()?),
                ..Edit::default()
            },
        })
    }
}

/// `score alibi`, `mask document`.
impl fmt::Display for StandardEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StandardEdit::Score(named) => write!(f, "score {}", named.name()),
            StandardEdit::Mask(named) => write!(f, "mask {}", named.name()),
        }
    }
}

/// The specs with which a kernel is held to its budgets under an edit, whose derivative is 1 or not: plain and causal, tiles for few queries with lengths
/// and splits, too, and flash3's backward pass under a block mask. Rows of f16 differ from those of bf16 in conversions alone: bf16 stands
/// for both.
pub fn edited_specs(variant: &Variant, has_gradient: bool) -> Vec<Spec> {
    let takes_none = variant.score_site().is_none() && variant.mask_site().is_none();
    if takes_none || variant.dtype == Some(Dtype::F16) {
        return Vec::new();
    }
    let specs: &[Spec] = match (variant.kind, variant.tiles) {
        (Kind::TmaForward, TileShape::Compact) => &[Spec::PLAIN, CAUSAL, PACKED_CAUSAL_SPLIT],
        (Kind::TmaBackward, _) if variant.takes(Constant::BlockMask) => {
            &[Spec::PLAIN, CAUSAL, CAUSAL_BLOCKS]
        }
        _ => &[Spec::PLAIN, CAUSAL],
    };
    let edited = |spec: &Spec| {
        let spec = spec.with(Constant::Score);
        let spec = match has_gradient {
            true => spec.with(Constant::ScoreGradient),
            false => spec,
        };
        spec.among(variant.capabilities())
    };
    let always = matches!(variant.kind, Kind::TensorGradient);
    let edits =
        |spec: &Spec| always || spec.has(Constant::Score) || spec.has(Constant::ScoreGradient);
    let mut specs: Vec<Spec> = specs.iter().map(edited).filter(edits).collect();
    specs.dedup();
    specs
}

/// Bytes of spills and stack that ptxas may report under an edit: what it may without one, or what the edit's values take beside the tile.
pub fn edited_spill_bytes(variant: &Variant, spec: Spec, edit: StandardEdit) -> u32 {
    let of_edit = match variant.kind {
        Kind::TmaForward => spill_bytes_forward(variant, edit),
        Kind::TmaBackward => spill_bytes_backward(variant, edit, spec.has(Constant::BlockMask)),
        _ => spill_bytes_of_others(variant, edit),
    };
    of_edit.max(spill_bytes(variant, spec))
}

/// The same of flash2 and `standard`.
fn spill_bytes_of_others(variant: &Variant, edit: StandardEdit) -> u32 {
    match (variant.kind, variant.head_dim, edit) {
        // All 255 registers are taken without an edit (`config::forward`): values of a tile and of a block, and elements under way, go to local
        // memory.
        (Kind::Forward, Some(32), BIAS) => 396,
        (Kind::Forward, Some(64), ALIBI) => 264,
        (Kind::Forward, Some(64), SOFT_CAP) => 252,
        (Kind::Forward, Some(64), SOFT_CAP_ALIBI) => 300,
        (Kind::Forward, Some(64), BIAS) => 372,
        (Kind::Forward, Some(512), BIAS) => 24,
        // A tile of scores, and the product that they are multiplied by; elements under way.
        (Kind::StandardDWeights, _, SOFT_CAP | SOFT_CAP_ALIBI) => 640,
        (Kind::StandardScores, _, BIAS) => 228,
        _ => 0,
    }
}

/// The same of flash3's forward pass.
fn spill_bytes_forward(variant: &Variant, edit: StandardEdit) -> u32 {
    match (variant.tiles, variant.head_dim, edit) {
        // In 8 bits O is at its full size while S is edited, and 128 keys' elements of a tensor are under way.
        (TileShape::Default, Some(192), BIAS) if variant.dtype == Some(Dtype::E4m3) => 800,
        (TileShape::Default, Some(256), BIAS) if variant.dtype == Some(Dtype::E4m3) => 1200,
        // A consumer's S and O leave few registers for the elements of a tensor that are under way, one for each score of several fragments.
        (TileShape::Default, Some(96), BIAS) => 168,
        (TileShape::Default, Some(128), BIAS) => 488,
        (TileShape::Default, Some(192), BIAS) => 388,
        // Tiles whose threads have 128 registers, and as many scores.
        (TileShape::Compact, Some(64), BIAS) => 408,
        (TileShape::Wide, Some(64), BIAS) => 764,
        (TileShape::Wide, Some(128), BIAS) => 452,
        // There the documents of a block's keys, too: elements for each column.
        (TileShape::Wide, Some(64), DOCUMENT) => 324,
        (TileShape::Wide, Some(128), DOCUMENT) => 264,
        // And slope and distance of the two rows, which the tile fixes, and their terms of a block.
        (TileShape::Wide, Some(64), ALIBI | SOFT_CAP_ALIBI) => 60,
        (TileShape::Wide, Some(128), SOFT_CAP_ALIBI) => 32,
        // With lengths and splits these have no register left without an edit: what it fixes for the tile, and for a block, goes to local memory.
        (TileShape::Compact, Some(192), DOCUMENT) => 32,
        (TileShape::Compact, Some(192), SOFT_CAP_ALIBI) => 192,
        (TileShape::Compact, Some(256), ALIBI | SOFT_CAP_ALIBI) => 144,
        (TileShape::Compact, Some(256), BIAS) => 160,
        (TileShape::Compact, Some(256), DOCUMENT) => 208,
        _ => 0,
    }
}

/// The same of flash3's backward pass. Under a block mask its consumers hold what a step's lists say.
fn spill_bytes_backward(variant: &Variant, edit: StandardEdit, block_mask: bool) -> u32 {
    // See `budgets::spill_bytes`: what is left for an edit is less than what is left without one.
    if variant.head_dim_v.is_some() {
        return match (edit, block_mask) {
            (SOFT_CAP | SOFT_CAP_ALIBI | BIAS, false) => 252,
            (SOFT_CAP | SOFT_CAP_ALIBI, true) => 360,
            (BIAS, true) => 172,
            (DOCUMENT, false) => 164,
            (DOCUMENT, true) => 212,
            (_, false) => 48,
            (_, true) => 96,
        };
    }
    match (variant.head_dim, edit, block_mask) {
        // Pᵀ of a consumer's 64 keys by 128 queries is wanted with the derivative and without it until dPᵀ is there: 64 registers a thread.
        // What is left over goes to slope and distances of two rows, or to a block mask's steps.
        (Some(64), SOFT_CAP, false) => 188,
        (Some(64), SOFT_CAP, true) => 172,
        (Some(64), SOFT_CAP_ALIBI, false) => 200,
        (Some(64), SOFT_CAP_ALIBI, true) => 304,
        // The same of 64 queries; Pᵀ with the derivative is not rounded there.
        (Some(128), SOFT_CAP_ALIBI, false) => 92,
        (Some(128), SOFT_CAP_ALIBI, true) => 124,
        (Some(128), SOFT_CAP, true) => 32,
        (Some(128), ALIBI | DOCUMENT, true) => 76,
        // Elements of a tensor under way.
        (Some(64), BIAS, false) => 40,
        (Some(64), BIAS, true) => 56,
        (Some(128), BIAS, true) => 172,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash_kernels::variants::by_name;

    #[test]
    fn specs_of_edits_name_what_a_kernel_asks_for() {
        let specs = |name: &str, has_gradient| {
            let specs = edited_specs(by_name(name).unwrap(), has_gradient);
            specs
                .iter()
                .map(Spec::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            specs("forward_sm80_bf16_d64", true),
            "score right_bound+score"
        );
        let backward = "score+score_gradient right_bound+score+score_gradient";
        assert_eq!(specs("backward_sm90a_bf16_d256", true), backward);
        assert_eq!(
            specs("backward_sm90a_bf16_d256", false),
            "score right_bound+score"
        );
        assert_eq!(specs("mask_map_sm80", true), "score right_bound+score");
        assert_eq!(
            specs("standard_d_weights_sm80_bf16", true),
            "score_gradient"
        );
        let few = "score right_bound+score right_bound+lengths+split_kv+score";
        assert_eq!(specs("forward_sm90a_bf16_d256_compact", false), few);
        for none in [
            "standard_d_weights_sm80_bf16",
            "forward_sm80_f16_d64",
            "forward_sm90a_bf16_d64_grouped",
            "clear_sm80",
        ] {
            assert_eq!(specs(none, false), "", "{none}");
        }
    }

    #[test]
    fn edits_are_what_their_names_say() {
        let has_gradient = |edit: StandardEdit| edit.edit().unwrap().has_gradient();
        let with: Vec<_> = StandardEdit::ALL
            .into_iter()
            .filter(|&edit| has_gradient(edit))
            .collect();
        assert_eq!(with, [SOFT_CAP, SOFT_CAP_ALIBI]);
        assert_eq!(SOFT_CAP.to_string(), "score soft-cap");
        assert_eq!(DOCUMENT.to_string(), "mask document");
        assert_eq!(DOCUMENT.edit().unwrap().tensors().len(), 1);
    }

    /// An edit is allowed what its kernel is allowed without one, and more where the table says so.
    #[test]
    fn budgets_are_of_the_row_and_of_the_edit() {
        let budget =
            |name: &str, spec: Spec, edit| edited_spill_bytes(by_name(name).unwrap(), spec, edit);
        let score = CAUSAL.with(Constant::Score);
        assert_eq!(budget("backward_sm90a_bf16_d256", score, ALIBI), 192);
        assert_eq!(budget("backward_sm90a_bf16_d256", score, SOFT_CAP), 192);
        assert_eq!(budget("backward_sm90a_bf16_d64", score, ALIBI), 0);
        let gradient = score.with(Constant::ScoreGradient);
        assert_eq!(budget("backward_sm90a_bf16_d64", gradient, SOFT_CAP), 188);
        let blocks = gradient.with(Constant::BlockMask);
        assert_eq!(budget("backward_sm90a_bf16_d64", blocks, SOFT_CAP), 172);
    }
}
