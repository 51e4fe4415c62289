//! A score or a mask as an option has it: a name, or the text of an expression.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ferroflash::expression::{Expression, ExpressionError};
use ferroflash::{MaskExpression, Score};

use super::{NamedMask, NamedScore};

/// A score: [`NamedScore`], or what [`Expression::to_text`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreWord(pub Score);

/// A mask: [`NamedMask`], or what [`Expression::to_text`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskWord(pub MaskExpression);

/// The names of all scores.
fn scores() -> [&'static str; NamedScore::ALL.len()] {
    NamedScore::ALL.map(NamedScore::name)
}

/// The names of all masks.
fn masks() -> [&'static str; NamedMask::ALL.len()] {
    NamedMask::ALL.map(NamedMask::name)
}

/// Takes the name of a score.
pub fn score_by_name() -> impl TypedValueParser<Value = NamedScore> {
    PossibleValuesParser::new(scores()).try_map(|name| NamedScore::by_name(&name).ok_or("unknown"))
}

/// Takes the name of a mask.
pub fn mask_by_name() -> impl TypedValueParser<Value = NamedMask> {
    PossibleValuesParser::new(masks()).try_map(|name| NamedMask::by_name(&name).ok_or("unknown"))
}

impl FromStr for ScoreWord {
    type Err = String;

    fn from_str(word: &str) -> Result<ScoreWord, String> {
        let named = NamedScore::by_name(word).map(NamedScore::expression);
        let score = Score::from_expression(expression(word, named, &scores())?);
        Ok(ScoreWord(score.map_err(|error| error.to_string())?))
    }
}

impl FromStr for MaskWord {
    type Err = String;

    fn from_str(word: &str) -> Result<MaskWord, String> {
        let named = NamedMask::by_name(word).map(NamedMask::expression);
        let mask = MaskExpression::from_expression(expression(word, named, &masks())?);
        Ok(MaskWord(mask.map_err(|error| error.to_string())?))
    }
}

/// The expression of a name, or of a text; a word that is none may have been meant as a name.
fn expression(
    word: &str,
    named: Option<Result<Expression, ExpressionError>>,
    names: &[&str],
) -> Result<Expression, String> {
    if let Some(named) = named {
        return named.map_err(|error| error.to_string());
    }
    if !word.trim_start().starts_with("expression") {
        let names = names.join(", ");
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
        for name in NamedScore::ALL {
            let expression = name.expression().unwrap();
            let score = ScoreWord(Score::from_expression(expression.clone()).unwrap());
            assert_eq!(name.name().parse(), Ok(score));
            assert_eq!(expression.to_text().parse(), Ok(score));
        }
        for name in NamedMask::ALL {
            let expression = name.expression().unwrap();
            let mask = MaskWord(MaskExpression::from_expression(expression.clone()).unwrap());
            assert_eq!(name.name().parse(), Ok(mask));
            assert_eq!(expression.to_text().parse(), Ok(mask));
        }
    }

    #[test]
    fn other_words_are_refused() {
        let refused = |word: &str| word.parse::<ScoreWord>().unwrap_err();
        assert!(refused("alibis").contains("alibi-batch"));
        assert!(refused("").contains("allowed"));
        assert!(refused("expression 1\n0 nothing").contains("line 2"));
        let mask = NamedMask::Causal.expression().unwrap().to_text();
        assert!(refused(&mask).contains("type bool"));
        let score = NamedScore::SoftCap.expression().unwrap().to_text();
        assert!(score.parse::<MaskWord>().unwrap_err().contains("type f32"));
    }
}
