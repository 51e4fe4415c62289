//! Which weights dropout keeps.

use crate::error::ProblemError;
use crate::problem::Problem;
use crate::problem::philox::Dropper;
use crate::validate::sizes;

/// Which weights of a problem this seed and offset keep: `[batch, heads_q, seqlen_q, seqlen_k]`, the last index fastest. All of them, if the problem
/// has no dropout. Masked weights are included. If sequences have different lengths, each has the first rows and columns of its entry.
///
/// The result has a byte for every weight: for tests, and for small problems.
///
/// # Errors
/// [`ProblemError`], if a size is invalid, or the result does not fit the address space.
pub fn dropout_mask(problem: &Problem, seed: u64, offset: u64) -> Result<Vec<bool>, ProblemError> {
    sizes(problem)?;
    let heads = problem.batch() * problem.heads_q();
    let (seqlen_q, seqlen_k) = (problem.seqlen_q(), problem.seqlen_k());
    let n_rows = heads * seqlen_q;
    let what = "batch · heads_q · seqlen_q · seqlen_k";
    let n = n_rows.checked_mul(seqlen_k);
    let n = n
        .filter(|&n| isize::try_from(n).is_ok())
        .ok_or(ProblemError::SizeOverflow { what })?;
    let mut kept = vec![true; n];
    let Some(dropout) = problem.dropout().filter(|_| n > 0) else {
        return Ok(kept);
    };
    let dropper = Dropper::new(dropout, [seed, offset]);
    for (row, kept) in kept.chunks_exact_mut(seqlen_k).enumerate() {
        let (head, query) = (row / seqlen_q, row % seqlen_q);
        dropper.dropped_keys(head, query, 0..seqlen_k, |key| kept[key] = false);
    }
    Ok(kept)
}
