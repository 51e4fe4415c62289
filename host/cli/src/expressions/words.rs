//! A score or a mask as an option has it: a name, or the text of an expression.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ferroflash::expression::{Expression, ExpressionError};
use ferroflash::{MaskExpression, Score};

use super::{NamedMask, NamedScore};

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

/// Takes a score: [`NamedScore`], or what [`Expression::to_text`] writes.
pub fn score(word: &str) -> Result<Score, String> {
    let named = NamedScore::by_name(word).map(NamedScore::expression);
    let score = Score::from_expression(expression(word, named, &scores())?);
    score.map_err(|error| error.to_string())
}

/// Takes a mask: [`NamedMask`], or what [`Expression::to_text`] writes.
pub fn mask(word: &str) -> Result<MaskExpression, String> {
    let named = NamedMask::by_name(word).map(NamedMask::expression);
    let mask = MaskExpression::from_expression(expression(word, named, &masks())?);
    mask.map_err(|error| error.to_string())
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
            let expected = Ok(Score::from_expression(expression.clone()).unwrap());
            assert_eq!(score(name.name()), expected);
            assert_eq!(score(&expression.to_text()), expected);
        }
        for name in NamedMask::ALL {
            let expression = name.expression().unwrap();
            let expected = Ok(MaskExpression::from_expression(expression.clone()).unwrap());
            assert_eq!(mask(name.name()), expected);
            assert_eq!(mask(&expression.to_text()), expected);
        }
    }

    #[test]
    fn other_words_are_refused() {
        let refused = |word: &str| score(word).unwrap_err();
        assert!(refused("alibis").contains("alibi-batch"));
        assert!(refused("").contains("allowed"));
        assert!(refused("expression 1\n0 nothing").contains("line 2"));
        let text = NamedMask::Causal.expression().unwrap().to_text();
        assert!(refused(&text).contains("type bool"));
        let text = NamedScore::SoftCap.expression().unwrap().to_text();
        assert!(mask(&text).unwrap_err().contains("type f32"));
    }
}
