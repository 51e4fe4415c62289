//! Which weights dropout keeps.

use crate::error::ProblemError;
use crate::problem::Problem;
use crate::problem::philox::Dropper;
use crate::validate::sizes;

/// Which weights of a problem are kept by this seed and offset: `[batch, heads_q, seqlen_q, seqlen_k]`, the last index fastest. All, where the problem
/// drops none. What the mask hides counts as well; where sequences have lengths of their own, each has the first rows and columns of its entry.
///
/// It takes a byte for every weight: for tests, and for looking at small problems.
///
/// # Errors
/// [`ProblemError`], if the sizes make no sense, or so many bytes do not fit the address space.
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
