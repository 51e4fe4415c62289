//! Names of a problem and a pass in tables and pictures, and the FLOPs that papers count.

use ferroflash::{Mask, Pass, Problem};

/// The columns of a problem: `head_dim 128`, or `head_dim 192, head_dim_v 128` if v has another number.
pub fn head_dims(problem: &Problem) -> String {
    let (columns, columns_v) = (problem.head_dim(), problem.head_dim_v());
    match columns == columns_v {
        true => format!("head_dim {columns}"),
        false => format!("head_dim {columns}, head_dim_v {columns_v}"),
    }
}

/// The sizes of a problem: `bf16 batch 1, 16 heads over 16, 512 queries over 512 keys, head_dim 128`.
pub fn sizes(problem: &Problem) -> String {
    format!(
        "{} batch {}, {} heads over {}, {} queries over {} keys, {}",
        problem.dtype(),
        problem.batch(),
        problem.heads_q(),
        problem.heads_k(),
        problem.seqlen_q(),
        problem.seqlen_k(),
        head_dims(problem)
    )
}

/// What q, k and v in 8 bits add to the words of a problem: `, q, k and v in e4m3 with a scale per tensor, sums of two levels`; else nothing.
pub fn fp8(problem: &Problem) -> String {
    match problem.fp8() {
        Some(scales) => format!(", {scales}, {}", problem.fp8_sums()),
        None => String::new(),
    }
}

/// A pass in three letters, as in options and records.
pub fn pass_word(pass: Pass) -> &'static str {
    match pass {
        Pass::Backward => "bwd",
        Pass::Forward | Pass::ForwardWithWeights => "fwd",
    }
}

/// Floating-point operations of a pass, as papers and the peers count them; for sequences of these lengths, if given.
pub fn flops(problem: &Problem, pass: Pass, lens: &[usize]) -> f64 {
    let of_length = |&len: &usize| {
        let one = problem.to_builder().seqlen(len).build();
        one.map_or(0.0, |problem| visible(&problem))
    };
    let visible = match lens {
        [] => problem.batch() as f64 * visible(problem),
        lens => lens.iter().map(of_length).sum(),
    };
    let columns = match pass {
        // S, d_q and d_k; dP and d_v.
        Pass::Backward => 3 * problem.head_dim() + 2 * problem.head_dim_v(),
        _ => problem.head_dim() + problem.head_dim_v(),
    };
    2.0 * problem.heads_q() as f64 * visible * columns as f64
}

/// Pairs of a query and a key that see each other, in a head of one sequence, as the peers count them.
fn visible(problem: &Problem) -> f64 {
    let (n_q, n_k) = (problem.seqlen_q() as f64, problem.seqlen_k() as f64);
    match problem.mask() {
        Mask::Full => n_q * n_k,
        Mask::Causal => n_q.min(n_k) * (n_k - n_q.min(n_k) / 2.0),
        // The peers count the pairs of a window one by one.
        _ => problem.visible_pairs() as f64,
    }
}
