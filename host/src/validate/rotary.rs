//! Rows that are rotated by their positions, and rows that are appended to a cache: the rules, and what was checked.

use super::operation::{CheckedOperation, apart_or_same, check_operation};
use super::sizes::{are_scales, countable, head_dim_in_range, pool};
use crate::arguments::{Argument, Arguments, Operands};
use crate::error::{Error, ProblemError, RotaryError};
use crate::lengths::new_rows::of_append;
use crate::lengths::{Paged, scale_entry};
use crate::problem::Fp8Kv;
use crate::problem::append::AppendProblem;
use crate::problem::new_rows::NewRows;
use crate::problem::rotate::RotateProblem;
use crate::terms::{MAX_ROTARY_DIM, Turns};

/// An append with arguments that fit it. A value of this type is the proof that the rules hold.
pub type CheckedAppend = CheckedOperation<AppendProblem>;

/// A rotation with arguments that fit it. A value of this type is the proof that the rules hold.
pub type CheckedRotate = CheckedOperation<RotateProblem>;

/// Whether this many elements form pairs.
pub(crate) fn check_dim(rotary_dim: usize) -> Result<(), RotaryError> {
    if rotary_dim == 0 || rotary_dim > MAX_ROTARY_DIM || !rotary_dim.is_multiple_of(2) {
        return Err(RotaryError::RotaryDim { given: rotary_dim });
    }
    Ok(())
}

/// Whether rows of head_dim have elements that form pairs, and the tables have the positions of padded rows.
fn turns_fit(turns: Turns, rows: NewRows, head_dim: usize) -> Result<(), Error> {
    let Turns {
        rotary_dim,
        n_positions,
        ..
    } = turns;
    check_dim(rotary_dim)?;
    if rotary_dim > head_dim {
        return Err(RotaryError::HeadDim {
            rotary_dim,
            head_dim,
        }
        .into());
    }
    countable(
        [n_positions, rotary_dim / 2],
        "n_positions · rotary_dim / 2",
    )?;
    match rows {
        NewRows::Padded { seqlen } if seqlen > n_positions => Err(RotaryError::Position {
            given: i64::try_from(seqlen - 1).unwrap_or(i64::MAX),
            n_positions,
        }
        .into()),
        _ => Ok(()),
    }
}

/// The rules for the sizes of an append.
pub fn append_sizes(problem: &AppendProblem) -> Result<(), Error> {
    head_dim_in_range(problem.head_dim())?;
    let (rows, seqlen_cache) = (problem.rows(), problem.seqlen_cache());
    if let Some(pages) = problem.pages() {
        pool(pages, problem.batch(), seqlen_cache, problem.heads_k())?;
    }
    if problem
        .fp8_kv()
        .is_some_and(|scales| scales.wants_pages(problem.pages()))
    {
        let what = Fp8Kv::WITHOUT_PAGES;
        return Err(ProblemError::Fp8KvWith { what }.into());
    }
    if let Some(turns) = problem.turns() {
        turns_fit(turns, rows, problem.head_dim())?;
    }
    match rows {
        NewRows::Padded { seqlen } if seqlen > seqlen_cache => {
            return Err(ProblemError::NewRowsBeyondCache {
                given: seqlen,
                seqlen_cache,
            }
            .into());
        }
        _ => {}
    }
    let [batch, seqlen, heads_k, _] = problem.shape_new();
    let heads = heads_k
        .checked_mul(2)
        .and_then(|heads| heads.checked_add(problem.heads_q()))
        .ok_or(ProblemError::SizeOverflow { what: "heads" })?;
    countable([batch, seqlen, heads], "new rows · heads")?;
    let [batch, seqlen, heads, _] = problem.shape_cache();
    Ok(countable(
        [batch, seqlen, heads],
        "batch · seqlen_cache · heads_k",
    )?)
}

/// The rules for the sizes of a rotation.
pub fn rotate_sizes(problem: &RotateProblem) -> Result<(), Error> {
    let [batch, seqlen, heads, head_dim] = problem.shape();
    head_dim_in_range(head_dim)?;
    turns_fit(problem.turns(), problem.rows(), head_dim)?;
    Ok(countable([batch, seqlen, heads], "batch · seqlen · heads")?)
}

/// Checks the arguments of an append.
pub fn check_append(problem: &AppendProblem, arguments: Arguments) -> Result<CheckedAppend, Error> {
    append_sizes(problem)?;
    let checked = check_operation(problem, arguments)?;
    append_lies_apart(&arguments)?;
    Ok(checked)
}

/// Checks numbers on the host: lengths, pages, and the scales of rows that are written.
pub(crate) fn append_values(
    problem: &AppendProblem,
    operands: &Operands,
) -> Result<(), ProblemError> {
    let spans = of_append(problem, operands)?;
    let Some(scales) = problem.fp8_kv() else {
        return Ok(());
    };
    let (pages, heads_k) = (Paged::of_append(problem, operands)?, problem.heads_k());
    for argument in [Argument::KDescale, Argument::VDescale] {
        let given = operands.numbers::<f32>(argument).unwrap_or_default();
        for span in spans.iter().filter(|span| span.rows.len > 0) {
            let rows = span.before..span.before + span.rows.len;
            let each = rows.flat_map(|row| {
                let entry = scale_entry(scales, pages, span.sequence, row);
                entry * heads_k..(entry + 1) * heads_k
            });
            are_scales(argument, given, each)?;
        }
    }
    Ok(())
}

/// Checks the arguments of a rotation.
pub fn check_rotate(problem: &RotateProblem, arguments: Arguments) -> Result<CheckedRotate, Error> {
    rotate_sizes(problem)?;
    let checked = check_operation(problem, arguments)?;
    rotate_lies_apart(&arguments)?;
    Ok(checked)
}

/// q_out is q, or does not overlap it; seqused_out does not overlap memory that other threads still read.
pub(crate) fn append_lies_apart(arguments: &Arguments) -> Result<(), ProblemError> {
    apart_or_same(arguments, Argument::Q, Argument::QOut)?;
    apart_or_same(arguments, Argument::SeqUsedK, Argument::SeqUsedOut)
}

/// y is x, or does not overlap it.
pub(crate) fn rotate_lies_apart(arguments: &Arguments) -> Result<(), ProblemError> {
    apart_or_same(arguments, Argument::X, Argument::Y)
}
