//! Edits of scores with which kernels are held to budgets when they are built, and what they may take with them.

use core::fmt;

use super::{CAUSAL, CAUSAL_BLOCKS, Kind, PACKED_CAUSAL_SPLIT, TileShape, Variant};
use crate::expression::ExpressionError;
use crate::expression::named::{NamedMask, NamedScore};
use crate::expression::ptx::Edit;
use crate::spec::{Constant, Spec};
use crate::variants::Dtype;

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

impl Variant {
    /// The specs with which it is held to its budgets under an edit, whose derivative is 1 or not: plain and causal, tiles for few queries with lengths
    /// and splits, too, and flash3's backward pass under a block mask. Rows of f16 differ from those of bf16 in conversions alone: bf16 stands
    /// for both.
    pub fn edited_specs(&self, has_gradient: bool) -> Vec<Spec> {
        if self.score_site().is_none() || self.dtype != Some(Dtype::Bf16) {
            return Vec::new();
        }
        let specs: &[Spec] = match (self.kind, self.tiles) {
            (Kind::TmaForward, TileShape::Compact) => &[Spec::PLAIN, CAUSAL, PACKED_CAUSAL_SPLIT],
            (Kind::TmaBackward, _) if self.takes_block_masks() => {
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
            spec.among(self.constants())
        };
        let edits = |spec: &Spec| spec.has(Constant::Score) || spec.has(Constant::ScoreGradient);
        let mut specs: Vec<Spec> = specs.iter().map(edited).filter(edits).collect();
        specs.dedup();
        specs
    }

    /// Bytes of spills and stack that ptxas may report under an edit: what it may without one, or what the edit's values take beside the tile.
    pub fn edited_spill_bytes(&self, spec: Spec, edit: StandardEdit) -> u32 {
        let of_edit = match self.kind {
            Kind::TmaForward => self.spill_bytes_forward(edit),
            Kind::TmaBackward => self.spill_bytes_backward(edit, spec.has(Constant::BlockMask)),
            _ => 0,
        };
        of_edit.max(self.spill_bytes(spec))
    }

    /// The same of flash3's forward pass.
    fn spill_bytes_forward(&self, edit: StandardEdit) -> u32 {
        match (self.tiles, self.head_dim, edit) {
            // A consumer's S and O leave few registers for the elements of a tensor that are under way, one for each score of several fragments.
            (TileShape::Default, Some(96), BIAS) => 168,
            (TileShape::Default, Some(128), BIAS) => 488,
            // Tiles whose threads have 128 registers, and as many scores.
            (TileShape::Compact, Some(64), BIAS) => 408,
            (TileShape::Wide, Some(64), BIAS) => 764,
            (TileShape::Wide, Some(128), BIAS) => 452,
            // There the documents of a block's keys, too: elements for each column.
            (TileShape::Wide, Some(64), DOCUMENT) => 324,
            (TileShape::Wide, Some(128), DOCUMENT) => 264,
            // And slope and distance of the two rows.
            (TileShape::Wide, Some(64), ALIBI | SOFT_CAP_ALIBI) => 16,
            (TileShape::Wide, Some(128), SOFT_CAP_ALIBI) => 16,
            // With lengths and splits these have no register left without an edit: what it fixes for the tile, and for a block, goes to local memory.
            (TileShape::Compact, Some(192), DOCUMENT) => 32,
            (TileShape::Compact, Some(192), SOFT_CAP_ALIBI) => 160,
            (TileShape::Compact, Some(256), ALIBI | SOFT_CAP_ALIBI) => 144,
            (TileShape::Compact, Some(256), BIAS) => 160,
            (TileShape::Compact, Some(256), DOCUMENT) => 208,
            _ => 0,
        }
    }

    /// The same of flash3's backward pass. Under a block mask its consumers hold what a step's lists say.
    fn spill_bytes_backward(&self, edit: StandardEdit, block_mask: bool) -> u32 {
        match (self.head_dim, edit, block_mask) {
            // Pᵀ and its derivative stay beside dPᵀ: a consumer's 64 keys by 128 queries, three times.
            (Some(64), SOFT_CAP, false) => 1408,
            (Some(64), SOFT_CAP, true) => 2232,
            (Some(64), SOFT_CAP_ALIBI, false) => 1732,
            (Some(64), SOFT_CAP_ALIBI, true) => 2668,
            // The same with 64 queries: what is left is taken by slope and distances of two rows, or by a block mask's steps.
            (Some(128), SOFT_CAP_ALIBI, false) => 108,
            (Some(128), SOFT_CAP_ALIBI, true) => 116,
            (Some(128), SOFT_CAP, true) => 32,
            (Some(128), ALIBI | DOCUMENT, true) => 76,
            // Elements of a tensor under way.
            (Some(64), BIAS, false) => 40,
            (Some(64), BIAS, true) => 56,
            (Some(128), BIAS, true) => 172,
            // These spill without an edit.
            (Some(256), SOFT_CAP, _) => 200,
            (Some(256), SOFT_CAP_ALIBI, _) => 280,
            _ => 0,
        }
    }
}
