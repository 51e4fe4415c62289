//! The oracle: attention from its definition, in f64, without tiles and without an online softmax. It shares no
//! arithmetic with the CPU backend or with the emulator; masks enter only as a predicate on one query and one key, scores of the user's own only
//! as a function of one score.
//!
//! Arrays are dense, in the order of their dimensions: `q`: `[batch, seqlen_q, heads_q, head_dim]`; `k`:
//! `[batch, seqlen_k, heads_k, head_dim]`; `o` and `v` the same with head_dim_v; `lse`: `[batch, heads_q, seqlen_q]`. Query head `h`
//! reads key and value head `h / (heads_q / heads_k)`.

mod backward;
mod condition;
mod dropout;
mod edit;
mod forward;
mod merge;
mod pairs;
mod rotary;

use std::ops::Range;

pub use backward::{Gradients, backward};
pub use condition::{Condition, Terms, condition};
pub use dropout::{Dropout, byte};
pub use edit::{Edited, Pair, ScoreError};
pub use forward::{Output, forward, probabilities};
pub use merge::{MergeReference, merge};
pub use pairs::{PairGradient, pair_gradients};
pub use rotary::{Turned, turn};

/// The sizes of one problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of independent sequences.
    pub batch: usize,
    /// Rows of q and o.
    pub seqlen_q: usize,
    /// Rows of k and v.
    pub seqlen_k: usize,
    /// Heads of q and o; a multiple of `heads_k`.
    pub heads_q: usize,
    /// Heads of k and v.
    pub heads_k: usize,
    /// Columns of q and k.
    pub head_dim: usize,
    /// Columns of v and o.
    pub head_dim_v: usize,
}

impl Sizes {
    /// Elements of `[b, i, h, ..]` in q.
    fn query(&self, b: usize, i: usize, h: usize) -> Range<usize> {
        elements((b * self.seqlen_q + i) * self.heads_q + h, self.head_dim)
    }

    /// Elements of `[b, i, h, ..]` in o.
    fn output(&self, b: usize, i: usize, h: usize) -> Range<usize> {
        elements((b * self.seqlen_q + i) * self.heads_q + h, self.head_dim_v)
    }

    /// Elements of `[b, j, head of h, ..]` in k, for query head `h`.
    fn key(&self, b: usize, j: usize, h: usize) -> Range<usize> {
        elements(self.key_row(b, j, h), self.head_dim)
    }

    /// Elements of `[b, j, head of h, ..]` in v, for query head `h`.
    fn value(&self, b: usize, j: usize, h: usize) -> Range<usize> {
        elements(self.key_row(b, j, h), self.head_dim_v)
    }

    fn key_row(&self, b: usize, j: usize, h: usize) -> usize {
        let head = h / (self.heads_q / self.heads_k);
        (b * self.seqlen_k + j) * self.heads_k + head
    }

    /// Index of `[b, h, i]` in lse.
    fn row(&self, b: usize, h: usize, i: usize) -> usize {
        (b * self.heads_q + h) * self.seqlen_q + i
    }

    /// Elements of q.
    pub fn query_elems(&self) -> usize {
        self.batch * self.seqlen_q * self.heads_q * self.head_dim
    }

    /// Elements of o.
    pub fn output_elems(&self) -> usize {
        self.batch * self.seqlen_q * self.heads_q * self.head_dim_v
    }

    /// Elements of k.
    pub fn key_elems(&self) -> usize {
        self.batch * self.seqlen_k * self.heads_k * self.head_dim
    }

    /// Elements of v.
    pub fn value_elems(&self) -> usize {
        self.batch * self.seqlen_k * self.heads_k * self.head_dim_v
    }

    /// Elements of lse.
    pub fn row_elems(&self) -> usize {
        self.batch * self.heads_q * self.seqlen_q
    }
}

/// Elements of a row of so many columns.
fn elements(row: usize, columns: usize) -> Range<usize> {
    row * columns..(row + 1) * columns
}

/// What attention is worked out of.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Sizes of the arrays.
    pub sizes: Sizes,
    /// Queries.
    pub q: &'a [f64],
    /// Keys.
    pub k: &'a [f64],
    /// Values.
    pub v: &'a [f64],
    /// Factor of the scores.
    pub softmax_scale: f64,
    /// Whether query `i` sees key `j` by the mask.
    pub visible: &'a dyn Fn(usize, usize) -> bool,
    /// What a block mask says of batch entry, head, query and key; see [`keep`].
    pub block: Option<&'a dyn Fn(usize, usize, usize, usize) -> u8>,
    /// What takes the place of a score, or none where it does not count. It is asked of pairs that the masks let through.
    pub edit: Option<&'a dyn Fn(Pair, f64) -> Option<Edited>>,
    /// Of each head of q a score more, of which the value is 0.
    pub sinks: Option<&'a [f64]>,
    /// What the weight of batch entry, head, query and key is multiplied by, where some are dropped, before it meets its value.
    pub dropout: Option<&'a dyn Fn(usize, usize, usize, usize) -> f64>,
}

/// Whether a pair is visible by the byte of its block and by the mask.
pub fn keep(block: u8, by_mask: bool) -> bool {
    match block {
        0 => false,
        1 => by_mask,
        _ => true,
    }
}

impl Inputs<'_> {
    /// Whether query `i` of head `h` of a batch entry sees key `j`.
    fn sees(&self, b: usize, h: usize, i: usize, j: usize) -> bool {
        let by_mask = (self.visible)(i, j);
        self.block
            .map_or(by_mask, |block| keep(block(b, h, i, j), by_mask))
    }

    /// What a weight is multiplied by.
    fn factor(&self, b: usize, h: usize, i: usize, j: usize) -> f64 {
        self.dropout.map_or(1.0, |factor| factor(b, h, i, j))
    }

    /// The sink of a head of q; −∞ where there are none.
    fn sink(&self, h: usize) -> f64 {
        self.sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[h])
    }

    /// The largest that a score can be before it is edited: `max |q|·|k| · scale`.
    pub fn largest_score(&self) -> f64 {
        let longest = |rows: &[f64]| {
            rows.chunks_exact(self.sizes.head_dim.max(1))
                .map(|row| dot(row, row))
                .fold(0.0, f64::max)
                .sqrt()
        };
        longest(self.q) * longest(self.k) * self.softmax_scale
    }

    /// What a score may be off, before it is edited. A weight is an exponential of its distance from the row's lse, which a sink may make larger than any
    /// score: so that is what is rounded.
    pub fn product_error(&self) -> ScoreError {
        let sinks = self.sinks.unwrap_or_default().iter();
        let finite = sinks.map(|sink| sink.abs()).filter(|sink| sink.is_finite());
        let of_scores = ScoreError::of_product(self.largest_score(), self.sizes.head_dim);
        ScoreError {
            rounding: of_scores.rounding + finite.fold(0.0, f64::max),
            ..of_scores
        }
    }
}

/// The mask: keys around each query's place `i + seqlen_k − seqlen_q`, some to its left and some to its right, `None` is no limit;
/// and the first `prefix` keys.
pub fn visible(
    sizes: Sizes,
    (left, right): (Option<usize>, Option<usize>),
    prefix: usize,
) -> impl Fn(usize, usize) -> bool {
    move |i, j| {
        let place = (i + sizes.seqlen_k) as i128 - sizes.seqlen_q as i128;
        let distance = j as i128 - place;
        let by_window = left.is_none_or(|n| -distance <= n as i128)
            && right.is_none_or(|n| distance <= n as i128);
        by_window || j < prefix
    }
}

/// The causal mask: the last query sees every key.
pub fn causal(sizes: Sizes) -> impl Fn(usize, usize) -> bool {
    visible(sizes, (None, Some(0)), 0)
}

/// No mask.
pub fn full(_: usize, _: usize) -> bool {
    true
}

/// `Σ a·b`.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    sum_over(a, b, |a, b| a * b)
}

/// `Σ f(a, b)` in eight sums, which a processor adds to side by side: one sum would wait for each addition before the next.
fn sum_over(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += f(a[lane], b[lane]);
        }
    }
    let mut all = 0.0;
    for sum in sums {
        all += sum;
    }
    for (a, b) in a_rest.iter().zip(b_rest) {
        all += f(*a, *b);
    }
    all
}

/// `to += factor · from`.
fn add_scaled(to: &mut [f64], factor: f64, from: &[f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

#[cfg(test)]
mod tests;
