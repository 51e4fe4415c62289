//! Scores and masks that have names: [`NamedScore`], [`NamedMask`], and what a measurement gives them.

mod given;
mod words;

#[cfg(test)]
mod tests;

use ferroflash::{MaskExpression, Problem, Score};
use ferroflash_expression::named::{NamedMask, NamedScore};

use crate::failure::Failure;

pub use given::{Given, ParamWord, ScoreTensor};
pub use words::{mask, mask_by_name, score, score_by_name};

/// The score and the mask of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The score, if another than q · k.
    pub score: Option<NamedScore>,
    /// The mask beside the problem's own.
    pub mask: Option<NamedMask>,
}

impl Named {
    /// The problem with both.
    pub fn put(self, problem: Problem) -> Result<Problem, Failure> {
        let mut builder = problem.to_builder();
        if let Some(score) = self.score {
            builder = builder.score(Score::from_expression(score.expression()?)?);
        }
        if let Some(mask) = self.mask {
            builder = builder.mask_expression(MaskExpression::from_expression(mask.expression()?)?);
        }
        Ok(builder.build()?)
    }
}
