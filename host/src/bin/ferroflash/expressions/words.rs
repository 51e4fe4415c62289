//! A score or a mask as an option has it: a name, or the text of an expression.

use std::str::FromStr;

use clap::ValueEnum;
use ferroflash::expression::Expression;
use ferroflash::{MaskExpression, Score};

use super::{MaskName, ScoreName};

/// A score: [`ScoreName`], or what [`Expression::to_text`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreWord(pub Score);

/// A mask: [`MaskName`], or what [`Expression::to_text`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskWord(pub MaskExpression);

impl FromStr for ScoreWord {
    type Err = String;

    fn from_str(word: &str) -> Result<ScoreWord, String> {
        let score = match ScoreName::from_str(word, false) {
            Ok(name) => name.score(),
            Err(_) => Score::from_expression(parsed::<ScoreName>(word)?),
        };
        Ok(ScoreWord(score.map_err(|error| error.to_string())?))
    }
}

impl FromStr for MaskWord {
    type Err = String;

    fn from_str(word: &str) -> Result<MaskWord, String> {
        let mask = match MaskName::from_str(word, false) {
            Ok(name) => name.mask(),
            Err(_) => MaskExpression::from_expression(parsed::<MaskName>(word)?),
        };
        Ok(MaskWord(mask.map_err(|error| error.to_string())?))
    }
}

/// The expression of a text; a word that is none may have been meant as a name.
fn parsed<N: ValueEnum>(word: &str) -> Result<Expression, String> {
    if !word.trim_start().starts_with("expression") {
        let names = N::value_variants().iter();
        let names = names.filter_map(|name| Some(name.to_possible_value()?.get_name().to_owned()));
        let names = names.collect::<Vec<_>>().join(", ");
        return Err(format!(
            "allowed: {names}, or the text of an expression, whose first line is \"expression 1\""
        ));
    }
    Expression::parse(word).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_name_or_a_text() {
        for name in ScoreName::value_variants() {
            let score = name.score().unwrap();
            assert_eq!(name.name().parse(), Ok(ScoreWord(score)));
            assert_eq!(score.expression().to_text().parse(), Ok(ScoreWord(score)));
        }
        for name in MaskName::value_variants() {
            let mask = name.mask().unwrap();
            assert_eq!(name.name().parse(), Ok(MaskWord(mask)));
            assert_eq!(mask.expression().to_text().parse(), Ok(MaskWord(mask)));
        }
    }

    #[test]
    fn other_words_are_refused() {
        let refused = |word: &str| word.parse::<ScoreWord>().unwrap_err();
        assert!(refused("alibis").contains("alibi-batch"));
        assert!(refused("").contains("allowed"));
        assert!(refused("expression 1\n0 nothing").contains("line 2"));
        let mask = MaskName::Causal.mask().unwrap().expression().to_text();
        assert!(refused(&mask).contains("type bool"));
        let score = ScoreName::SoftCap.score().unwrap().expression().to_text();
        assert!(score.parse::<MaskWord>().unwrap_err().contains("type f32"));
    }
}
