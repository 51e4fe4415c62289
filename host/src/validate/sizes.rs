//! The rules for the problem alone, and what a block mask cannot be combined with.

use super::MAX_HEAD_DIM;
use crate::arguments::{Argument, Arguments};
use crate::dtype::Dtype;
use crate::error::ProblemError;
use crate::problem::{BlockMask, Fp8, Fp8Kv, Fp8Sums, Pages, Precision, Problem};

/// The rules for the problem alone.
///
/// The [module](mod@crate::plan) has an example.
pub fn sizes(problem: &Problem) -> Result<(), ProblemError> {
    head_dim_in_range(problem.head_dim())?;
    values(problem)?;
    heads(problem)?;
    softmax_scale(problem)?;
    n_rows(problem)?;
    n_keys(problem)?;
    split_kv(problem)?;
    pages(problem)?;
    fp8_kv(problem)?;
    fp8(problem)?;
    block_mask(problem)?;
    dropout(problem)?;
    precision(problem)?;
    Ok(super::score::expressions(problem)?)
}

pub(super) fn head_dim_in_range(given: usize) -> Result<(), ProblemError> {
    let (min, max) = (1, MAX_HEAD_DIM);
    if (min..=max).contains(&given) {
        Ok(())
    } else {
        Err(ProblemError::HeadDimOutOfRange { given, min, max })
    }
}

/// Columns of values, and what cannot be combined with values that are in the keys.
fn values(problem: &Problem) -> Result<(), ProblemError> {
    let given = problem.head_dim_v();
    let max = match problem.values_in_keys() {
        true => problem.head_dim(),
        false => MAX_HEAD_DIM,
    };
    if !(1..=max).contains(&given) {
        return Err(ProblemError::HeadDimVOutOfRange { given, min: 1, max });
    }
    if problem.values_in_keys() && problem.fp8_kv().is_some() {
        let what = "keys and values in e4m3";
        return Err(ProblemError::ValuesInKeysWith { what });
    }
    Ok(())
}

fn heads(problem: &Problem) -> Result<(), ProblemError> {
    let (heads_q, heads_k) = (problem.heads_q(), problem.heads_k());
    let both_none = heads_q == 0 && heads_k == 0;
    if both_none || (heads_q > 0 && heads_k > 0 && heads_q.is_multiple_of(heads_k)) {
        Ok(())
    } else {
        Err(ProblemError::HeadsNotMultiple { heads_q, heads_k })
    }
}

fn softmax_scale(problem: &Problem) -> Result<(), ProblemError> {
    // Exponentials are computed to base 2, so the scale times log₂ e has to be finite as well.
    let usable = |given: f32| given > 0.0 && (given * std::f32::consts::LOG2_E).is_finite();
    match problem.softmax_scale() {
        Some(given) if !usable(given) => Err(ProblemError::SoftmaxScale { given }),
        _ => Ok(()),
    }
}

/// batch · heads_q · seqlen_q, and of packed queries heads_q · total_q.
fn n_rows(problem: &Problem) -> Result<(), ProblemError> {
    if let Some(total_q) = problem.total_q() {
        countable([1, problem.heads_q(), total_q], "heads_q · total_q")?;
    }
    let what = "batch · heads_q · seqlen_q";
    countable(
        [problem.batch(), problem.heads_q(), problem.seqlen_q()],
        what,
    )
}

/// batch · heads_k · seqlen_k, and of packed keys heads_k · total_k.
fn n_keys(problem: &Problem) -> Result<(), ProblemError> {
    if let Some(total_k) = problem.total_k() {
        countable([1, problem.heads_k(), total_k], "heads_k · total_k")?;
    }
    let what = "batch · heads_k · seqlen_k";
    countable(
        [problem.batch(), problem.heads_k(), problem.seqlen_k()],
        what,
    )
}

fn split_kv(problem: &Problem) -> Result<(), ProblemError> {
    match (problem.split_kv().keys(), problem.block_mask()) {
        (Some(0), _) => Err(ProblemError::SplitKv),
        (Some(_), Some(_)) => Err(ProblemError::BlockMaskWithSplitKv),
        _ => Ok(()),
    }
}

/// Sizes of the pool and of the table, and what cannot be combined with pages.
fn pages(problem: &Problem) -> Result<(), ProblemError> {
    let Some(pages) = problem.pages() else {
        return Ok(());
    };
    let others = [
        (problem.total_k().is_some(), "packed keys"),
        (problem.block_mask().is_some(), "a block mask"),
    ];
    if let Some(&(_, what)) = others.iter().find(|(is_there, _)| *is_there) {
        return Err(ProblemError::PagesWith { what });
    }
    pool(
        pages,
        problem.batch(),
        problem.seqlen_k(),
        problem.heads_k(),
    )
}

/// Keys and values in 8 bits are those of a cache. Scales per page need pages, and the number of scales must be representable.
fn fp8_kv(problem: &Problem) -> Result<(), ProblemError> {
    let Some(scales) = problem.fp8_kv() else {
        return Ok(());
    };
    let others = [
        (problem.total_k().is_some(), "packed keys"),
        (problem.block_mask().is_some(), "a block mask"),
        (scales.wants_pages(problem.pages()), Fp8Kv::WITHOUT_PAGES),
    ];
    if let Some(&(_, what)) = others.iter().find(|(is_there, _)| *is_there) {
        return Err(ProblemError::Fp8KvWith { what });
    }
    countable([problem.batch(), problem.heads_k()], "batch · heads_k")
}

/// Queries, keys and values in 8 bits: one kind of scales, sums that have room for them, and their number must be representable.
fn fp8(problem: &Problem) -> Result<(), ProblemError> {
    let Some(scales) = problem.fp8() else {
        return Ok(());
    };
    if scales == Fp8::PerBlock && problem.fp8_sums() == Fp8Sums::OneLevel {
        return Err(ProblemError::Fp8Sums);
    }
    let others = [
        (problem.fp8_kv().is_some(), "a cache in e4m3"),
        (problem.values_in_keys(), "values in the keys"),
    ];
    if let Some(&(_, what)) = others.iter().find(|(is_there, _)| *is_there) {
        return Err(ProblemError::Fp8With { what });
    }
    countable([problem.batch(), problem.heads_k()], "batch · heads_k")
}

/// Scales of q, k and v in 8 bits, as far as the host can read them: each is a scale.
pub(crate) fn descales<'a>(
    problem: &Problem,
    scales: impl Fn(Argument) -> Option<&'a [f32]>,
) -> Result<(), ProblemError> {
    if problem.fp8().is_none() {
        return Ok(());
    }
    for argument in [Argument::QDescale, Argument::KDescale, Argument::VDescale] {
        let scales = scales(argument).unwrap_or_default();
        are_scales(argument, scales, 0..scales.len())?;
    }
    Ok(())
}

/// Whether each of these, which there are, is finite and greater than 0.
pub(super) fn are_scales(
    argument: Argument,
    scales: &[f32],
    mut which: impl Iterator<Item = usize>,
) -> Result<(), ProblemError> {
    match which.find(|&at| !Fp8::is_scale(scales[at])) {
        None => Ok(()),
        Some(at) => Err(ProblemError::Descale {
            argument,
            at,
            given: scales[at],
        }),
    }
}

/// Products of 16-bit types are exact: only f32 has two kinds.
fn precision(problem: &Problem) -> Result<(), ProblemError> {
    let (given, dtype) = (problem.precision(), problem.dtype());
    match (given, dtype) {
        (Precision::Tensor, _) | (_, Dtype::F32) => Ok(()),
        _ => Err(ProblemError::Precision { given, dtype }),
    }
}

/// The probability. Kernels for keys and values in 8 bits, and for values in the keys, have no dropout.
fn dropout(problem: &Problem) -> Result<(), ProblemError> {
    let given = problem.dropout_p();
    if !(0.0..1.0).contains(&given) {
        return Err(ProblemError::Dropout { given });
    }
    let others = [
        (problem.fp8_kv().is_some(), "keys and values in e4m3"),
        (problem.fp8().is_some(), "q, k and v in e4m3"),
        (problem.values_in_keys(), "values in the keys"),
    ];
    match others.iter().find(|(is_there, _)| *is_there) {
        Some(&(_, what)) if given > 0.0 => Err(ProblemError::DropoutWith { what }),
        _ => Ok(()),
    }
}

/// A pool, and the table for `batch` sequences of at most `seqlen_k` rows.
pub(super) fn pool(
    pages: Pages,
    batch: usize,
    seqlen_k: usize,
    heads_k: usize,
) -> Result<(), ProblemError> {
    let (page_size, columns) = (pages.page_size(), pages.n_columns(seqlen_k));
    if page_size == 0 || columns < pages.n_slots(seqlen_k) {
        return Err(ProblemError::Pages {
            columns,
            page_size,
            seqlen_k,
        });
    }
    countable(
        [pages.n_pages(), page_size, heads_k],
        "n_pages · page_size · heads_k",
    )?;
    countable([batch, columns], "batch · columns of page_table")
}

/// Sizes of the blocks, and of the map; not with packed sequences.
fn block_mask(problem: &Problem) -> Result<(), ProblemError> {
    let (Some(blocks), Some([batch, heads, q_blocks, k_blocks])) =
        (problem.block_mask(), problem.block_mask_shape())
    else {
        return Ok(());
    };
    let multiple = BlockMask::MULTIPLE;
    for (side, given) in [("block_q", blocks.block_q()), ("block_k", blocks.block_k())] {
        if given == 0 || !given.is_multiple_of(multiple) {
            return Err(ProblemError::BlockSize {
                side,
                given,
                multiple,
            });
        }
    }
    let packed = [
        (problem.total_q(), Argument::CuSeqlensQ),
        (problem.total_k(), Argument::CuSeqlensK),
    ];
    if let Some((_, argument)) = packed.into_iter().find(|(total, _)| total.is_some()) {
        return Err(ProblemError::BlockMaskWithLengths { argument });
    }
    countable(
        [batch, heads, q_blocks, k_blocks],
        "the map of the block mask",
    )
}

/// With a block mask, the sequences have the problem's lengths.
pub(super) fn no_lengths_beside_a_block_mask(
    problem: &Problem,
    arguments: &Arguments,
) -> Result<(), ProblemError> {
    let lengths = [Argument::SeqUsedQ, Argument::SeqUsedK, Argument::LeftpadK];
    let given = lengths
        .into_iter()
        .find(|&argument| arguments.get(argument).is_some());
    match given {
        Some(argument) if problem.block_mask().is_some() => {
            Err(ProblemError::BlockMaskWithLengths { argument })
        }
        _ => Ok(()),
    }
}

/// Whether the product of some sizes is representable. If one is 0, the product of the others must be representable all the same.
pub(super) fn countable<const N: usize>(
    sizes: [usize; N],
    what: &'static str,
) -> Result<(), ProblemError> {
    sizes
        .iter()
        .filter(|&&size| size > 0)
        .try_fold(1u64, |product, &size| product.checked_mul(size as u64))
        .filter(|&product| product <= (isize::MAX / 4) as u64)
        .map(|_| ())
        .ok_or(ProblemError::SizeOverflow { what })
}
