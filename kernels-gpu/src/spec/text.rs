//! Puts constants into the text of a kernel: pure text in, text out.

use std::collections::BTreeSet;
use std::fmt;
use std::mem::offset_of;

use ferroflash_expression::ptx::{
    BLOCK_APART, Edit, ParamOffsets, Program, RowTerms, ScoreRows, SpliceError, WriteError, reached,
};

use super::{PLACEHOLDER, Spec};
use crate::params::{Scale, ScoreParams};
use crate::variants::Variant;

/// The text and the constants do not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecialiseError {
    /// The text names a symbol for which there is no number.
    Forgotten {
        /// The symbol.
        symbol: String,
    },
    /// The text does not name the symbol.
    Unknown {
        /// The symbol.
        symbol: String,
    },
    /// There are two numbers for one symbol.
    Twice {
        /// The symbol.
        symbol: String,
    },
    /// The kernel has no place for an expression.
    NoScores,
    /// An expression cannot be written.
    Write(WriteError),
    /// An expression cannot be put into the text.
    Splice(SpliceError),
}

impl fmt::Display for SpecialiseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecialiseError::Forgotten { symbol } => {
                write!(
                    f,
                    "no number was given for {symbol}, which the kernel's text names"
                )
            }
            SpecialiseError::Unknown { symbol } => {
                write!(
                    f,
                    "a number was given for {symbol}, which the kernel's text does not name"
                )
            }
            SpecialiseError::Twice { symbol } => {
                write!(f, "two numbers were given for {symbol}")
            }
            SpecialiseError::NoScores => {
                f.write_str("the kernel has no place for an expression of scores")
            }
            SpecialiseError::Write(error) => error.fmt(f),
            SpecialiseError::Splice(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SpecialiseError {}

/// The text of a kernel that asks for `constants`, compiled with `spec`.
pub fn specialise(text: &str, constants: Spec, spec: Spec) -> Result<String, SpecialiseError> {
    let numbers: Vec<(&str, u32)> = constants
        .constants()
        .map(|constant| (constant.symbol(), u32::from(spec.has(constant))))
        .collect();
    replace(text, &numbers)
}

/// The text of a variant, compiled with `spec`, with an expression in the places for one. It has [`Score`](crate::spec::Constant::Score) where there is one.
///
/// With an expression, whose kernel a program waits for, it lacks what no thread reaches: the driver compiles the rest in less time. Without
/// one it is the text as a whole, whose speed the record states.
pub fn of_variant(
    text: &str,
    variant: &Variant,
    spec: Spec,
    edit: Option<&Edit>,
) -> Result<String, SpecialiseError> {
    let mut text = specialise(text, variant.capabilities(), spec)?;
    if edit.is_some() {
        text = reached(&text);
    }
    let nothing = Edit::default();
    let given = edit.unwrap_or(&nothing);
    let program = match (variant.score_site(), variant.mask_site(), edit) {
        (Some(site), _, _) => {
            let terms = if text.contains(BLOCK_APART) {
                RowTerms::Apart
            } else {
                RowTerms::InScores
            };
            let places = places(site.scale, site.score);
            Program::with_row_terms(given, site.rows, places, terms)
        }
        // A mask has no scale.
        (None, Some(score), _) => Program::of_mask(given, ScoreRows::Queries, places(0, score)),
        (None, None, None) => return Ok(text),
        (None, None, Some(_)) => return Err(SpecialiseError::NoScores),
    };
    let program = program.map_err(SpecialiseError::Write)?;
    program.splice(&text).map_err(SpecialiseError::Splice)
}

/// Where the values of a launch lie in its parameters.
fn places(scale: usize, score: usize) -> ParamOffsets {
    ParamOffsets {
        scale: (scale + offset_of!(Scale, scale)) as u32,
        inverse_unit: (score + offset_of!(ScoreParams, inverse_unit)) as u32,
        params: (score + offset_of!(ScoreParams, values)) as u32,
        tensors: (score + offset_of!(ScoreParams, tensors)) as u32,
    }
}

/// The text with a number in place of every symbol.
pub fn replace(text: &str, numbers: &[(&str, u32)]) -> Result<String, SpecialiseError> {
    let mut seen = BTreeSet::new();
    for (symbol, _) in numbers {
        if !seen.insert(*symbol) {
            let symbol = (*symbol).to_owned();
            return Err(SpecialiseError::Twice { symbol });
        }
    }
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, symbol, after)) = next_symbol(rest) {
        let Some((_, number)) = numbers.iter().find(|(given, _)| *given == symbol) else {
            let symbol = symbol.to_owned();
            return Err(SpecialiseError::Forgotten { symbol });
        };
        result.push_str(before);
        result.push_str(&number.to_string());
        seen.remove(symbol);
        rest = after;
    }
    match seen.first() {
        Some(symbol) => Err(SpecialiseError::Unknown {
            symbol: (*symbol).to_owned(),
        }),
        None => {
            result.push_str(rest);
            Ok(result)
        }
    }
}

/// The symbols that a text names.
pub fn symbols(text: &str) -> BTreeSet<&str> {
    let mut symbols = BTreeSet::new();
    let mut rest = text;
    while let Some((_, symbol, after)) = next_symbol(rest) {
        symbols.insert(symbol);
        rest = after;
    }
    symbols
}

/// The text before the first symbol, the symbol, and the text behind it.
fn next_symbol(text: &str) -> Option<(&str, &str, &str)> {
    let begin = text.find(PLACEHOLDER)?;
    let symbol = &text[begin..];
    let len = symbol
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(symbol.len());
    Some((&text[..begin], &symbol[..len], &symbol[len..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Constant;

    const TEXT: &str = "\tmov.u32 %r1, ferroflash_spec_right_bound;\n\tmov.u32 %r2, ferroflash_spec_left_bound;\n\
                        \tmov.u32 %r3, ferroflash_spec_right_bound;\n\tret;\n";

    #[test]
    fn every_symbol_becomes_its_number() {
        let causal = Spec::PLAIN.with(Constant::RightBound);
        assert_eq!(
            specialise(TEXT, causal.with(Constant::LeftBound), causal).as_deref(),
            Ok("\tmov.u32 %r1, 1;\n\tmov.u32 %r2, 0;\n\tmov.u32 %r3, 1;\n\tret;\n")
        );
        assert_eq!(
            specialise("ret;", Spec::PLAIN, causal).as_deref(),
            Ok("ret;")
        );
        assert_eq!(symbols(TEXT).len(), 2);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let (right, left) = ("ferroflash_spec_right_bound", "ferroflash_spec_left_bound");
        let named = |error: SpecialiseError, symbol: &str| {
            assert!(error.to_string().contains(symbol), "{error}");
            error
        };
        let given = |numbers: &[(&str, u32)]| replace(TEXT, numbers).unwrap_err();
        assert_eq!(
            named(given(&[(right, 1)]), left),
            SpecialiseError::Forgotten {
                symbol: left.into()
            }
        );
        let unknown = "ferroflash_spec_right";
        assert_eq!(
            named(given(&[(right, 1), (left, 0), (unknown, 1)]), unknown),
            SpecialiseError::Unknown {
                symbol: unknown.into()
            }
        );
        assert_eq!(
            named(given(&[(right, 1), (left, 0), (right, 0)]), right),
            SpecialiseError::Twice {
                symbol: right.into()
            }
        );
    }
}
